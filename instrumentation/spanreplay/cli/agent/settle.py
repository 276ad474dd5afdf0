"""The final verdict of a replay: combines its process's verdict with how the process ended; pure functions."""

from __future__ import annotations

from spanreplay.cli.agent.child import as_shell_status, describe_end
from spanreplay.model.call import Completeness
from spanreplay.report.shape import Divergence, Verdict

__all__ = ["settle"]

_AS_RECORDED = ("identical", "incomplete")


def _exit_divergence(recorded: int | None, status: int) -> Divergence | None:
    now = as_shell_status(status)
    if status < 0 and recorded != now:
        message = f"the agent {describe_end(status)}"
    elif recorded is not None and recorded != now:
        message = f"the exit status was {recorded}, now {now}"
    else:
        return None
    return {
        "kind": "output_changed",
        "boundary": "process:exit",
        "message": message,
        "lane": "",
        "index": 0,
        "seq": 0,
        "code": "",
        "diff": [],
        "cause": "",
        "hint": "",
        "downstream": False,
        "recorded_span_id": "",
        "replay_span_id": "",
    }


def settle(verdict: Verdict, status: int, completeness: Completeness) -> Verdict:
    """The verdict with the exit status compared, and never `identical` for an incomplete recording.

    `status` is negative for a process that a signal ended.
    """
    result: Verdict = {**verdict}
    exits = result.get("exit", {})
    recorded = exits.get("recorded")
    result["exit"] = {"recorded": recorded, "now": as_shell_status(status)}
    if not completeness.is_complete:
        result["reasons"] = list(dict.fromkeys([*result.get("reasons", []), *completeness.reasons]))
        if result["verdict"] == "identical":
            result["verdict"] = "incomplete"
    if result["verdict"] in _AS_RECORDED:
        divergence = _exit_divergence(recorded, status)
        # A replay that stops where its recording ends, or where the plan says, need not end as the agent did.
        is_whole = completeness.is_complete and not result.get("stopped")
        if divergence is not None and (is_whole or status < 0):
            result["verdict"] = "diverged"
            result["divergences"] = [*result.get("divergences", []), divergence]
            result["divergences_total"] = len(result["divergences"])
    return result
