"""Compares the chunks of a retrieval with the recorded ones, by id; pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spanreplay.replayer.divergence import Change

CHUNKS_MAX: Final = 50
_TEXTS: Final = ("page_content", "text", "content", "document", "chunk")
_IDS: Final = ("id", "id_", "doc_id", "chunk_id", "node_id")
_IDS_IN_METADATA: Final = (*_IDS, "source", "url", "path")
_DEPTH_MAX: Final = 8


def compare_chunks(recorded: str, now: str) -> tuple[Change, ...]:
    """Return the dropped, injected, changed or moved chunks of a list; `name` is the chunk's id."""
    before, after = _read(recorded), _read(now)
    found: list[Change] = []
    for at, (name, text) in enumerate(after.items()):
        if name not in before:
            found.append(Change(at, name, "injected"))
        elif before[name] != text:
            found.append(Change(at, name, "changed"))
    found += [Change(at, name, "dropped") for at, name in enumerate(before) if name not in after]
    if not found and list(before) != list(after):
        found = [
            Change(at, name, "moved") for at, (name, old) in enumerate(zip(after, before, strict=True)) if name != old
        ]
    return tuple(found[:CHUNKS_MAX])


def _read(response: str) -> dict[str, str]:
    """Map chunk ids to texts; a chunk without an id is named by the hash of its text."""
    try:
        value = json.loads(response)
    except ValueError:
        return {}
    found: dict[str, str] = {}
    for chunk in _iter_chunks(value, 0):
        text = next(str(chunk[name]) for name in _TEXTS if isinstance(chunk.get(name), str))
        name = _id_of(chunk) or "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        while name in found and found[name] != text:
            name += "'"  # several chunks of one source
        found[name] = text
    return found


def _iter_chunks(value: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, list):
        for item in value:
            yield from _iter_chunks(item, depth + 1)
    elif isinstance(value, dict):
        if any(isinstance(value.get(name), str) for name in _TEXTS) and "fields" not in value:
            yield value
            return
        for member in value.values():
            yield from _iter_chunks(member, depth + 1)


def _id_of(chunk: Mapping[str, Any]) -> str:
    for name in _IDS:
        if chunk.get(name):
            return str(chunk[name])
    metadata = chunk.get("metadata")
    if isinstance(metadata, Mapping):
        return next((str(metadata[name]) for name in _IDS_IN_METADATA if metadata.get(name)), "")
    return ""
