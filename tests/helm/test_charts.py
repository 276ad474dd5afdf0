"""Rendered objects of every chart: valid objects, complete references, restricted pods, exact network policies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import SchemaNotFoundError

from support.helm import (
    CHARTS,
    CRDS,
    ROOT,
    Object,
    containers,
    helm,
    labels,
    matches,
    pods,
    pretty,
    references,
    render,
    value_files,
)

CHART = "spanreplay"
COMPONENT = "app.kubernetes.io/component"
INSTALLABLE = sorted(path.parent.name for path in CHARTS.glob("*/values.yaml"))
CASES = [(chart, path) for chart in INSTALLABLE for path in value_files(chart)]
VERSIONS = ("1.28", "1.31", "1.34", "1.37")
OUTSIDE = re.compile(
    r"registry-internal|pull|spanreplay-tls|spanreplay-tenants|spanreplay-token|tenants|clickhouse|phoenix-(key|keys|db|postgres|tls)"
    r"|otlp-tls|more|hf-token|models"
)
"""Names of the user's own secrets and configs in the values files."""

every_case = pytest.mark.parametrize(
    ("chart", "values"), CASES, ids=[f"{chart}-{path.parent.name}-{path.stem}" for chart, path in CASES]
)


@pytest.mark.parametrize("chart", INSTALLABLE)
def test_h2_lint_is_strict_and_silent(chart: str) -> None:
    """`helm lint --strict` has nothing to say about any values file."""
    files = [word for path in value_files(chart) for word in ("--values", str(path))]
    done = helm("lint", "--strict", str(CHARTS / chart), *files[-2:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_h2_generated_files_are_current() -> None:
    """Schema, README and every rendered values file match the templates."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "charts.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@every_case
@pytest.mark.sampled(5)
def test_h2_objects_are_valid_in_every_kubernetes(chart: str, values: Path) -> None:
    """Every object passes the strict schema of Kubernetes 1.28 to 1.37; a kind without one must be listed."""
    for item in render(chart, values):
        if item["kind"] in CRDS.get(item["apiVersion"], ()):
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(item, version, strict=True)
            except SchemaNotFoundError as exc:
                raise AssertionError(f"{item['apiVersion']} {item['kind']} has no schema and is not listed") from exc


@every_case
def test_h2_pods_are_restricted(chart: str, values: Path) -> None:
    """No root, no privilege, no capability, no writable root, no token; limits and requests everywhere."""
    found = list(pods(render(chart, values)))
    assert found or values.stem == "empty"
    for name, pod in found:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        if values.stem != "openshift":
            assert spec["securityContext"]["runAsUser"] > 0, name
        else:
            assert "runAsUser" not in spec["securityContext"], name
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
        assert not any("hostPath" in volume for volume in spec["volumes"]), name
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, container["name"]
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), container["name"]
            assert "memory" in container["resources"]["limits"], container["name"]
            assert re.fullmatch(r".+:[\w.-]+(@sha256:[0-9a-f]{64})?", container["image"]), container["image"]
            assert not container["image"].endswith(":latest")
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            claimed = {volume["name"] for volume in spec["volumes"]}
            assert mounted <= claimed | _templates_of(chart, values, name), (name, container["name"])


def _templates_of(chart: str, values: Path, name: str) -> set[str]:
    """Return the names of the volume claim templates of a StatefulSet."""
    for item in render(chart, values):
        if f"{item['kind']}/{item['metadata']['name']}" == name:
            return {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])}
    return set()


@every_case
def test_h2_references_lead_somewhere(chart: str, values: Path) -> None:
    """Every secret, config, claim, account, service, port and selector that an object names exists."""
    objects = render(chart, values)
    existing = {(item["kind"], item["metadata"]["name"]) for item in objects}
    keys = {item["metadata"]["name"]: set(item.get("data", {})) for item in objects if item["kind"] == "Secret"}
    for item in objects:
        for kind, name in references(item):
            assert (kind, name) in existing or OUTSIDE.fullmatch(name), (item["metadata"]["name"], kind, name)
    for owner, pod in pods(objects):
        for container in containers(pod):
            for variable in container.get("env", []):
                reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
                if reference and reference["name"] in keys:
                    assert reference["key"] in keys[reference["name"]], (owner, variable["name"])
            ports = {port.get("name") for port in container.get("ports", [])}
            numbers = {port["containerPort"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                for action in (container.get(probe) or {}).values():
                    if isinstance(action, dict) and "port" in action:
                        assert action["port"] in ports | numbers, (owner, probe)
    for service in (item for item in objects if item["kind"] == "Service"):
        chosen = [pod for _, pod in pods(objects) if matches(service["spec"]["selector"], pod)]
        assert chosen, service["metadata"]["name"]
        names = {port["name"] for pod in chosen for c in containers(pod) for port in c.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names, service["metadata"]["name"]
    for item in objects:
        if item["kind"] in ("Deployment", "StatefulSet"):
            selector = item["spec"]["selector"]["matchLabels"]
            assert matches(selector, item["spec"]["template"])
            assert not any("version" in key or "chart" in key for key in selector), "a selector is for ever"
        if item["kind"] == "PodDisruptionBudget":
            assert any(matches(item["spec"]["selector"]["matchLabels"], pod) for _, pod in pods(objects))


def _names(objects: list[Object]) -> set[tuple[str, str]]:
    return {(item["kind"], item["metadata"]["name"]) for item in objects}


@pytest.mark.parametrize("chart", INSTALLABLE)
def test_h2_two_releases_share_a_namespace(chart: str) -> None:
    """No object, selector or policy of one release affects another's, however similar their long names are."""
    values = CHARTS / chart / "ci" / "all.yaml"
    long = "a-release-whose-name-has-exactly-fifty-three-letters-"
    first, second = (render(chart, values, release=long[:52] + each) for each in "12")
    assert not _names(first) & _names(second)
    others = [*second, *(pod for _, pod in pods(second))]
    kinds = set()
    for item in first:
        for selector in _selectors(item):
            kinds.add(item["kind"])
            assert not any(matches(selector, other) for other in others), (
                item["kind"],
                item["metadata"]["name"],
                selector,
            )
    assert kinds >= {"Service", "Deployment", "NetworkPolicy"}
    assert kinds >= {item["kind"] for item in first if "selector" in item.get("spec", {})}


@every_case
def test_h2_a_workload_selects_its_own_pods_alone(chart: str, values: Path) -> None:
    """Within a release no Deployment, StatefulSet, Job or budget selects the pods of another."""
    objects = render(chart, values)
    for item in objects:
        if item["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget", "Service"):
            selector = _flat(item["spec"]["selector"])
            selected = {labels(pod)[COMPONENT] for _, pod in pods(objects) if matches(selector, pod)}
            assert selected == {labels(item)[COMPONENT]}, item["metadata"]["name"]


def _flat(selector: Object) -> dict[str, str]:
    return dict(selector.get("matchLabels", selector))


def _selectors(item: Any) -> list[dict[str, str]]:
    """Return every label selector in an object that refers to pods or services of its own namespace."""
    if isinstance(item, list):
        return [each for element in item for each in _selectors(element)]
    if not isinstance(item, dict):
        return []
    found = [_flat(item["spec"]["selector"])] if item.get("kind") == "Service" else []
    for key, value in item.items():
        if key == "matchLabels":
            found.append(value)
        elif not (key == "podSelector" and "namespaceSelector" in item):
            found += _selectors(value)
    return found


MODELS = ("m" * 20, "7", "on", "1e3")
SUBJECT = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
"""Valid names of most Kubernetes objects; a Service's must begin with a letter."""


@pytest.mark.parametrize("release", ["r" * 53, "1" * 53, "my.release", "2nd", "123", "on"])
@pytest.mark.parametrize(
    ("chart", "stem"),
    [(CHART, "all"), (CHART, "operator-official"), (CHART, "operator-altinity"), ("spanreplay-inference", "all")],
)
def test_h2_names_of_53_characters_fit(chart: str, stem: str, release: str) -> None:
    """For every release name that Helm accepts each name and label is legal, including those that operators make.

    The models have the longest name, and names that YAML reads as a number or as true.
    """
    model = json.dumps({"model": "a", "revision": "0" * 40, "gpuProduct": "p"})
    sets = tuple(f"models.{name}={model}" for name in MODELS) if chart != CHART else ()
    for item in render(chart, CHARTS / chart / "ci" / f"{stem}.yaml", release=release, sets=sets):
        name = item["metadata"]["name"]
        # A StatefulSet's pods carry its name, a dash and a hash of ten characters as a label; an operator makes a
        # StatefulSet and Services whose names add up to 20 characters to the resource's
        limit = 52 if item["kind"] == "StatefulSet" else 36 if "clickhouse" in item["apiVersion"] else 63
        assert len(name) <= limit, name
        assert re.fullmatch(f"(?=[a-z]){SUBJECT}" if item["kind"] == "Service" else SUBJECT, name), name
        texts = [*labels(item).values(), *(value for each in _selectors(item) for value in each.values())]
        assert {type(value) for value in texts} <= {str}, pretty(texts)
        assert max(map(len, texts), default=0) <= 63, pretty(texts)
    for _, pod in pods(render(chart, CHARTS / chart / "ci" / f"{stem}.yaml", release=release, sets=sets)):
        stores = [v["value"] for c in containers(pod) for v in c.get("env", []) if v["name"] == "SPANREPLAY_STORE"]
        assert all(len(urlsplit(store).hostname or "") <= 63 for store in stores), stores


@pytest.mark.parametrize("chart", INSTALLABLE)
def test_h2_names_that_become_alike_stay_apart(chart: str) -> None:
    """Releases `a.b` and `a-b` share no name."""
    values = CHARTS / chart / "ci" / "all.yaml"
    assert not _names(render(chart, values, release="a.b")) & _names(render(chart, values, release="a-b"))


def test_what_is_switched_off_is_not_there() -> None:
    """Each part can be left out, and leaves nothing behind."""
    off = render(CHART, sets=("replay.enabled=false", "collector.enabled=false", "migrate.enabled=false"))
    assert {labels(item)[COMPONENT] for item in off} == {"clickhouse", "auth", "all"}
    assert not [
        item for item in render(CHART, sets=("networkPolicy.enabled=false",)) if item["kind"] == "NetworkPolicy"
    ]


def test_user_arguments_come_last_and_survive() -> None:
    """A user's arguments and variables win, byte for byte."""
    odd = 'a "b" $(c) {{ d }} \\ é'
    arguments, variables = json.dumps(["--host=::", odd]), json.dumps([{"name": "HOME", "value": odd}])
    objects = render(CHART, sets=(f"collector.extraArgs={arguments}", f"collector.extraEnv={variables}"))
    ((_, pod),) = [each for each in pods(objects) if "collector" in each[0] and each[0].startswith("StatefulSet")]
    (container,) = containers(pod)
    assert container["args"][-2:] == ["--host=::", odd]
    assert container["env"][-1] == {"name": "HOME", "value": odd}


def test_no_secret_is_drawn_where_one_is_named() -> None:
    """With existing secrets the chart creates none."""
    objects = render(CHART, CHARTS / CHART / "examples" / "production.yaml")
    assert not [item for item in objects if item["kind"] == "Secret"]


def test_clickhouse_configuration_is_xml_without_a_password() -> None:
    """The demo server's files are XML, take the password from the environment and close every other way in."""
    (config,) = [item for item in render(CHART) if item["kind"] == "ConfigMap"]
    users = ET.fromstring(config["data"]["users.xml"])  # noqa: S314 - ours
    (password,) = users.iter("password")
    assert (password.attrib, password.text) == ({"from_env": "CLICKHOUSE_PASSWORD"}, None)
    server = ET.fromstring(config["data"]["server.xml"])  # noqa: S314 - ours
    removed = {node.tag for node in server.iter() if "remove" in node.attrib}
    assert {"tcp_port", "mysql_port", "postgresql_port", "interserver_http_port"} <= removed


@pytest.mark.parametrize("chart", INSTALLABLE)
def test_a_package_holds_what_it_needs_and_nothing_else(chart: str, tmp_path: Path) -> None:
    """`helm package` includes the library, and no file of tests or examples."""
    done = helm("package", str(CHARTS / chart), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    assert package.stat().st_size < 200_000
    done = helm("template", "demo", str(package), *_required(chart))
    assert done.returncode == 0, done.stderr
    import tarfile

    with tarfile.open(package) as archive:
        names = archive.getnames()
    assert f"{chart}/charts/common/Chart.yaml" in names
    assert not [name for name in names if "/ci/" in name or "/examples/" in name]


def _required(chart: str) -> list[str]:
    """Return the option for a values file if the defaults alone can't be installed."""
    return [] if chart == CHART else ["--values", str(value_files(chart)[0])]


def test_values_have_one_schema() -> None:
    """Every leaf of values.yaml is described in the schema, and the schema describes nothing else."""
    for chart in INSTALLABLE:
        schema = json.loads((CHARTS / chart / "values.schema.json").read_text(encoding="utf-8"))
        values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text(encoding="utf-8"))
        assert set(schema["properties"]) == {*values, "common"}
