"""The real helm: renders charts once per set of values, and reads their objects."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

Object = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[2]
CHARTS: Final = ROOT / "helm"
HELM: Final = shutil.which("helm", path=str(Path(sys.executable).parent)) or "helm"
CRDS: Final = {
    "monitoring.coreos.com/v1": {"ServiceMonitor", "PrometheusRule"},
    "gateway.networking.k8s.io/v1": {"HTTPRoute", "GRPCRoute"},
    "clickhouse.com/v1alpha1": {"ClickHouseCluster", "KeeperCluster"},
    "clickhouse.altinity.com/v1": {"ClickHouseInstallation"},
}
"""Kinds of other projects; Kubernetes has no schemas for them."""


def helm(
    *arguments: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run helm; its messages about symbolic links are dropped."""
    done = subprocess.run(
        [HELM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={**os.environ, "HELM_NO_PLUGINS": "1", **(environ or {})},
    )
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if "symbolic link" not in line)
    return done


def value_files(chart: str) -> list[Path]:
    """Return every values file that the chart ships: those in ci/ and examples/."""
    return sorted([*(CHARTS / chart / "ci").glob("*.yaml"), *(CHARTS / chart / "examples").glob("*.yaml")])


@functools.cache
def render_text(
    chart: str, files: tuple[Path, ...] = (), sets: tuple[str, ...] = (), release: str = "demo", kube: str = "1.34.0"
) -> str:
    """Run `helm template`; results are cached per process."""
    done = helm(
        "template",
        release,
        str(CHARTS / chart),
        *(word for file in files for word in ("--values", str(file))),
        *(word for each in sets for word in ("--set-json", each)),
        *("--kube-version", kube, "--namespace", "agents"),
        *(word for api in CRDS for word in ("--api-versions", api)),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(chart: str, *files: Path, sets: tuple[str, ...] = (), release: str = "demo") -> list[Object]:
    """Return the objects of a chart."""
    return parse(render_text(chart, files, sets, release))


def parse(text: str) -> list[Object]:
    """Return the objects that helm printed."""
    return [item for item in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if item]


def refuse(chart: str, *sets: str) -> str:
    """Return helm's message about values that it must refuse."""
    done = helm("template", "demo", str(CHARTS / chart), *(word for each in sets for word in ("--set-json", each)))
    assert done.returncode != 0, f"{sets} were taken"
    return done.stderr


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield (owner, pod template) for everything that runs pods."""
    for item in objects:
        name = f"{item['kind']}/{item['metadata']['name']}"
        if item["kind"] == "Pod":
            yield name, item
        elif "template" in (item.get("spec") or {}):
            yield name, item["spec"]["template"]


def containers(pod: Object) -> list[Object]:
    """Return all containers of a pod, including init containers."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def references(item: Any) -> list[tuple[str, str]]:
    """Return (kind, name) of everything that an object references."""
    found = []
    if isinstance(item, list):
        return [each for element in item for each in references(element)]
    if not isinstance(item, dict):
        return []
    for key, value in item.items():
        if key in ("secretKeyRef", "secretRef"):
            found.append(("Secret", value["name"]))
        elif key in ("configMapKeyRef", "configMapRef"):
            found.append(("ConfigMap", value["name"]))
        elif key == "secretName":
            found.append(("Secret", value))
        elif key == "configMap":
            found.append(("ConfigMap", value["name"]))
        elif key == "claimName":
            found.append(("PersistentVolumeClaim", value))
        elif key == "serviceAccountName":
            found.append(("ServiceAccount", value))
        elif key == "imagePullSecrets":
            found += [("Secret", each["name"]) for each in value]
        elif key in ("serviceName",):
            found.append(("Service", value))
        elif key == "backendRefs":
            found += [("Service", each["name"]) for each in value]
        elif key == "service" and "name" in value:
            found.append(("Service", value["name"]))
        elif key == "scaleTargetRef":
            found.append((value["kind"], value["name"]))
        else:
            found += references(value)
    return found


def labels(item: Object) -> dict[str, str]:
    """The labels of an object or pod template."""
    return dict(item["metadata"].get("labels") or {})


def matches(selector: Mapping[str, str], item: Object) -> bool:
    """Whether a selector of labels selects an object."""
    own = labels(item)
    return all(own.get(name) == value for name, value in selector.items())


def pretty(item: object) -> str:
    """JSON for a message."""
    return json.dumps(item, indent=1, sort_keys=True)
