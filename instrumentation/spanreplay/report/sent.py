"""A request that took the place of the recorded one, as the cause of what differed behind it; pure."""

from __future__ import annotations

from spanreplay.report.shape import Cause, Divergence, Verdict

__all__ = ["name_cause"]


def name_cause(verdict: Verdict, evidence: str, ref: str) -> Verdict:
    """The verdict; where it diverged, what was sent stands before all that only came along with it."""
    divergences = verdict.get("divergences") or []
    if not evidence or not divergences:
        return verdict
    sent: Cause = {"kind": "argument", "evidence": evidence, "strength": "beside", "ref": ref}
    known = divergences[0].get("causes") or []
    causes = [*(each for each in known if each.get("strength") != "beside"), sent]
    first: Divergence = {**divergences[0], "causes": causes, "cause": str(causes[0].get("evidence", ""))}
    return {**verdict, "divergences": [first, *divergences[1:]]}
