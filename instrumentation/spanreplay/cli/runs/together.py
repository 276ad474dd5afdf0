"""Replay the runs of one trace together: changed requests and answers of one service reach the others.

    (1) a called run is replayed before its caller
    (2) if its answer has changed, the caller gets the new answer
    (3) if a caller's request has changed, the called run is replayed again with that request
    (4) the caller is replayed again with the answer to it

(3) and (4) terminate: a caller's first request depends on no answer, its second one only on the answer to the first,
and so on, so each round settles at least one more request.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanreplay.cli.agent.launch import Agent
from spanreplay.cli.agent.settle import settle
from spanreplay.cli.replay import Source, run_agent, write_file
from spanreplay.cli.runs.exchanges import NewAnswer, Sent, compare_answers, compare_requests, read_exchange
from spanreplay.cli.runs.shared_work import explain_in_catalog
from spanreplay.cli.runs.trace_links import Link, answer_of
from spanreplay.cli.terminal import say
from spanreplay.model.call import Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.recording.catalog import Catalog
from spanreplay.replayer.resolve.plan import RULES_MAX, SERVE, build_plan
from spanreplay.report import suite
from spanreplay.report import trace as report
from spanreplay.report.codeblame import add_code_causes
from spanreplay.report.sent import name_cause
from spanreplay.report.shape import Verdict
from spanreplay.report.trace import Caller, Given, Result
from spanreplay.units.given import Answer, read_asked
from spanreplay.units.http_exchange import RESPONSE

__all__ = ["Replays", "Service"]

_LINKS_MAX: Final = RULES_MAX // 2
"""Maximum number of calls of one run that are compared: a plan needs two rules for each."""


@dataclass(frozen=True)
class Service:
    """The command and folder that start an application here."""

    agent: Agent
    folder: Path


@dataclass(frozen=True)
class _Outcome:
    """The result of one replay."""

    verdict: Verdict
    answer: Answer | None = None
    asked: Mapping[int, Mapping[str, object]] | None = None
    """Number of a call → its request now, if it differs; None if the replay failed."""


class Replays:
    """Replays runs one by one, with the present requests and answers of the others."""

    def __init__(
        self,
        catalog: Catalog,
        services: Mapping[str, Service],
        links: Mapping[str, Link],
        folder: Path,
        timeout_s: float,
        stdout: int | None,
    ) -> None:
        self.results: dict[str, Result] = {}
        """Run id → the result of its last replay."""
        self._catalog = catalog
        self._services = services
        self._links = links
        self._folder = folder
        self._timeout_s = timeout_s
        self._stdout = stdout
        self._sent: dict[str, Sent] = {}
        """Run id → the request that it gets instead of the recorded one."""
        self._answers: dict[str, NewAnswer] = {}
        """Run id → the answer that its caller gets instead of the recorded one."""

    def replay_all(self, runs: Sequence[Recording]) -> list[Result]:
        """Replay all runs, called ones before their callers, and print each result."""
        found = {run.run_id: run for run in runs}
        for run in runs:
            called = [found[run_id] for run_id, link in self._links.items() if link.caller is run]
            self._replay(run, called[:_LINKS_MAX], found)
            if len(called) > _LINKS_MAX:
                say(f"  only the first {_LINKS_MAX} of its {len(called)} calls to other services are looked at")
        return [self.results[run.run_id] for run in runs]

    def _replay(self, run: Recording, called: Sequence[Recording], runs: Mapping[str, Recording]) -> None:
        """Replay a run, and the runs that it called, until its requests no longer change."""
        for is_last in (*[False] * len(called), True):
            outcome = self._replay_once(run, called)
            asked = outcome.asked
            anew = [] if asked is None else [each for each in called if self._is_asked_anew(each, asked)]
            if not anew:
                break
            if is_last:
                say(f"  {run.root.app} changes its requests each time: the last answers are kept")
                break
            for each in anew:
                self._ask(each, asked or {})
                below = [runs[run_id] for run_id, link in self._links.items() if link.caller is each]
                self._replay(each, below[:_LINKS_MAX], runs)
        link = self._links.get(run.run_id)
        if link is not None:
            self._note_answer(run, link, outcome)
        given = [self._describe_given(each) for each in called if each.run_id in self._answers]
        caller = None if link is None else Caller(link.caller.run_id, link.caller.root.app, link.call.number)
        sent = self._sent.get(run.run_id)
        result = Result(outcome.verdict, caller, tuple(given), () if sent is None else tuple(sent.changed))
        self.results[run.run_id] = result
        say(report.describe(result))

    def _describe_given(self, run: Recording) -> Given:
        return Given(self._links[run.run_id].call.number, run.run_id, tuple(self._answers[run.run_id].changed))

    def _replay_once(self, run: Recording, called: Sequence[Recording]) -> _Outcome:
        service = self._services[run.root.app]
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        answer, asked = folder / "answer.json", folder / "asked.json"
        try:
            told = {
                "SPANREPLAY_REPLAY_PLAN": self._write_plan(called, folder / "plan.json"),
                "SPANREPLAY_REPLAY_TIMEOUT": str(self._timeout_s),
                "SPANREPLAY_REPLAY_GIVEN": self._write_sent(run, folder / "request.json"),
                "SPANREPLAY_REPLAY_ANSWER": str(answer),
                "SPANREPLAY_REPLAY_ASKED": str(asked),
                "SPANREPLAY_REPLAY_WARM": "",
            }
            source = Source(str(write_file(self._catalog, run, self._folder)), run)
            verdict, status = run_agent(service.agent, source, told, folder, stdout=self._stdout, cwd=service.folder)
            verdict = settle(verdict, status, run.completeness())
            verdict = explain_in_catalog(add_code_causes(verdict, service.folder), self._catalog)
        except SpanreplayError as exc:
            return _Outcome(suite.make_error(run.run_id, run.root.app, str(exc), exc.hint))
        return _Outcome(self._name_sent(run, verdict), Answer.read(answer), read_asked(asked))

    def _write_plan(self, called: Sequence[Recording], path: Path) -> str:
        """Write a plan in which changed calls to other services don't stop the replay and get the new answers."""
        links = [(each, self._links[each.run_id]) for each in called]
        patches = [
            self._answers[each.run_id].to_patch(link.selector, each.run_id)
            for each, link in links
            if each.run_id in self._answers
        ]
        plan = build_plan(on_change=("stop", *(f"{link.selector}={SERVE}" for _, link in links)))
        path.write_text(plan.answered(patches).to_json(), encoding="utf-8")
        return f"@{path}"

    def _write_sent(self, run: Recording, path: Path) -> str:
        sent = self._sent.get(run.run_id)
        if sent is None:
            return ""
        path.write_text(sent.given.to_json(), encoding="utf-8")
        return str(path)

    def _name_sent(self, run: Recording, verdict: Verdict) -> Verdict:
        sent, link = self._sent.get(run.run_id), self._links.get(run.run_id)
        if sent is None or link is None:
            return verdict
        where = f"call {link.call.number} of {link.caller.root.app}"
        return name_cause(verdict, f"the request of {where} has changed: {', '.join(sent.changed)}", "trace")

    # ── between two services ────────────────────────────────────────────────────────────────────────
    def _compare(self, run: Recording, asked: Mapping[int, Mapping[str, object]]) -> Sent | str | None:
        call = self._links[run.run_id].call
        now = asked.get(call.number)
        return None if now is None else compare_requests(read_exchange(call.request), now)

    def _is_asked_anew(self, run: Recording, asked: Mapping[int, Mapping[str, object]]) -> bool:
        found = self._compare(run, asked)
        return (None if isinstance(found, str) else found) != self._sent.get(run.run_id)

    def _ask(self, run: Recording, asked: Mapping[int, Mapping[str, object]]) -> None:
        """Set the request that a run's caller makes now for its next replay."""
        found, link = self._compare(run, asked), self._links[run.run_id]
        where = f"call {link.call.number} of {link.caller.root.app}"
        self._sent.pop(run.run_id, None)
        if isinstance(found, str):
            say(f"  {run.root.app} gets its recorded request, not the new one of {where}: {found}")
        elif found is not None:
            say(f"  {where} sends {run.root.app} a changed request: {', '.join(found.changed)}")
            self._sent[run.run_id] = found

    def _note_answer(self, run: Recording, link: Link, outcome: _Outcome) -> None:
        """Keep an answer that differs from the recorded one for the caller."""
        self._answers.pop(run.run_id, None)
        if outcome.verdict["verdict"] != "diverged":
            return
        recorded, now = answer_of(run), outcome.answer
        where = f"call {link.call.number} of {link.caller.root.app}"
        response = read_exchange(link.call.response)
        if now is None or recorded is None:
            say(f"  {where} gets its recorded answer: there is no new one")
        elif "hops" in response or "chunks" not in response:
            say(f"  {where} gets its recorded outcome, which was not this answer alone")
        else:
            found = compare_answers(recorded, now, _list_differing(outcome.verdict))
            if found is not None:
                self._answers[run.run_id] = found


def _list_differing(verdict: Verdict) -> list[str]:
    """The paths at which a service's answer differs from the recorded one."""
    found = [each for each in verdict.get("divergences", []) if each.get("boundary") == f"http:{RESPONSE}"]
    return [str(diff.get("path", "")) for each in found for diff in each.get("diff", [])]
