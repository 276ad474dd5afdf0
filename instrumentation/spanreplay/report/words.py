"""Wording shared by all reports: the meaning and place of a divergence, and the format of values; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from spanreplay.model.escape import escape, shorten, window
from spanreplay.model.lane_names import name_lane, name_number
from spanreplay.model.serving_stack import split_line
from spanreplay.report.shape import Candidate, Change, Diff, Divergence, IgnoredDiff, Stated, Verdict, first_cause

__all__ = [
    "LINE_CHARACTERS_MAX",
    "MEANING",
    "describe_ignored",
    "describe_level",
    "describe_message",
    "describe_not_compared",
    "describe_place",
    "describe_recorded_env",
    "describe_unexercised",
    "describe_warm_up",
    "describe_warmth",
    "duration",
    "enumerate_words",
    "facts",
    "first_difference",
    "is_cut_short",
    "plural",
    "show_value",
    "unchecked",
]

LINE_CHARACTERS_MAX: Final = 200
HINT_CHARACTERS_MAX: Final = 1000
"""Longer than other lines: a command to copy is useless if it is cut off."""
VALUE_CHARACTERS_MAX: Final = 96

MEANING: Final = {
    "changed_call": "the request of this call differs from the recording",
    "extra_call": "the agent made a call that is not in the recording",
    "missing_call": "the agent did not make a call that is in the recording",
    "moved": "this call was made at another place or in another order",
    "ambiguous": "more than one recorded call fits this one",
    "boundary_renamed": "this call is recorded under another name",
    "type_changed": "a value of this call has another type",
    "stream_overrun": "the agent read more of the stream than was recorded",
    "stream_underrun": "the agent read less of the stream than was recorded",
    "order_stall": "what the agent waits for, or for how long, differs from the recording",
    "effect_blocked": "the agent reached outside its recorded calls and was stopped",
    "file_changed": "the agent left a file whose content differs from the recording",
    "unserializable": "a value of this call cannot be compared",
    "output_changed": "same requests, different result",
    "raised": "the agent ended with an exception that the recording does not have",
}


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 call, 2 calls."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def enumerate_words(words: Sequence[str]) -> str:
    """One, one and two, or one, two and three."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def duration(milliseconds: float) -> str:
    """Format a duration for people."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def describe_place(divergence: Divergence) -> str:
    """The number and boundary of the call, as words that follow `diverged`; '' if it is not a call."""
    inside = escape(str(divergence.get("boundary") or ""))
    number = _number_of(divergence)
    where = f" at {name_number(number)}" if number else ""
    return f"{where} ({inside})" if inside else where


def _number_of(place: Divergence | Candidate | IgnoredDiff) -> int:
    """The number of a call as shown to people; verdicts of version 0.1 only have its clock value."""
    number = place.get("call", place.get("seq"))
    return number if isinstance(number, int) else 0


def describe_message(divergence: Divergence) -> str:
    """The divergence's message without the place, which the report has already shown."""
    message = str(divergence.get("message", ""))
    _, found, rest = message.partition(f"({divergence.get('boundary')}, lane {divergence.get('lane')})")
    detail = rest.partition(": ")[2]
    return shorten(detail if found and detail else message, LINE_CHARACTERS_MAX)


PART: Final = {
    "sampler": "the sampler's parameters",
    "serving": "the serving stack",
    "prompt": "the prompt",
    "retrieval": "the retrieved documents",
    "tools": "the tools",
    "clock": "the time",
    "model": "the model's version",
    "history": "the conversation's history",
}
"""The eight moving parts of an agent, in words."""
_ITEMS_SHOWN_MAX: Final = 6
_NAMES_SHOWN_MAX: Final = 12
_SERVER: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#]*", re.IGNORECASE)
_UNKNOWN: Final = "unknown: the changed text is in no earlier output, argument, variable or changed line"


def facts(divergence: Divergence) -> list[tuple[str, str]]:
    """The facts about a cause besides the difference itself, as (label, one escaped line)."""
    rows: list[tuple[str, str]] = []
    if divergence.get("code"):
        rows.append(("code", str(divergence["code"])))
    lane = name_lane(str(divergence.get("lane") or ""))
    if lane not in ("", "main"):
        rows.append(("lane", lane))
    part = PART.get(str(divergence.get("part")), "")
    turn = divergence.get("turn")
    if part:
        rows.append(("part", part + (f", in turn {turn}" if turn else "")))
    rows += [("messages", _changes(divergence["context"]))] if divergence.get("context") else []
    rows += [("chunks", _changes(divergence["chunks"]))] if divergence.get("chunks") else []
    rows += [("serving", _stated(each)) for each in divergence.get("serving") or []]
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
            f"{name_number(_number_of(c))} ({c.get('boundary')}): {c.get('why_rejected')}",
        )
        for c in divergence.get("candidates") or []
    ]
    hints = [("hint", each) for each in str(divergence.get("hint") or "").split("; ") if each]
    return [
        *((label, shorten(text, LINE_CHARACTERS_MAX)) for label, text in rows),
        *((label, shorten(text, HINT_CHARACTERS_MAX)) for label, text in hints),
    ]


def _stated(pair: Stated) -> str:
    """A server's statement about itself, recorded and now; for two long lines only the differing parts."""
    name, recorded, now = (str(pair.get(member) or "") for member in ("name", "recorded", "now"))
    if recorded == now:
        return f"{name}: {recorded or 'not stated'}, both times"
    if len(recorded) + len(now) > VALUE_CHARACTERS_MAX:
        before, after = split_line(recorded), split_line(now)
        sides = [{k: v for k, v in a.items() if b.get(k) != v} for a, b in ((before, after), (after, before))]
        if before and after:
            recorded, now = ("; ".join(f"{k}={v}" for k, v in side.items()) for side in sides)
    return f"{name}: recorded {recorded or 'not stated'}, now {now or 'not stated'}"


def _is_shown_there(divergence: Divergence) -> bool:
    """Whether the best evidence shows the cause; otherwise it merely changed too, and is reported as `perhaps`."""
    causes = divergence.get("causes") or [{}]
    return causes[0].get("strength") != "beside"


def _changes(changes: list[Change]) -> str:
    shown = [f"{c.get('change')} {c.get('name')!r} at {c.get('index')}" for c in changes[:_ITEMS_SHOWN_MAX]]
    return ", ".join(shown) + (f" and {len(changes) - len(shown)} more" if len(changes) > len(shown) else "")


def describe_ignored(verdict: Verdict) -> list[str]:
    """Differences in fields that are not part of keys, as escaped lines; equal differences of calls share a line."""
    calls: dict[tuple[str, str], list[IgnoredDiff]] = {}
    for each in verdict.get("ignored_diffs") or []:
        for diff in each.get("diff") or []:
            calls.setdefault(_ignored_change(diff), []).append(each)
    lines = []
    for (path, change), found in calls.items():
        where = f"{name_number(_number_of(found[0]))} ({found[0].get('boundary')}) {path}: "
        if len(found) > 1:
            where = f"{path}: {plural(len(found), 'call')}, "
        lines.append(shorten(where + change, LINE_CHARACTERS_MAX))
    return lines


def _ignored_change(diff: Diff) -> tuple[str, str]:
    """The name of a field and its change; if only a URL's server changed, the servers."""
    path, recorded, now = str(diff.get("path", "$")), diff.get("recorded"), diff.get("now")
    if path == "url" and isinstance(recorded, str) and isinstance(now, str):
        bases = [_SERVER.match(url) for url in (recorded, now)]
        if all(bases) and len({url[m.end() :] for url, m in zip((recorded, now), bases, strict=True) if m}) == 1:
            return "base URL", " → ".join(escape(m[0]) for m in bases if m)
    at = first_difference(diff)
    return path, " → ".join(show_value(diff[side], at) for side in ("recorded", "now") if side in diff)


def describe_unexercised(verdict: Verdict) -> list[str]:
    """Functions that have changed since the recording but did not run, one escaped line each."""
    lines = []
    for each in verdict.get("unexercised") or []:
        boundary = str(each.get("boundary") or "")
        if each.get("inside"):
            asked = f"what {boundary} asks {', '.join(map(str, each['inside']))}, though code has changed"
            lines.append(shorten(f"{asked}; compare it with --rerun {boundary}", LINE_CHARACTERS_MAX))
            continue
        place = str(each.get("code") or "").partition(" ")[0]
        name = boundary.partition(":")[2]
        changed = f"{place} changed since the recording" if place else "changed since the recording"
        lines.append(shorten(f"{name} ({changed}); run it with --live {boundary}", LINE_CHARACTERS_MAX))
    return lines


def unchecked(verdict: Verdict) -> str:
    """Outputs that an `identical` does not cover, because they could not be compared."""
    missing = []
    if not verdict["stdout"].get("compared"):
        missing.append("standard output")
    if verdict["exit"].get("recorded") is None:
        missing.append("exit status")
    return " and ".join(missing)


def describe_level(verdict: Verdict) -> str:
    """The limits of the recording's level, in one escaped line; empty for `full`."""
    level = verdict.get("level")
    return "" if level is None else shorten(level["leaves_open"], LINE_CHARACTERS_MAX)


def describe_not_compared(verdict: Verdict) -> str:
    """Things that a replay like this never compares, in one escaped line."""
    found = [str(each.get("what", "")) for each in verdict.get("not_compared") or []]
    return shorten(", ".join(found or ["stderr"]), LINE_CHARACTERS_MAX)  # older verdicts lack the list


def describe_recorded_env(verdict: Verdict) -> str:
    """Recorded environment variables and files that are missing or different here, in one escaped line; '' if none."""
    found = verdict.get("recorded_env") or {}
    parts = (
        ("from the recording, not set here: ", [*found.get("given", []), *found.get("files", [])]),
        ("as on the recorded machine: ", found.get("machine", [])),
        ("used when recorded, not set here: ", found.get("missing", [])),
        ("differs from the recording: ", found.get("differing", [])),
        ("set here, cannot be compared (another redaction key): ", found.get("unknown", [])),
    )
    return escape("; ".join(label + _list_names(names) for label, names in parts if names))


def describe_warmth(verdict: Verdict) -> str:
    """The addition to the verdict's word if earlier units were replayed first; '' if not."""
    warm_up = verdict.get("warm_up")
    count = warm_up["replayed"] if warm_up else 0
    return f" after warming up with {plural(count, 'earlier unit')}" if count else ""


def describe_warm_up(verdict: Verdict) -> list[str]:
    """Earlier units that were not replayed in full, that are needed, or that are missing; escaped lines."""
    warm_up = verdict.get("warm_up")
    if not warm_up:
        return []
    units, lines = warm_up["units"], []
    partly = [unit for unit in units if unit.get("why")]
    if partly:
        shown = ", ".join(f"{unit.get('run_id')} ({unit.get('why')})" for unit in partly[:_NAMES_SHOWN_MAX])
        more = f" and {len(partly) - _NAMES_SHOWN_MAX} more" if len(partly) > _NAMES_SHOWN_MAX else ""
        verb = "was" if len(partly) == 1 else "were"
        count = f"{len(partly)} of {plural(len(units), 'earlier unit')} {verb} not replayed in full"
        lines.append(shorten(f"warming up: {count}: {shown}{more}", LINE_CHARACTERS_MAX))
    if warm_up.get("is_needed"):
        shown = ", ".join(str(unit.get("run_id")) for unit in units[:_NAMES_SHOWN_MAX])
        more = f" and {len(units) - _NAMES_SHOWN_MAX} more" if len(units) > _NAMES_SHOWN_MAX else ""
        lines.append(
            shorten(
                f"it needs the state that {plural(len(units), 'earlier unit')} left behind: {shown}{more}",
                LINE_CHARACTERS_MAX,
            )
        )
    elif len(units) < warm_up["before"]:
        lines.append(f"warming up: {len(units)} of the {warm_up['before']} units that came before were replayed first")
    return lines


def _list_names(names: Sequence[str]) -> str:
    shown = [str(name)[:VALUE_CHARACTERS_MAX] for name in names[:_NAMES_SHOWN_MAX]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def show_value(value: Any, at: int) -> str:
    """A differing value as one escaped line around character `at`."""
    if isinstance(value, str):
        # Quoted, so that leading and trailing blanks are visible.
        return f"'{window(value, at, VALUE_CHARACTERS_MAX)}'"
    return shorten(json.dumps(value, ensure_ascii=False), VALUE_CHARACTERS_MAX)


def first_difference(diff: Diff) -> int:
    """Index of the first difference in the shown texts; `at` refers to the whole texts, which may have been cut."""
    recorded, now = diff.get("recorded"), diff.get("now")
    if not isinstance(recorded, str) or not isinstance(now, str):
        return 0
    pairs = enumerate(zip(recorded, now, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(recorded), len(now)))


_STOPPING: Final = frozenset(
    {"changed_call", "extra_call", "ambiguous", "boundary_renamed", "type_changed", "unserializable"}
)
"""Kinds of divergences at which a replay stops, unless the plan says otherwise."""


def is_cut_short(verdict: Verdict) -> bool:
    """Whether the agent was stopped at a call, so that its output ends there."""
    cause = first_cause(verdict)
    goes_on = verdict.get("plan", {}).get("on_change", "stop") != "stop"
    return cause is not None and cause.get("kind") in _STOPPING and not goes_on
