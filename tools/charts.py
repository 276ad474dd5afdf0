"""Writes each chart's values.schema.json, README.md and rendered files from its values; --check compares.

`# -- text` explains a key, `#    text` goes on, `# @schema YAML` adds to what its value says about its schema.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHARTS = tuple(sorted(p.parent for p in (ROOT / "helm").glob("*/values.yaml")))
HEAD = "<!-- Written by `make docs` from Chart.yaml and values.yaml; do not edit. -->\n"
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or "helm"
APIS = (
    "clickhouse.com/v1alpha1",
    "clickhouse.altinity.com/v1",
    "gateway.networking.k8s.io/v1",
    "monitoring.coreos.com/v1",
)
GENERATED = re.compile(r'^(  [a-z-]+: )"?YT[E-H][A-Za-z0-9+/]{53}"?$', re.MULTILINE)
"""Secrets that a chart draws: base64 of `a1` and 40 characters."""

_OBJECTS = {"type": "array", "items": {"type": "object"}}


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def _map(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


_ITEM_NAME = {"type": "string", "minLength": 1, "pattern": r"^[A-Za-z0-9._-]*$"}
_NAMED = {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": _ITEM_NAME}}}
_LABEL = {**_text(r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"), "maxLength": 63}
_QUANTITY = {
    "type": ["string", "integer", "number"],
    "pattern": r"^[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$",
    "minimum": 0,
}
_FREE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("labels podLabels nodeSelector matchLabels", _map(_LABEL)),
    ("annotations podAnnotations", _map({"type": "string"})),
    ("affinity lifecycle", {"type": "object"}),
    ("tolerations topologySpreadConstraints extraObjects extraEnvFrom", _OBJECTS),
    ("agents clients viewers prometheus to", _OBJECTS),
    ("extraEnv extraVolumes extraVolumeMounts initContainers sidecars imagePullSecrets parentRefs", _NAMED),
    ("extraArgs", {"type": "array", "items": {"type": "string"}}),
    (
        "resources",
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"requests": _map(_QUANTITY), "limits": _map(_QUANTITY), "claims": _NAMED},
        },
    ),
    ("digest", _text(r"^(sha256:[0-9a-f]{64})?$")),
    ("tag", {**_text(r"^[A-Za-z0-9._-]*$"), "type": ["string", "null"]}),
    ("registry imageRegistry", _text(r"^([A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[a-z0-9._-]+)*)?$")),
    ("repository", _text(r"^[a-z0-9./_-]+$")),
    ("size shmSize tmpSize", _text(r"^[0-9]+(Mi|Gi|Ti)$")),
    ("host", _text(r"^[A-Za-z0-9._-]*$")),
    ("collectorHost collectorGrpcHost replayHost phoenixHost", _text(r"^([*][.])?[a-z0-9.-]*$")),
    ("url publicUrl", _text(r"^(https?://[^\s/]+\S*)?$")),
    ("existingSecret tlsSecret tokensSecret dsnSecret", _text(r"^[a-z0-9.-]*$")),
    ("storageClass className priorityClassName runtimeClassName", _text(r"^[a-z0-9.-]*$")),
    ("fullnameOverride", _text(r"^([a-z]([a-z0-9-]*[a-z0-9])?)?$")),
    ("key tokensKey dsnKey", _text(r"^[A-Za-z0-9._-]+$")),
    ("maxUnavailable", {**_text(r"^[0-9]+%$"), "type": ["integer", "string"], "minimum": 0}),
)
FREE = {name: schema for names, schema in _FREE for name in names.split()}
"""Keys whose value is Kubernetes' own, or has a form of its own wherever it stands."""
PEERS = {("networkPolicy", "clickhouse"), ("networkPolicy", "phoenix")}
_TYPES = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "null": "null"}


@dataclass(frozen=True)
class Row:
    """One key of values.yaml, for the table."""

    path: str
    default: str
    meaning: str


def _comments(lines: list[str], line: int) -> tuple[str, dict[str, Any]]:
    """The explanation and the schema's additions above a line."""
    words: list[str] = []
    schema: dict[str, Any] = {}
    above = line - 1
    while above >= 0 and lines[above].strip().startswith("#"):
        text = lines[above].strip()
        if found := re.match(r"# @schema (.*)", text):
            schema.update(yaml.safe_load(found[1]))
        elif (found := re.match(r"# -- (.*)", text)) or (found := re.match(r"#    (.*)", text)):
            words.insert(0, found[1])
        above -= 1
    return " ".join(words), schema


def _describe(node: yaml.Node, values: Any, path: tuple[str, ...], lines: list[str], rows: list[Row]) -> dict[str, Any]:
    """The schema of a mapping, collecting the rows below it."""
    assert isinstance(node, yaml.MappingNode)
    properties: dict[str, Any] = {}
    for key, value in node.value:
        name, here = key.value, (*path, key.value)
        meaning, extra = _comments(lines, key.start_mark.line)
        free = _OBJECTS if here[-2:] in PEERS else FREE.get(name)
        if isinstance(value, yaml.MappingNode) and value.value and free is None and "additionalProperties" not in extra:
            properties[name] = _describe(value, values[name], here, lines, rows)
            if meaning:
                rows.append(Row(".".join(here), "", meaning))
            continue
        if not meaning:
            raise SystemExit(f"values.yaml:{key.start_mark.line + 1}: {'.'.join(here)} has no `# --` line")
        rows.append(Row(".".join(here), json.dumps(values[name]), meaning))
        schema = {**(free if free is not None else _plain(value)), **extra}
        if free is None and (lacks := _what_is_open(schema)):
            raise SystemExit(f"values.yaml:{key.start_mark.line + 1}: {'.'.join(here)} takes anything: @schema {lacks}")
        properties[name] = {"description": meaning, **schema}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _what_is_open(schema: dict[str, Any]) -> str:
    """What a schema must say for bad values to be refused, if it doesn't; a rule for every key that is not in FREE."""
    kind = schema["type"]
    needed = {"string": ("enum", "pattern"), "integer": ("minimum",), "number": ("minimum",), "array": ("items",)}
    wanted = needed.get(kind, ())
    return "" if not wanted or any(word in schema for word in wanted) else " or ".join(wanted)


def _plain(node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {"type": _TYPES[node.tag.rpartition(":")[2]]}
    return {"type": "array" if isinstance(node, yaml.SequenceNode) else "object"}


def _models(models: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The schema of a map of models: what `defaults` may say, and what is a model's own."""
    own = {
        "model": {**_text(r"^\S+$"), "description": "Name on the hub, or a directory of the cache."},
        "revision": {
            "type": "string",
            "pattern": "^([0-9a-f]{40}|local-[A-Za-z0-9._-]+)$",
            "description": "Commit of the hub (a branch moves); `local-…`, a name of yours, for a directory.",
        },
    }
    each = {**defaults, "required": list(own), "properties": {**own, **defaults["properties"]}}
    names = {"pattern": "^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$"}
    return {**models, "propertyNames": names, "additionalProperties": each}


def render(chart: Path) -> dict[Path, str]:
    """The generated files of a chart."""
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    rows: list[Row] = []
    schema = _describe(yaml.compose(text), yaml.safe_load(text), (), text.splitlines(), rows)
    if "models" in schema["properties"]:
        schema["properties"]["models"] = _models(schema["properties"]["models"], schema["properties"]["defaults"])
    schema["properties"]["common"] = {"type": "object", "description": "Values of the library chart; it has none."}
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"Values of {about['name']}", **schema}
    schema["properties"]["global"].pop("additionalProperties")  # Helm hands a parent chart's down
    intro = (chart / "README.intro.md").read_text(encoding="utf-8").strip()
    table = ["| Key | Default | Meaning |", "| --- | --- | --- |"]
    table += [f"| `{r.path}` | {f'`{r.default}`' if r.default else ''} | {r.meaning} |" for r in rows]
    versions = f"Chart {about['version']}, spanreplay {about['appVersion']}."
    head = f"{HEAD}# {about['name']}\n\n{about['description']}\n\n{versions}\n"
    return {
        chart / "values.schema.json": json.dumps(schema, indent=1) + "\n",
        chart / "README.md": f"{head}\n{intro}\n\n## Values\n\n" + "\n".join(table) + "\n",
    }


def render_golden(chart: Path) -> dict[Path, str]:
    """What every file of values renders to; the order and every byte count, what is drawn does not."""
    rendered = {}
    for values in sorted([*(chart / "ci").glob("*.yaml"), *(chart / "examples").glob("*.yaml")]):
        command = [HELM, "template", "demo", str(chart), "--namespace", "agents", "--kube-version", "1.34.0"]
        command += ["--values", str(values), *(word for api in APIS for word in ("--api-versions", api))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{values.relative_to(ROOT)}: {done.stderr}")
        rendered[values.parent / "rendered" / values.name] = GENERATED.sub(r"\g<1><generated>", done.stdout)
    return rendered


def _write(files: dict[Path, str], *, is_check: bool) -> list[str]:
    """Write files that differ, unless it is a check; return their names."""
    stale = [path for path, content in files.items() if not path.exists() or path.read_text("utf-8") != content]
    for path in [] if is_check else stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    return [str(path.relative_to(ROOT)) for path in stale]


def main(argv: list[str]) -> int:
    """Write the files, or with --check tell which are stale."""
    is_check = "--check" in argv
    stale = []
    for chart in CHARTS:
        stale += _write(render(chart), is_check=is_check)  # first: helm renders by this schema
        golden = render_golden(chart)
        stale += _write(golden, is_check=is_check)
        for path in [*chart.glob("*/rendered/*.yaml")]:
            if path not in golden:
                stale.append(str(path.relative_to(ROOT)))
                if not is_check:
                    path.unlink()
    if stale and is_check:
        sys.stderr.write(f"stale, run `make docs`: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
