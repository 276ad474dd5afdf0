"""The recorded answers that a replay serves, as the patch grammar names their fields; pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.model.lane_names import is_earlier
from spanreplay.runtime.edits.events import is_event_stream, read_events, read_text
from spanreplay.runtime.edits.selector import parse_selector

__all__ = ["WHOLE", "Answer", "Path", "Shape", "children", "is_json", "read_answers", "write_path"]

WHOLE: Final = "(all of it)"
"""What a field is called that is the whole answer."""
Path = tuple[str | int, ...]


class Shape:
    """What an answer is."""

    VALUE: Final = "value"
    """The result of a function call."""
    BODY: Final = "body"
    """The body of an HTTP response, as JSON or text."""
    STREAM: Final = "stream"
    """A stream of server-sent events, as `{"text": …, "events": […]}`."""
    OTHER: Final = "other"
    """Anything else: it has no fields."""


@dataclass(frozen=True)
class Answer:
    """The answer of one call; `name` is the selector of that call alone."""

    call: CallRecord
    name: str
    shape: str
    value: Any


def read_answers(recording: Recording, only: str = "*") -> list[Answer]:
    """The answers that `only` selects, in the run's order, without errors and calls inside served ones.

    Raises: ConfigError if `only` is not a selector.
    """
    selector = parse_selector(only)
    calls = [call for call in recording.calls if not is_earlier(call.lane)]
    matching = [call for call in calls if selector.matches(call.boundary, call.lane)]
    place = {call.seq: number for number, call in enumerate(matching, start=1)}
    ended = {call.seq for call in calls if call.outcome != Outcome.OPEN.value}
    numbers: Counter[str] = Counter()
    found = []
    for call in calls:
        numbers[call.boundary] += 1
        is_meant = call.seq in place and selector.has(place[call.seq], len(matching))
        if is_meant and call.outcome == Outcome.OK.value and call.parent not in ended:
            shape, value = _read(call.response)
            found.append(Answer(call, f"{call.boundary}[{numbers[call.boundary]}]", shape, value))
    return found


def _read(response: str) -> tuple[str, Any]:
    try:
        value = json.loads(response)
    except ValueError:
        return Shape.OTHER, None
    if not isinstance(value, dict):
        return Shape.OTHER, None
    if not isinstance(value.get("chunks"), list):
        return (Shape.VALUE, value["value"]) if "value" in value and "items" not in value else (Shape.OTHER, None)
    pieces = [chunk[1] for chunk in value["chunks"]]
    if not pieces or not all(isinstance(piece, str) for piece in pieces):
        return Shape.OTHER, None
    text = "".join(pieces)
    if is_event_stream(text):
        return Shape.STREAM, {"text": read_text(text), "events": read_events(text)}
    try:
        return Shape.BODY, json.loads(text)
    except ValueError:
        return (Shape.BODY, text) if text else (Shape.OTHER, None)


def is_json(text: str) -> bool:
    """Whether a text holds a JSON object or list: paths lead into it."""
    try:
        return text[:1] in ("{", "[") and isinstance(json.loads(text), (dict, list))
    except ValueError:
        return False


def write_path(path: Path) -> str:
    """A path as it is written in a patch."""
    return "".join(f"[{step}]" if isinstance(step, int) else _write_name(step) for step in path)


def _write_name(name: str) -> str:
    is_plain = name.replace("_", "a").replace("-", "a").isalnum() and not name[:1].isdigit() and name.isascii()
    return f".{name}" if is_plain and not name.startswith("-") else f"[{json.dumps(name)}]"


def children(value: Any) -> Iterator[tuple[str | int, Any]]:
    """The members of an object or list, without the codec's own; of JSON inside text, too."""
    if isinstance(value, str) and is_json(value):
        value = json.loads(value)
    if isinstance(value, dict):
        yield from ((key, inner) for key, inner in value.items() if not key.startswith("$"))
    elif isinstance(value, list):
        yield from enumerate(value)
