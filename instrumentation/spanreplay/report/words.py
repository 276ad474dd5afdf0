"""The words that every report shares: what a divergence means, where it is, how values are shown; pure."""

from __future__ import annotations

import json
from typing import Any, Final

from spanreplay.report.escape import escape, shorten, window
from spanreplay.report.shape import Change, Diff, Divergence, Verdict, first_cause

__all__ = [
    "LINE_CHARACTERS_MAX",
    "MEANING",
    "describe_ignored",
    "describe_message",
    "describe_place",
    "duration",
    "facts",
    "first_difference",
    "is_cut_short",
    "plural",
    "show_value",
    "unchecked",
]

LINE_CHARACTERS_MAX: Final = 200
VALUE_CHARACTERS_MAX: Final = 96

MEANING: Final = {
    "changed_call": "this call was made with another request than in the recording",
    "extra_call": "the agent made a call that is not in the recording",
    "missing_call": "the agent did not make a call that is in the recording",
    "moved": "this call was made at another place or in another order",
    "ambiguous": "more than one recorded call fits this one",
    "boundary_renamed": "this call is recorded under another name",
    "type_changed": "a value of this call has another type",
    "stream_overrun": "the agent read more of the stream than was recorded",
    "stream_underrun": "the agent read less of the stream than was recorded",
    "order_stall": "the agent waits for a call that ends later in the recording",
    "effect_blocked": "the agent reached outside its recorded calls and was stopped",
    "file_changed": "the agent left a file with other content than in the recording",
    "unserializable": "a value of this call cannot be compared",
    "output_changed": "all calls are the same, and the result is not",
}


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 call, 2 calls."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(milliseconds: float) -> str:
    """A time that people can read."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def describe_place(divergence: Divergence) -> str:
    """Which call of the run, as the words that follow `diverged`; '' if it is none."""
    parts = [escape(str(divergence.get("boundary") or "")), ""]
    if divergence.get("lane"):
        parts[1] = f"lane {escape(str(divergence['lane']))}"
    inside = ", ".join(p for p in parts if p)
    seq = divergence.get("seq")
    where = f" at call {seq}" if isinstance(seq, int) and seq > 0 else ""
    return f"{where} ({inside})" if inside else where


def describe_message(divergence: Divergence) -> str:
    """What differs, without the place where, which the reader has been told before."""
    message = str(divergence.get("message", ""))
    _, found, rest = message.partition(f"({divergence.get('boundary')}, lane {divergence.get('lane')})")
    detail = rest.partition(": ")[2]
    return shorten(detail if found and detail else message, LINE_CHARACTERS_MAX)


PART: Final = {
    "sampler": "the sampler's parameters",
    "serving": "the serving stack",
    "prompt": "the prompt",
    "retrieval": "what was retrieved",
    "tools": "the tools",
    "clock": "the time",
    "model": "the model's version",
    "history": "the conversation's history",
}
"""Which of the eight moving parts changed, in words."""
_ITEMS_SHOWN_MAX: Final = 6
_UNKNOWN: Final = "unknown: the changed text is in no earlier output, argument, variable or changed line"


def facts(divergence: Divergence) -> list[tuple[str, str]]:
    """What a report says about a cause besides the difference itself: (label, one escaped line)."""
    rows: list[tuple[str, str]] = []
    if divergence.get("code"):
        rows.append(("code", str(divergence["code"])))
    part = PART.get(str(divergence.get("part")), "")
    turn = divergence.get("turn")
    if part:
        rows.append(("part", part + (f", in turn {turn}" if turn else "")))
    rows += [("messages", _changes(divergence["context"]))] if divergence.get("context") else []
    rows += [("chunks", _changes(divergence["chunks"]))] if divergence.get("chunks") else []
    causes = divergence.get("causes") or []
    evidence = [str(c.get("evidence", "")) for c in causes] or [str(divergence.get("cause") or "")]
    if evidence[0]:
        rows.append(("cause", evidence[0] if not causes or _is_shown_there(divergence) else f"perhaps {evidence[0]}"))
        rows += [("evidence", each) for each in evidence[1:]]
    elif divergence.get("candidates"):
        rows.append(("cause", _UNKNOWN))
    rows += [
        (
            "nearest",
            f"call {c.get('seq')} ({c.get('boundary')}, lane {c.get('lane')}): {c.get('why_rejected')}",
        )
        for c in divergence.get("candidates") or []
    ]
    if divergence.get("hint"):
        rows.append(("hint", str(divergence["hint"])))
    return [(label, shorten(text, LINE_CHARACTERS_MAX)) for label, text in rows]


def _is_shown_there(divergence: Divergence) -> bool:
    """Whether the best evidence is the changed text itself; what merely changed too is a perhaps."""
    causes = divergence.get("causes") or [{}]
    return causes[0].get("strength") != "beside"


def _changes(changes: list[Change]) -> str:
    shown = [f"{c.get('change')} {c.get('name')!r} at {c.get('index')}" for c in changes[:_ITEMS_SHOWN_MAX]]
    return ", ".join(shown) + (f" and {len(changes) - len(shown)} more" if len(changes) > len(shown) else "")


def describe_ignored(verdict: Verdict) -> list[str]:
    """The calls that differ in what their keys leave out, one escaped line each."""
    lines = []
    for each in verdict.get("ignored_diffs") or []:
        for diff in each.get("diff") or []:
            at = first_difference(diff)
            values = [show_value(diff[side], at) for side in ("recorded", "now") if side in diff]
            text = f"call {each.get('seq')} ({each.get('boundary')}) {diff.get('path', '$')}: {' → '.join(values)}"
            lines.append(shorten(text, LINE_CHARACTERS_MAX))
    return lines


def unchecked(verdict: Verdict) -> str:
    """What an `identical` does not speak for, because it was not compared."""
    missing = []
    if not verdict["stdout"].get("compared"):
        missing.append("standard output")
    if verdict["exit"].get("recorded") is None:
        missing.append("exit status")
    return " and ".join(missing)


def show_value(value: Any, at: int) -> str:
    """A differing value as one escaped line around character `at`."""
    if isinstance(value, str):
        # In quotes, so that blanks at its ends can be seen.
        return f"'{window(value, at, VALUE_CHARACTERS_MAX)}'"
    return shorten(json.dumps(value, ensure_ascii=False), VALUE_CHARACTERS_MAX)


def first_difference(diff: Diff) -> int:
    """Where two shown texts part; `at` counts in the whole texts, of which the report may hold a piece."""
    recorded, now = diff.get("recorded"), diff.get("now")
    if not isinstance(recorded, str) or not isinstance(now, str):
        return 0
    pairs = enumerate(zip(recorded, now, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(recorded), len(now)))


_STOPPING: Final = frozenset(
    {"changed_call", "extra_call", "ambiguous", "boundary_renamed", "type_changed", "unserializable"}
)
"""Kinds of calls behind which a replay stops, unless the plan says otherwise."""


def is_cut_short(verdict: Verdict) -> bool:
    """Whether the agent was stopped at a call, so that what it printed had to end there."""
    cause = first_cause(verdict)
    goes_on = verdict.get("plan", {}).get("on_change", "stop") != "stop"
    return cause is not None and cause.get("kind") in _STOPPING and not goes_on
