"""Read and write verdicts as JSON, schema `divergence/1`."""

from __future__ import annotations

import json
from typing import Any, cast

from spanreplay.model.errors import SpanreplayError
from spanreplay.report.shape import EXIT_STATUS, SCHEMA, Verdict

__all__ = ["dump", "parse"]

_CONTAINERS: dict[str, type] = {
    "counts": dict,
    "divergences": list,
    "reasons": list,
    "stdout": dict,
    "exit": dict,
    "tokens": dict,
    "sockets_denied": list,
    "not_compared": list,
}


def dump(verdict: Verdict) -> str:
    """The verdict as JSON text, indented, ASCII only, with a trailing newline."""
    return json.dumps(verdict, indent=2, allow_nan=False) + "\n"


def _refuse(what: str) -> SpanreplayError:
    return SpanreplayError(
        f"the replay's verdict cannot be read: {what}",
        hint="the agent's Python may have another version of spanreplay than this command",
    )


_TEXTS = ("kind", "boundary", "lane", "code", "message", "cause", "hint", "part")
_LISTS = ("diff", "context", "chunks", "causes", "candidates")


def _is_divergence(value: dict[str, Any]) -> bool:
    return (
        all(_is_list_of(value.get(name, []), dict) for name in _LISTS)
        and all(isinstance(value.get(name, ""), str) for name in _TEXTS)
        and _is_list_of(value.get("stack", []), str)
        and all(isinstance(value.get(name, 0), int) for name in ("turn", "downstream_of"))
    )


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def parse(text: str) -> Verdict:
    """Parse and check a verdict; missing containers become empty ones. Raises: SpanreplayError."""
    try:
        value: Any = json.loads(text)
    except ValueError as exc:
        raise _refuse("it is not JSON") from exc
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise _refuse(f"its schema is {found!r}, not {SCHEMA!r}")
    if value.get("verdict") not in EXIT_STATUS:
        raise _refuse(f"unknown verdict {value.get('verdict')!r}")
    for name, kind in _CONTAINERS.items():
        if not isinstance(value.setdefault(name, kind()), kind):
            raise _refuse(f"{name} is not a {kind.__name__}")
    if not all(isinstance(n, int) for n in [*value["counts"].values(), *value["tokens"].values()]):
        raise _refuse("a count is not a number")
    if not all(isinstance(value.get(name, 0), (int, float)) for name in ("duration_ms", "recorded_duration_ms")):
        raise _refuse("a duration is not a number")
    if not all(isinstance(d, dict) for d in value["divergences"]):
        raise _refuse("a divergence is not an object")
    if not all(_is_divergence(d) for d in value["divergences"]):
        raise _refuse("a divergence has a field of another type")
    ignored = value.get("ignored_diffs", [])
    if not _is_list_of(ignored, dict) or not all(_is_divergence(d) for d in ignored):
        raise _refuse("an ignored difference has a field of another type")
    for name in ("unexercised", "tokens_sent", "not_compared"):
        if not _is_list_of(value.get(name, []), dict):
            raise _refuse(f"{name} is not a list of objects")
    variables = value.get("recorded_env", {})
    if not isinstance(variables, dict) or not all(_is_list_of(each, str) for each in variables.values()):
        raise _refuse("recorded_env is not lists of names")
    level = value.get("level", {"leaves_open": ""})
    if not isinstance(level, dict) or not isinstance(level.get("leaves_open"), str):
        raise _refuse("level has an unexpected form")
    warm_up = value.get("warm_up", {"before": 0, "replayed": 0, "units": []})
    if not isinstance(warm_up, dict) or not all(isinstance(warm_up.get(name), int) for name in ("before", "replayed")):
        raise _refuse("warm_up has an unexpected form")
    if not _is_list_of(warm_up.get("units"), dict):
        raise _refuse("warm_up has an unexpected form")
    if not isinstance(value.get("code", {}), dict) or not _is_list_of(value.get("drift", []), dict):
        raise _refuse("code or drift has an unexpected form")
    return cast("Verdict", value)
