"""The real helm against a Kubernetes API in memory: install, upgrade, roll back, uninstall."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spanreplay.model.how_to_install import install_command
from support.helm import CHARTS, helm, labels, render, value_files
from support.kube import KubeApi

CHART = str(CHARTS / "spanreplay")
DEMO = str(CHARTS / "spanreplay" / "examples" / "demo.yaml")
Run = Callable[..., str]


@pytest.fixture
def kube() -> Iterator[KubeApi]:
    """An empty cluster."""
    with KubeApi() as api:
        yield api


@pytest.fixture
def run(kube: KubeApi, tmp_path: Path) -> Run:
    """Run Helm in that cluster and return its output. Raises: AssertionError with its error message."""
    config = kube.write_config(tmp_path / "kubeconfig")
    environ = {"KUBECONFIG": str(config), "HOME": str(tmp_path), "HELM_QPS": "1000", "HELM_BURST_LIMIT": "1000"}

    def call(*arguments: str) -> str:
        done = helm(*arguments, environ=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def _apply(run: Run, verb: str, *arguments: str, chart: str = CHART) -> str:
    return run(verb, "mine", chart, "--disable-openapi-validation", *arguments)


def _secrets(kube: KubeApi) -> dict[str, dict[str, str]]:
    return {name: dict(item["data"]) for name, item in kube.find("Secret").items()}


def _state(kube: KubeApi) -> dict[tuple[str, str], Any]:
    """The desired state of every object, without the fields that the server adds."""
    return {
        (item["kind"], item["metadata"]["name"]): {
            **{key: value for key, value in item.items() if key not in ("metadata", "status")},
            "labels": labels(item),
        }
        for item in kube.objects.values()
        if not item["metadata"]["name"].startswith("sh.helm.release")
    }


def test_h1_install_upgrade_rollback_uninstall(kube: KubeApi, run: Run) -> None:
    """An upgrade without changes writes nothing, a rollback restores, secrets and data outlive the release.

    Parts are switched off in between: a rollback must find again what was kept of them.
    """
    notes = _apply(run, "install", "--values", DEMO)
    assert notes.index(install_command("client")) < notes.index("spanreplay replay latest -- python agent.py")
    first, secrets = _state(kube), _secrets(kube)
    assert set(secrets) == {f"mine-spanreplay-{each}" for each in ("auth", "clickhouse", "phoenix")}
    values = [base64.b64decode(value).decode() for each in secrets.values() for value in each.values()]
    assert len(set(values)) == len(values) == 5
    assert all(len(value) >= 32 and value.isalnum() for value in values)

    before = len(kube.requests)
    _apply(run, "upgrade", "--values", DEMO)
    written = [path for method, path in kube.requests[before:] if method in ("PATCH", "PUT", "DELETE", "POST")]
    assert all("/secrets" in path for path in written), "the same values change nothing but Helm's own record"
    assert _state(kube) == first

    change = "collector.replicas=3,collector.image.tag=0.1.1,phoenix.mode=disabled"
    _apply(run, "upgrade", "--values", DEMO, "--set", change)
    changed = _state(kube)
    collector = changed["StatefulSet", "mine-spanreplay-collector"]["spec"]
    assert collector["replicas"] == 3
    assert collector["template"]["spec"]["containers"][0]["image"].endswith(":0.1.1")
    assert "--phoenix-url" not in str(collector["template"]["spec"]["containers"][0]["args"])
    assert ("Deployment", "mine-spanreplay-phoenix") not in changed
    assert _secrets(kube)["mine-spanreplay-auth"] == secrets["mine-spanreplay-auth"]

    run("rollback", "mine", "1")
    assert _state(kube) == first
    assert _secrets(kube) == secrets

    run("uninstall", "mine")
    left = {kind for kind, _ in _state(kube)}
    assert left == {"Secret", "PersistentVolumeClaim"}, "what cannot be made again is kept"
    _apply(run, "install", "--values", DEMO)
    assert _secrets(kube) == secrets, "a release that comes back finds its keys and data"
    assert _state(kube) == first


def test_h1_a_changed_migration_is_a_new_job(kube: KubeApi, run: Run) -> None:
    """A Job is immutable, so another image makes another Job, and the same image none."""
    _apply(run, "install")
    (first,) = kube.find("Job")
    _apply(run, "upgrade", "--set", "collector.replicas=4")
    assert set(kube.find("Job")) == {first}
    _apply(run, "upgrade", "--set", "migrate.image.tag=0.1.1")
    (second,) = kube.find("Job")
    assert second != first


CASES = [(chart, path) for chart in ("spanreplay", "spanreplay-inference") for path in value_files(chart)]


@pytest.mark.parametrize(
    ("chart", "values"), CASES, ids=[f"{chart}-{path.parent.name}-{path.stem}" for chart, path in CASES]
)
@pytest.mark.sampled(6)
def test_h1_every_kind_of_store_installs_and_upgrades(kube: KubeApi, run: Run, chart: str, values: Path) -> None:
    """Every values file installs, upgrades without a change and with one on all objects, rolls back, uninstalls."""
    source, chosen = str(CHARTS / chart), ("--values", str(values))
    _apply(run, "install", *chosen, chart=source)
    first = _state(kube)
    assert {(item["kind"], item["metadata"]["name"]) for item in render(chart, values, release="mine")} >= set(first)
    _apply(run, "upgrade", *chosen, chart=source)
    assert _state(kube) == first
    _apply(run, "upgrade", *chosen, "--set", "global.labels.changed=yes", chart=source)
    untouched = [name for name, item in _state(kube).items() if "changed" not in item["labels"]]
    extra = (yaml.safe_load(values.read_text(encoding="utf-8")) or {}).get("extraObjects", [])
    assert len(untouched) == len(extra), untouched  # objects that a user adds have their own labels
    run("rollback", "mine", "1")
    assert _state(kube) == first
    run("uninstall", "mine")
    assert {kind for kind, _ in _state(kube)} <= {"Secret", "PersistentVolumeClaim"}


def test_h1_an_existing_secret_is_left_alone(kube: KubeApi, run: Run) -> None:
    """With the user's secrets the chart creates, changes and removes none."""
    external = str(CHARTS / "spanreplay" / "examples" / "external.yaml")
    _apply(run, "install", "--values", external, "--set", "auth.existingSecret=own")
    assert kube.find("Secret") == {}
    run("uninstall", "mine")


def test_h1_two_releases_live_side_by_side(kube: KubeApi, run: Run) -> None:
    """A second release in the namespace affects nothing of the first, and leaves only its secrets and claims."""
    _apply(run, "install", "--values", DEMO)
    first = _state(kube)
    run("install", "other", CHART, "--disable-openapi-validation", "--values", DEMO)
    assert first.items() <= _state(kube).items()
    run("uninstall", "other")
    assert first.items() <= _state(kube).items()


def test_the_memory_api_refuses_what_a_cluster_refuses(kube: KubeApi, run: Run) -> None:
    """The stand-in is strict: it refuses a changed selector or volume claim as Kubernetes does."""
    _apply(run, "install", "--values", DEMO)
    with pytest.raises(AssertionError, match="field is immutable"):
        _apply(run, "upgrade", "--values", DEMO, "--set", "collector.log.size=3Gi")
