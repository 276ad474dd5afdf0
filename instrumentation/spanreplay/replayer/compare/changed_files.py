"""Compares the files that a replay left behind with those of the recorded run; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

from spanreplay.model.code_state import APPENDED, BY_PROGRAM, SHARED
from spanreplay.replayer.addresses import is_same_text
from spanreplay.replayer.divergence import Diff, Divergence, diff_json

FILES_MAX: Final = 100

RESTATED: Final = "restated"
"""Member of a file's earlier contents in a replay: their hash in the words of the recording."""


def compare_files(
    recorded: Any, now: Any, run_id: str, *, is_downstream: bool, is_same_key: bool = True
) -> list[Divergence]:
    """Return one divergence per file that differs, is missing or is new; none if files were not recorded.

    The hash of content that is not text is made with the redaction key. With another key (`is_same_key` is False) such
    files are compared by their size, see `list_by_size`.
    """
    if not isinstance(recorded, Mapping) or not isinstance(now, Mapping):
        return []
    found: list[Divergence] = []
    for path in sorted(recorded.keys() | now.keys()):
        message, diff = _difference(path, recorded.get(path), now.get(path), is_same_key)
        if message:
            found.append(
                Divergence(
                    kind="file_changed",
                    boundary=f"file:{path}",
                    message=message,
                    diff=diff,
                    hint=f"spanreplay show {run_id} --json has the file as it was recorded",
                    is_downstream=is_downstream or bool(found),
                )
            )
    return found[:FILES_MAX]


def list_by_size(recorded: Any, now: Any) -> tuple[str, ...]:
    """Return the files of which only the size can be compared with another redaction key; at most `FILES_MAX`."""
    if not isinstance(recorded, Mapping) or not isinstance(now, Mapping):
        return ()
    both = sorted(recorded.keys() & now.keys())
    return tuple(path for path in both if _is_by_size(recorded[path], now[path]))[:FILES_MAX]


def _is_by_size(then: Any, now: Any) -> bool:
    is_described = isinstance(then, Mapping) and isinstance(now, Mapping)
    if not is_described or "gone" in then or "gone" in now or then.get("sha256") == now.get("sha256"):
        return False
    return "text" not in then or "text" not in now


def _difference(path: str, then: Any, now: Any, is_same_key: bool) -> tuple[str, tuple[Diff, ...]]:
    if not isinstance(then, Mapping):
        return f"{path} was not written when this was recorded", ()
    if not isinstance(now, Mapping):
        return f"{path} was written when this was recorded, but not now", ()
    if then.get(BY_PROGRAM):  # no program runs in a replay, so only its input counts
        is_same = _is_same_history(then, now, is_same_key)
        return "" if is_same else f"{path} had different content when it was passed to a program", ()
    if then.get(SHARED):
        return _difference_of_shared(path, then, now)
    if then.get("sha256") == now.get("sha256"):
        if not _is_same_history(then, now, is_same_key):
            return f"{path} had different content when it was passed to a program, removed or overwritten", ()
        return "", ()
    if "gone" in then or "gone" in now:
        return f"{path} was {'removed' if 'gone' in then else 'left behind'} when this was recorded, and not now", ()
    if not is_same_key and _is_by_size(then, now) and then.get("size") == now.get("size"):
        return "", ()
    if "text" not in then or "text" not in now:
        return f"{path} differs: {then.get('size')} bytes then, {now.get('size')} now", ()
    if is_same_text(str(then["text"]), str(now["text"])):
        return "", ()
    lines = zip_longest(str(then["text"]).splitlines(), str(now["text"]).splitlines())
    for number, (old, new) in enumerate(lines, 1):
        if old is None or new is None or not is_same_text(old, new):
            where = f"{path} line {number}"
            if old is None or new is None:
                return f"{where} {'is new' if old is None else 'is missing'}", (Diff(f"line {number}", old, new),)
            diff = tuple(
                Diff(f"line {number}", d.recorded, d.now, d.at) for d in diff_json(json.dumps(old), json.dumps(new))
            )
            return f"{where} differs", diff
    return f"{path} differs in its line endings", ()


def _difference_of_shared(path: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, tuple[Diff, ...]]:
    """Compare a file to which other runs wrote at the same time: each line must be among the recorded, in order."""
    if then[SHARED] != APPENDED or "text" not in then or "text" not in now:
        return "", ()
    lines = iter(str(then["text"]).splitlines())
    for number, new in enumerate(str(now["text"]).splitlines(), 1):
        if not any(is_same_text(old, new) for old in lines):
            return f"{path} line {number} is new", (Diff(f"line {number}", None, new),)
    return "", ()


def list_shared(recorded: Any) -> tuple[str, ...]:
    """Return the files to which other runs wrote at the same time; at most `FILES_MAX`."""
    if not isinstance(recorded, Mapping):
        return ()
    return tuple(path for path, each in recorded.items() if isinstance(each, Mapping) and each.get(SHARED))[:FILES_MAX]


def _without_restated(earlier: Any) -> Any:
    """Return a file's earlier contents as they are; a run that was made in a replay (a fork) has both hashes."""
    if not isinstance(earlier, Mapping):
        return earlier
    return {name: value for name, value in earlier.items() if name != RESTATED}


def _is_same_history(then: Mapping[str, Any], now: Mapping[str, Any], is_same_key: bool) -> bool:
    """Whether a file had the same earlier contents, by a hash that tokens of another redaction key change."""
    recorded, made = then.get("earlier"), now.get("earlier")
    recorded, raw = _without_restated(recorded), _without_restated(made)
    if isinstance(made, Mapping) and RESTATED in made and recorded != raw:
        raw = {**raw, "sha256": made[RESTATED]}  # in the recording's words: its folders and process
    made = raw
    if is_same_key or not isinstance(recorded, Mapping) or not isinstance(made, Mapping):
        return bool(recorded == made)
    return bool(recorded.get("count") == made.get("count"))
