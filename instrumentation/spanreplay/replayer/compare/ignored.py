"""Differences in parts that a key leaves out: still compared and shown, but not divergences by themselves."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from spanreplay.model.errors import ConfigError
from spanreplay.model.keyspec import KeySpec, keyspec
from spanreplay.replayer.divergence import Diff

IGNORED_MAX: Final = 100
"""The number of calls whose ignored differences are kept; further ones are counted."""
_FIRST: Final = re.compile(r"[^.\[]+")
_ID: Final = re.compile(r"(?:^|\.)(?:id|tool_call_id|call_id|tool_use_id)$")


@dataclass(frozen=True)
class IgnoredDiff:
    """One call that was served although something outside its key differs."""

    boundary: str
    lane: str
    seq: int
    call: int
    code: str
    recorded_span_id: str
    replay_span_id: str
    diff: tuple[Diff, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the form of schema divergence/1."""
        value = asdict(self)
        value["diff"] = [{k: v for k, v in d.items() if k != "at" or v >= 0} for d in map(asdict, self.diff)]
        return {"kind": "ignored_diff", **value}


def split(name: str, diff: tuple[Diff, ...]) -> tuple[tuple[Diff, ...], tuple[Diff, ...]]:
    """Split differences by keyspec `name`: (in the key, ignored); paths in the body lose their `body.` prefix."""
    try:
        spec: KeySpec | None = keyspec(name)
    except ConfigError:
        spec = None
    kept: list[Diff] = []
    ignored: list[Diff] = []
    for each in diff:
        (kept if _is_in_key(spec, each.path) else ignored).append(_without_body(each))
    return tuple(kept), tuple(ignored)


def ignored_of_equal(diff: tuple[Diff, ...]) -> tuple[Diff, ...]:
    """Return the differences despite equal keys: the key ignored them all, except ids, which it renames."""
    return tuple(_without_body(d) for d in diff if _ID.search(d.path) is None)


def _without_body(diff: Diff) -> Diff:
    return Diff(diff.path.removeprefix("body."), diff.recorded, diff.now, diff.at)


def _is_in_key(spec: KeySpec | None, path: str) -> bool:
    if path.startswith("headers"):
        return False
    if spec is None or not spec.is_api:
        return True
    if not path.startswith("body."):
        return path == "$"
    field = _FIRST.match(path.removeprefix("body."))
    return field is not None and field.group() in spec.fields
