"""Judge a run again whose code is unchanged and that diverged: with the code of its tools, which may leave state behind.

A replay serves the results of tools. What their code changes besides, in a global or an attribute, is in no recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spanreplay.cli.terminal import say
from spanreplay.model.call import Kind, Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.report.shape import Verdict
from spanreplay.runtime.calls.bodies import BODY

__all__ = ["judge_with_tools", "may_lack_state"]

_TOOLS: Final = Kind.TOOL.value


def may_lack_state(verdict: Verdict, plan: Plan) -> bool:
    """Whether a run may differ only because it lacks what was left in memory: its code and its plan change nothing."""
    is_plain = not (plan.lets_go_live or plan.patches or plan.stop_at or plan.is_stepped or plan.dap)
    return verdict["verdict"] == "diverged" and is_plain and verdict.get("code", {}).get("changed_files") == []


def judge_with_tools(alone: Verdict, recording: Recording, plan: Plan, judge: Callable[[Plan], Verdict]) -> Verdict:
    """The verdict of a replay that runs the tools' code again, if that is identical, else `alone`.

    It is asked only where the plan says nothing about calls, and the difference has no known cause.
    """
    first = next(iter(alone["divergences"]), None)
    has_tools = any(call.kind == _TOOLS and BODY in call.meta for call in recording.calls)
    if plan.rules or not has_tools or first is None or first.get("cause"):
        return alone
    say("its code is unchanged, and it diverged: does it need what its tools left in memory? (--stub tool: don't ask)")
    try:
        after = judge(plan.rerun(_TOOLS))
    except SpanreplayError as exc:
        say(f"that can't be told: {exc}")
        return alone
    return after if after["verdict"] == "identical" else alone
