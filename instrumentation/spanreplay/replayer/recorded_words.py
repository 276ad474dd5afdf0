"""Rewrites a replay's JSON values and written files in the words of the recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["change_files", "change_texts"]


def change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Change all texts of a JSON value, names of members included; lists and objects are copied."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): change_texts(each, change) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [change_texts(each, change) for each in value]
    return value


def change_files(then: Any, now: Any, name: Callable[[str], str], text: Callable[[str, str], str]) -> Any:
    """Change the names and texts of written files; if the resulting text equals the recorded one, so does its digest.

    `text` gets the recorded text ("" if there is none) and the current one.
    """
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return now
    found: dict[str, Any] = {}
    for path, file in now.items():
        recorded = then.get(name(path))
        old = recorded.get("text") if isinstance(recorded, Mapping) else None
        found[name(path)] = file
        if "text" in file:
            changed = text(str(old or ""), str(file["text"]))
            is_same = isinstance(recorded, Mapping) and old == changed
            digest = {"sha256": recorded.get("sha256")} if is_same and isinstance(recorded, Mapping) else {}
            found[name(path)] = {**file, "text": changed, **digest}
    return found
