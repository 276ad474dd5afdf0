"""Judge a run again with the code of its tools, where their recorded results alone don't tell enough.

A replay serves the results of tools. What their code changes besides, in a global or an attribute, is in no recording:
a run may diverge although its code is unchanged. And what their code asks of models is not compared: a run may be
identical although a prompt in there has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from spanreplay.cli.terminal import say
from spanreplay.model.call import CallRecord, Kind, Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.report.shape import Verdict
from spanreplay.runtime.calls.bodies import BODY
from spanreplay.units.stated import find_unit

__all__ = ["judge_all_with_tools", "judge_with_tools", "limit_again", "may_lack_state"]

_TOOLS: Final = Kind.TOOL.value
_CHANGED: Final = "changed_call"
_OF_STATE: Final = ("raised", "output_changed")
"""Differences that missing state mostly leads to, besides another response of a unit."""
_REDACTION: Final = "redaction"
_BESIDE: Final = "beside"
"""Strength of a cause that is only something else that differs."""
_TIMES: Final = 5
_TIMES_RECORDED: Final = 2
_SECONDS_MIN: Final = 10.0
"""A replay with the code of tools may take this many times as long as that without, or as the recorded run."""
_TIMEOUT: Final = "SPANREPLAY_REPLAY_TIMEOUT"


def limit_again(served: Verdict, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that ends a replay with the code of tools, which may never end by itself, in its time."""
    if settings.get(_TIMEOUT):
        return {}
    took_ms = _TIMES * served.get("duration_ms", 0), _TIMES_RECORDED * served.get("recorded_duration_ms", 0)
    return {_TIMEOUT: f"{max(_SECONDS_MIN, max(took_ms) / 1000):g}"}


def may_lack_state(verdict: Verdict, plan: Plan) -> bool:
    """Whether a run may differ only because it lacks what was left in memory: its code and its plan change nothing."""
    return verdict["verdict"] == "diverged" and _is_plain(plan) and _changed_files(verdict) == []


def judge_with_tools(served: Verdict, recording: Recording, plan: Plan, judge: Callable[[Plan], Verdict]) -> Verdict:
    """The verdict of a replay that runs the code of tools again, if that tells more than `served`; else `served`.

    It is asked only where the plan says nothing about calls. `judge` replays the run with another plan.
    """
    if plan.rules or not _is_plain(plan):
        return served
    return _judge([served], lambda at: recording, lambda wanted, chosen: [judge(wanted)], plan)[0]


def judge_all_with_tools(
    served: Sequence[Verdict],
    load: Callable[[int], Recording],
    judge: Callable[[Plan, Sequence[int]], Sequence[Verdict]],
) -> list[Verdict]:
    """The same for units of a suite, given by their places in it; `judge` replays some of them with another plan."""
    return _judge(served, load, judge, Plan())


def _judge(
    served: Sequence[Verdict],
    load: Callable[[int], Recording],
    judge: Callable[[Plan, Sequence[int]], Sequence[Verdict]],
    plan: Plan,
) -> list[Verdict]:
    best = list(served)
    asking = {at: found for at, verdict in enumerate(served) if (found := _find_asking(verdict))}
    if asking:
        say("code has changed, and tools ask models: would they ask the same? (--warm 0: don't ask)")
        tools = sorted({boundary for each in asking.values() for boundary in each})
        for at, after in _replay(judge, plan.rerun(*tools), list(asking)).items():
            if _tells_more(after, load(at), asking[at]):
                best[at] = after
    lacking = [at for at, verdict in enumerate(served) if _is_doubtful(verdict, partial(load, at))]
    if lacking:
        say("diverged without a known cause: did tools leave something in memory? (--warm 0: don't ask)")
        for at, after in _replay(judge, plan.rerun(_TOOLS), lacking).items():
            if after["verdict"] == "identical":
                best[at] = after
    return best


def _replay(
    judge: Callable[[Plan, Sequence[int]], Sequence[Verdict]], plan: Plan, chosen: Sequence[int]
) -> dict[int, Verdict]:
    try:
        return dict(zip(chosen, judge(plan, chosen), strict=True))
    except SpanreplayError as exc:
        say(f"that can't be told: {exc}")
        return {}


def _find_asking(verdict: Verdict) -> set[str]:
    """The tools of an identical run that asked models and did not run, if code has changed."""
    if verdict["verdict"] != "identical":
        return set()
    return {str(row["boundary"]) for row in verdict.get("unexercised") or () if row.get("inside")}


def _is_plain(plan: Plan) -> bool:
    return not (plan.lets_go_live or plan.patches or plan.stop_at or plan.is_stepped or plan.dap)


def _changed_files(verdict: Verdict) -> object:
    return verdict.get("code", {}).get("changed_files")


def _has_tools(recording: Recording) -> bool:
    return any(call.kind == _TOOLS and BODY in call.meta for call in recording.calls)


def _is_known(cause: Mapping[str, Any]) -> bool:
    """Whether a cause explains the difference, and is not only something else that differs."""
    return bool(cause["strength"] != _BESIDE or cause["kind"] == _REDACTION)


def _is_doubtful(verdict: Verdict, load: Callable[[], Recording]) -> bool:
    """Whether a difference may come from what tools left in memory: an edit mostly shows in a call."""
    first = next(iter(verdict["divergences"]), None) if verdict["verdict"] == "diverged" else None
    if first is None or any(map(_is_known, first.get("causes") or ())):
        return False
    if _changed_files(verdict) != [] and first["kind"] not in (*_OF_STATE, _CHANGED):
        return False
    recording = load()
    if not _has_tools(recording):
        return False
    is_result = find_unit(recording.root.env) is not None and first.get("call") == recording.calls[-1].number
    return _changed_files(verdict) == [] or first["kind"] in _OF_STATE or is_result


def _tells_more(after: Verdict, recording: Recording, asking: Collection[str]) -> bool:
    """Whether all is as recorded, or first of all a call inside such a tool is not: other differences may be ours."""
    if after["verdict"] != "diverged":
        return bool(after["verdict"] == "identical")
    first = next(iter(after["divergences"]), None)
    call = None if first is None or first["kind"] != _CHANGED else _find(recording, first.get("call"))
    return call is not None and any(each.boundary in asking for each in _around(recording, call))


def _find(recording: Recording, number: object) -> CallRecord | None:
    return next((call for call in recording.calls if call.number == number), None)


def _around(recording: Recording, call: CallRecord) -> Iterator[CallRecord]:
    """The calls inside which a call was made, the innermost first."""
    calls = {each.seq: each for each in recording.calls}
    around = calls.get(call.parent)
    while around is not None:
        yield around
        around = calls.get(around.parent) if around.parent < around.seq else None
