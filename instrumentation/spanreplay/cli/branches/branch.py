"""A branch of a run: served up to a call, live from there, recorded as a new run that says where it comes from."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.agent.child import as_shell_status
from spanreplay.cli.agent.launch import Agent, check_not_isolated, find_recorded_agent
from spanreplay.cli.replay import Source, run_agent
from spanreplay.cli.runs.prices import max_cost_option, price_option
from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.report.shape import EXIT_STATUS, Verdict

__all__ = ["Branch", "Terms", "branch_options", "check_found", "cut_before", "grow"]

RESUMED: Final = "resumed"
_OF_THE_START: Final = ("level", "calls", "code", "files", "directories", "absent")
"""Members of a manifest that a branch needs: what there was before the run, and that it made more calls."""


@dataclass(frozen=True)
class Terms:
    """On which terms branches go live: with effects or not, and what they may cost."""

    effects: bool = False
    max_cost: float | None = None
    prices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Branch:
    """One branch that has ended."""

    verdict: Verdict
    status: int
    """The agent's own exit status."""

    @property
    def is_whole(self) -> bool:
        """Whether the agent went on live to its end."""
        return self.verdict["verdict"] == RESUMED

    @property
    def run_id(self) -> str:
        """The new run."""
        return str(self.verdict.get("replay_run_id", ""))

    @property
    def spent_usd(self) -> float:
        """What its live calls cost, as far as there is a budget."""
        return float(self.verdict.get("cost", {}).get("live_usd", 0.0) or 0.0)

    @property
    def exit_status(self) -> int:
        """The status for the command: the agent's own if the branch is whole, else that of the verdict."""
        return as_shell_status(self.status) if self.is_whole else EXIT_STATUS[self.verdict["verdict"]]


def branch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about effects and cost."""
    for option in (
        price_option,
        max_cost_option,
        click.option(
            "--effects",
            is_flag=True,
            help="Let live calls have effects. Without it, a call that writes is not made, and files stay in the "
            "replay's own.",
        ),
    ):
        command = option(command)
    return command


def cut_before(recording: Recording, call: CallRecord) -> Recording:
    """The recording as if its process had been killed right before a call; pure.

    Calls that had begun before are kept whole, except those inside which this call is made.
    """
    by_seq = {each.seq: each for each in recording.calls}
    around: set[int] = set()
    above = by_seq.get(call.parent)
    while above is not None and above.seq not in around:
        around.add(above.seq)
        above = by_seq.get(above.parent)
    kept = tuple(
        replace(each, outcome=Outcome.OPEN.value, response="", end_seq=-1, reads="") if each.seq in around else each
        for each in recording.calls
        if each.seq < call.seq
    )
    known = recording.root.manifest
    manifest = {name: known[name] for name in _OF_THE_START if name in known}
    root = replace(recording.root, manifest=manifest, end_ns=0, outcome=Outcome.OPEN.value)
    return Recording(root, kept)


def check_found(found: Source, command: tuple[str, ...]) -> Agent:
    """The agent that a branch starts. Raises: ConfigError for a recording that can't be branched."""
    if found.recording.is_imported:
        raise ConfigError("a cassette holds requests alone, so nothing can go on from it")
    agent = find_recorded_agent(command, found.recording)
    check_not_isolated(agent)
    return agent


def grow(
    agent: Agent,
    found: Source,
    folder: Path,
    at: CallRecord,
    terms: Terms,
    *,
    patches: tuple[str, ...] = (),
    stdout: int | None = None,
) -> Branch:
    """Run the agent: served before the call `at`, live from there. Raises: SpanreplayError."""
    from spanreplay.recording.derived import pack_recording
    from spanreplay.replayer.resolve.continuation import Resume
    from spanreplay.replayer.resolve.directions import check_plan
    from spanreplay.replayer.resolve.plan import build_plan
    from spanreplay.runtime.edits.patch import RESPONSE

    plan = build_plan(patches=patches, max_cost=terms.max_cost, prices=terms.prices)
    check_plan(plan, found.recording)
    answers = [each.text for each in plan.patches if each.side == RESPONSE]
    if answers:
        raise ConfigError(f"{answers[0]!r} changes an answer, and those of a branch are live", hint="change a request")
    plan = plan.go_on(Resume(is_redone=terms.effects, forked_at=at.number, is_contained=not terms.effects))
    place = Path(tempfile.mkdtemp(dir=folder))
    path = place / f"{found.recording.run_id}.replay"
    path.write_bytes(pack_recording(cut_before(found.recording, at)))
    settings = {"SPANREPLAY_REPLAY_PLAN": plan.to_json()}
    verdict, status = run_agent(agent, replace(found, name=str(path)), settings, place, stdout=stdout)
    if verdict["verdict"] == RESUMED:
        verdict["reasons"] = []  # that the recording was cut
    return Branch(verdict, status)
