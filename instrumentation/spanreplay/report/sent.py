"""Add a request that replaced the recorded one to a verdict, as the cause of its divergence; pure."""

from __future__ import annotations

from spanreplay.report.shape import Cause, Divergence, Verdict

__all__ = ["name_cause"]


def name_cause(verdict: Verdict, evidence: str, ref: str) -> Verdict:
    """The verdict; if it diverged, its first divergence names the sent request instead of causes merely `beside` it."""
    divergences = verdict.get("divergences") or []
    if not evidence or not divergences:
        return verdict
    sent: Cause = {"kind": "argument", "evidence": evidence, "strength": "beside", "ref": ref}
    known = divergences[0].get("causes") or []
    causes = [*(each for each in known if each.get("strength") != "beside"), sent]
    first: Divergence = {**divergences[0], "causes": causes, "cause": str(causes[0].get("evidence", ""))}
    return {**verdict, "divergences": [first, *divergences[1:]]}
