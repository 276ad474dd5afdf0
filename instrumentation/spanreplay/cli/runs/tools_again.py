"""Judge a run again with the code of its tools, where their recorded results alone don't tell enough.

A replay serves the results of tools. What their code changes besides, in a global or an attribute, is in no recording:
a run may diverge although its code is unchanged. And what their code asks of models is not compared: a run may be
identical although a prompt in there has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from spanreplay.cli.terminal import say
from spanreplay.model.call import CallRecord, Kind, Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.report.shape import Verdict
from spanreplay.runtime.calls.bodies import BODY

__all__ = ["judge_with_tools", "may_lack_state"]

_TOOLS: Final = Kind.TOOL.value
_CHANGED: Final = "changed_call"


def may_lack_state(verdict: Verdict, plan: Plan) -> bool:
    """Whether a run may differ only because it lacks what was left in memory: its code and its plan change nothing."""
    return verdict["verdict"] == "diverged" and _is_plain(plan) and _changed_files(verdict) == []


def judge_with_tools(served: Verdict, recording: Recording, plan: Plan, judge: Callable[[Plan], Verdict]) -> Verdict:
    """The verdict of a replay that runs the code of tools again, if that tells more than `served`; else `served`.

    It is asked only where the plan says nothing about calls. `judge` replays the run with another plan.
    """
    if plan.rules or not _is_plain(plan):
        return served
    asking = {str(row["boundary"]) for row in served.get("unexercised") or () if row.get("inside")}
    if served["verdict"] == "identical" and asking:
        say("code has changed, and its tools ask models: would they ask the same? (--stub tool: don't ask)")
        after = _judge(judge, plan.rerun(*sorted(asking)))
        return after if after is not None and _tells_more(after, recording, asking) else served
    if may_lack_state(served, plan) and _has_tools(recording) and not _first_cause(served):
        say("its code is unchanged, and it diverged: did its tools leave something in memory? (--stub tool: don't ask)")
        after = _judge(judge, plan.rerun(_TOOLS))
        return after if after is not None and after["verdict"] == "identical" else served
    return served


def _is_plain(plan: Plan) -> bool:
    return not (plan.lets_go_live or plan.patches or plan.stop_at or plan.is_stepped or plan.dap)


def _changed_files(verdict: Verdict) -> object:
    return verdict.get("code", {}).get("changed_files")


def _has_tools(recording: Recording) -> bool:
    return any(call.kind == _TOOLS and BODY in call.meta for call in recording.calls)


def _first_cause(verdict: Verdict) -> object:
    return next((each.get("cause") for each in verdict["divergences"]), None)


def _judge(judge: Callable[[Plan], Verdict], plan: Plan) -> Verdict | None:
    try:
        return judge(plan)
    except SpanreplayError as exc:
        say(f"that can't be told: {exc}")
        return None


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
