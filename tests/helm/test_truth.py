"""The charts start existing programs with options that they have, and watch metrics that they export."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
import yaml

from spanreplay_collector.metrics import MEANING, PREFIX
from support.helm import CHARTS, ROOT, containers, labels, pods, render, value_files

CHART = CHARTS / "spanreplay"
COMMANDS = {point.name: point for point in entry_points(group="spanreplay.commands")}


@pytest.mark.parametrize("values", value_files("spanreplay"), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_h1_every_command_line_is_one_that_the_program_takes(values: Path) -> None:
    """The arguments of every pod of ours parse, and its ports are the default ports of its program."""
    found = set()
    for name, pod in pods(render("spanreplay", values)):
        component = labels(pod)["app.kubernetes.io/component"]
        for container in containers(pod):
            if component not in ("collector", "replay", "migrate") or container["name"] != component:
                continue
            verb, *arguments = container["args"]
            command = COMMANDS[verb].load()
            assert isinstance(command, click.Command)
            with command.make_context(verb, list(arguments)) as context:
                ports = {value for key, value in context.params.items() if key.endswith("port")}
            assert {port["containerPort"] for port in container.get("ports", [])} == ports, name
            found.add(verb)
    assert "collect" in found


def test_h2_a_collector_is_ready_without_a_store_and_live_without_anything() -> None:
    """A running collector serves the probes' paths, and an outage of ClickHouse does not make it unready."""
    (pod,) = [pod for name, pod in pods(render("spanreplay")) if name.startswith("StatefulSet") and "collector" in name]
    (container,) = containers(pod)
    paths = [container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")]
    assert paths == ["/healthz", "/healthz", "/readyz/log"]


def test_h1_the_smoke_test_is_a_module_that_exists() -> None:
    """`helm test` runs a module of the service."""
    ((_, pod),) = [each for each in pods(render("spanreplay")) if each[0].startswith("Pod/")]
    (container,) = containers(pod)
    assert container["command"][:2] == ["python", "-m"]
    assert importlib.util.find_spec(container["command"][2])


@pytest.mark.phoenix
def test_h1_phoenix_knows_every_variable() -> None:
    """Every PHOENIX_ variable of the bundled Phoenix is in the source of the Phoenix that we test with."""
    found = importlib.util.find_spec("phoenix")
    if found is None or found.origin is None:
        pytest.skip("arize-phoenix is not installed")
    known = set(
        re.findall(r"PHOENIX_[A-Z0-9_]+", Path(found.origin).with_name("config.py").read_text(encoding="utf-8"))
    )
    names = set()
    for values in ("production", "demo"):
        for name, pod in pods(render("spanreplay", CHART / "examples" / f"{values}.yaml")):
            if name.endswith("phoenix"):
                names |= {variable["name"] for variable in containers(pod)[0]["env"]} - {"HOME"}
    assert len(names) > 15
    assert names <= known


def test_h1_alerts_and_dashboard_watch_metrics_that_exist() -> None:
    """Every metric in a rule or panel is exported by the collector."""
    objects = render("spanreplay", CHART / "examples" / "production.yaml")
    (rule,) = [item for item in objects if item["kind"] == "PrometheusRule"]
    expressions = [each["expr"] for group in rule["spec"]["groups"] for each in group["rules"]]
    (dashboard,) = [item for item in objects if labels(item)["app.kubernetes.io/component"] == "dashboard"]
    panels = json.loads(dashboard["data"]["spanreplay.json"])["panels"]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 12
    for expression in expressions:
        (metric,) = re.findall(rf"{PREFIX}\w+", expression)
        assert metric.removeprefix(PREFIX) in MEANING, expression


def test_h1_the_chart_is_of_this_release() -> None:
    """Charts, library and package carry one version."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    for path in CHARTS.glob("*/Chart.yaml"):
        about = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert about.get("appVersion", version[1]) == version[1], path
        for dependency in about.get("dependencies", []):
            library = yaml.safe_load((CHARTS / dependency["name"] / "Chart.yaml").read_text(encoding="utf-8"))
            assert library["version"] == dependency["version"]
