"""The graph of the network policies, computed from the rendered objects of every values file."""

from __future__ import annotations

import json

import pytest

from support.helm import CHARTS, ROOT, Object, labels, matches, pods, render, value_files

COMPONENT = "app.kubernetes.io/component"


def _edges(objects: list[Object]) -> set[tuple[str, str, int]]:
    """(from, to, port) that the policies allow: both sides must."""
    policies = {labels(item)[COMPONENT]: item["spec"] for item in objects if item["kind"] == "NetworkPolicy"}
    for component, spec in policies.items():
        assert set(spec["policyTypes"]) == {"Ingress", "Egress"}, component
    known = [(labels(pod).get(COMPONENT, ""), pod) for _, pod in pods(objects)]

    def peers(rule: Object, key: str) -> set[str]:
        if key not in rule:
            return {"anywhere"}
        found = set()
        for peer in rule[key]:
            selector = peer["podSelector"].get("matchLabels") if set(peer) == {"podSelector"} else None
            own = {name for name, pod in known if selector and matches(selector, pod)}
            found |= own or {json.dumps(peer, sort_keys=True)}
        return found

    edges = set()
    for component, spec in policies.items():
        for rule in spec.get("ingress", []):
            edges |= {(peer, component, port["port"]) for peer in peers(rule, "from") for port in rule["ports"]}
        for rule in spec.get("egress", []):
            edges |= {(component, peer, port["port"]) for peer in peers(rule, "to") for port in rule["ports"]}
    both = set()
    for source, target, port in edges:
        if source in policies and target in policies:
            rules = policies[source].get("egress", []), policies[target].get("ingress", [])
            allowed = [
                any(other in peers(rule, key) and any(p["port"] == port for p in rule["ports"]) for rule in side)
                for side, other, key in ((rules[0], target, "to"), (rules[1], source, "from"))
            ]
            assert all(allowed), f"{source} -> {target}:{port} is open on one side only"
        both.add((source, target, port))
    return both


DNS = '{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}'  # noqa: E501
EVERYBODY = '{"namespaceSelector": {}}'
NAMESPACE = '{"podSelector": {}}'
ANYWHERE = "anywhere"
Edges = frozenset[tuple[str, str, int]]


def _namespace(value: str, label: str = "kubernetes.io/metadata.name") -> str:
    return json.dumps({"namespaceSelector": {"matchLabels": {label: value}}})


def _each(sources: tuple[str, ...] | str, target: str, *ports: int) -> Edges:
    each = (sources,) if isinstance(sources, str) else sources
    return frozenset((source, target, port) for source in each for port in ports)


CLIENTS = ("collector", "replay", "migrate")
DOORS = _each(EVERYBODY, "collector", 4317, 4318) | _each(EVERYBODY, "replay", 4319)
SMOKE = _each("test", "collector", 4318) | _each("test", "replay", 4319) | _each("test", DNS, 53)
CORE = DOORS | SMOKE | _each(CLIENTS, DNS, 53)
DEMO = CORE | _each(CLIENTS, "clickhouse", 8123)
OPERATOR = CORE | _each(CLIENTS, ANYWHERE, 8123)
PHOENIX = _each(("collector", "replay", NAMESPACE), "phoenix", 6006)
DECLARED: dict[str, Edges] = {
    "spanreplay/ci/all": DEMO | PHOENIX | _each(_namespace("monitoring", "name"), "collector", 4318),
    "spanreplay/ci/client-ca": DEMO - SMOKE,
    "spanreplay/ci/collector-only": frozenset(),
    "spanreplay/ci/minimal": DEMO,
    "spanreplay/ci/openshift": DEMO,
    "spanreplay/ci/operator-altinity": OPERATOR,
    "spanreplay/ci/operator-official": OPERATOR,
    "spanreplay/ci/phoenix-external": DEMO | _each(("collector", "replay"), ANYWHERE, 443),
    "spanreplay/ci/phoenix-postgres": DEMO
    | PHOENIX
    | _each("phoenix", DNS, 53)
    | _each("phoenix", '{"ipBlock": {"cidr": "10.0.0.0/8"}}', 5432),
    "spanreplay/examples/airgap": DEMO,
    "spanreplay/examples/demo": DEMO | PHOENIX,
    "spanreplay/examples/external": CORE | _each(CLIENTS, ANYWHERE, 8443),
    "spanreplay/examples/production": (CORE - DOORS)
    | _each(_namespace("true", "spanreplay.dev/agents"), "collector", 4317, 4318)
    | _each(_namespace("true", "spanreplay.dev/clients"), "replay", 4319)
    | _each(_namespace("monitoring"), "collector", 4318)
    | _each(("collector", "replay", _namespace("ingress-nginx")), "phoenix", 6006)
    | _each(CLIENTS, _namespace("databases"), 8123)
    | _each("phoenix", _namespace("databases"), 5432)
    | _each("phoenix", DNS, 53),
}


def _models(*names: str, downloading: tuple[str, ...]) -> Edges:
    asked = frozenset(edge for name in names for edge in _each((EVERYBODY, "test"), name, 8000))
    return asked | _each((*names, "test"), DNS, 53) | _each(downloading, ANYWHERE, 443)


DECLARED |= {
    "spanreplay-inference/ci/all": _models("a", "b", "c", downloading=("a",)),
    "spanreplay-inference/ci/openshift": _models("a", downloading=("a",)),
    "spanreplay-inference/examples/transformers-cpu": _models("tiny", downloading=("tiny",)),
    "spanreplay-inference/examples/vllm": _models("qwen", "large", downloading=("qwen", "large")),
}
"""Allowed connections for every values file: a file without a row fails."""

FILES = {
    f"{chart}/{path.parent.name}/{path.stem}": (chart, path)
    for chart in ("spanreplay", "spanreplay-inference")
    for path in value_files(chart)
}


@pytest.mark.parametrize("name", FILES)
def test_h2_network_policies_allow_exactly_the_declared_edges(name: str) -> None:
    """The graph of the policies is the declared one, and no edge is open on one side only."""
    assert _edges(render(FILES[name][0], FILES[name][1])) == DECLARED[name]


@pytest.mark.parametrize("name", FILES)
def test_h2_every_pod_has_a_policy(name: str) -> None:
    """If policies are on, each pod that the chart starts is selected by at least one."""
    objects = render(FILES[name][0], FILES[name][1])
    covered = [item["spec"]["podSelector"]["matchLabels"] for item in objects if item["kind"] == "NetworkPolicy"]
    without = [owner for owner, pod in pods(objects) if not any(matches(selector, pod) for selector in covered)]
    assert without == [] or DECLARED[name] == frozenset()


def test_h2_who_guards_an_operators_clickhouse_is_said() -> None:
    """An operator's ClickHouse is in no policy of the chart: notes and guide say who has to restrict its ingress."""
    notes = (CHARTS / "spanreplay" / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    for text in (notes, guide):
        assert "no policy of this chart selects the pods of an operator's ClickHouse" in " ".join(text.split())
