"""Applies patches to server-sent events: the text of a streamed answer, or single events by number; pure.

`response.text` is the whole text, in whichever events it comes. `response.events[3].choices[0]` leads into the JSON of
the fourth event that has any; `delete llm[1].response.events[3]` removes it, and `response.events = []` all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from spanreplay.model.json_text import dump, load_or_text
from spanreplay.runtime.edits.patch import ADD, SET, Patch, Step, Unfit, edit

_DELTA_PATHS: Final[tuple[tuple[Step, ...], ...]] = (
    ("choices", 0, "delta", "content"),
    ("choices", 0, "text"),
    ("delta", "text"),
    ("delta",),
    ("candidates", 0, "content", "parts", 0, "text"),
    ("message", "content"),
    ("response",),
)
"""Where providers put a piece of the text in an event of a stream."""
_EVENTS: Final = "events"


def is_event_stream(text: str) -> bool:
    """Whether a body consists of server-sent events."""
    return text.lstrip().startswith(("data:", "event:"))


def read_events(text: str) -> list[Any]:
    """The JSON of each event that has any, in order."""
    return [event for event in map(_read_event, _split(text)) if event is not None]


def read_text(text: str) -> str:
    """The text of a streamed answer, from all of its events."""
    pieces = (_read_piece(line) for line in text.split("\n"))
    return "".join(str(find_in(*piece)) for piece in pieces if piece is not None)


def patch_events(chunks: list[list[Any]], patch: Patch) -> list[list[Any]]:
    """Server-sent events with the patch applied. Raises: ConfigError.

    Another text goes into the first event that has any; later ones then have none.
    """
    if patch.path[:1] == (_EVENTS,):
        return _patch_each(chunks, patch)
    if patch.path != ("text",) or patch.op not in (SET, ADD) or not isinstance(patch.value, str):
        raise patch.fail("this response is a stream: only response.text and response.events can be set", 0)
    lines = "".join(str(chunk[1]) for chunk in chunks).split("\n")
    found = [(number, *piece) for number, line in enumerate(lines) if (piece := _read_piece(line)) is not None]
    texts = [number for number, event, path in found if find_in(event, path)]
    if not texts:
        raise patch.fail("this answer has no text to set", 0)
    at = texts[0] if patch.op == SET else texts[-1]
    for number, event, path in found:
        before = str(find_in(event, path))
        now = patch.value if number == at else ""
        if patch.op == ADD:
            now = before + patch.value if number == at else before
        lines[number] = "data: " + dump(edit(event, _setting(path, now)))
    return _in_pieces("\n".join(lines), chunks)


def _patch_each(chunks: list[list[Any]], patch: Patch) -> list[list[Any]]:
    """Server-sent events, some of them changed, removed or added; those without JSON, such as [DONE], stay."""
    raw = _split("".join(str(chunk[1]) for chunk in chunks))
    parsed = [_read_event(each) for each in raw]
    events = [event for event in parsed if event is not None]
    try:
        changed = edit({_EVENTS: events}, patch)[_EVENTS]
    except (Unfit, KeyError) as exc:
        raise patch.fail(str(exc) if isinstance(exc, Unfit) else "the events can be set, but not removed", 0) from None
    if not isinstance(changed, list):
        raise patch.fail("the events of a stream are a list", 0)
    last = max((at for at, event in enumerate(parsed) if event is not None), default=-1)
    before = [(text, event) for text, event in zip(raw, parsed, strict=True) if event is not None]
    written = [_write_event(event, before, at) for at, event in enumerate(changed)]
    return _in_pieces("".join([*written, *raw[last + 1 :]]), chunks)


def _write_event(event: Any, before: Sequence[tuple[str, Any]], at: int) -> str:
    """An event as it was recorded if it is one of those; else with the recorded type, and new JSON."""
    same = next((text for text, recorded in before if recorded is event or recorded == event), "")
    if same:
        return same
    head = before[min(at, len(before) - 1)][0].split("\n") if before else []
    types = [line for line in head if line.startswith("event:")]
    return "\n".join([*types, f"data: {dump(event)}"]) + "\n\n"


def _split(text: str) -> list[str]:
    return [event + "\n\n" for event in text.replace("\r\n", "\n").split("\n\n") if event.strip()]


def _read_event(text: str) -> Any:
    lines = [line[5:].strip() for line in text.split("\n") if line.startswith("data:")]
    found = load_or_text("\n".join(lines)) if lines else None
    return found if isinstance(found, dict) else None


def _read_piece(line: str) -> tuple[dict[str, Any], Sequence[Step]] | None:
    """An event with a piece of the answer's text, and the path to that text."""
    event = load_or_text(line[5:]) if line.startswith("data:") else None
    if not isinstance(event, dict):
        return None
    path = next((p for p in _DELTA_PATHS if isinstance(find_in(event, p), str)), None)
    if path is None or (path == ("delta",) and "output_text" not in str(event.get("type", ""))):
        return None
    return event, path


def _setting(path: Sequence[Step], value: str) -> Patch:
    from spanreplay.runtime.edits.selector import Selector

    return Patch("", Selector("*"), "response", tuple(path), SET, value)


def _in_pieces(text: str, chunks: list[list[Any]]) -> list[list[Any]]:
    """One chunk per event, as far as there were chunks; the rest goes with the last."""
    events = [event + "\n\n" for event in text.split("\n\n") if event]
    room = max(1, len(chunks))
    if len(events) > room:
        events = [*events[: room - 1], "".join(events[room - 1 :])]
    return [[chunks[i][0], event] for i, event in enumerate(events)]


def find_in(value: Any, path: Sequence[Step]) -> Any:
    """The value at a path, None if there is none."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value
