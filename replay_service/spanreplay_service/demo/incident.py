"""The first half: one order of $190,000, recorded, found, replayed, fixed and proved.

(1) start the model server and `spanreplay up`   (5) stop the model server, replay: identical
(2) record until one order goes wrong            (6) replay with real tools on a scratch ledger: sold again
(3) find the run by customer                     (7) put a guard into the agent
(4) see what happened                            (8) replay with real tools: one difference, the intended one
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanreplay_service.demo.backend import Backend
from spanreplay_service.demo.stage import DemoFailed, Service
from spanreplay_service.demo.telling import NOTIONAL_USD, REQUEST, Telling, hash_file, read_last_order, tell

RUNS_MAX: Final = 10
SCRIPT: Final = "agent/trading_agent.py"
BUNDLE: Final = "incident.replay"
STEPS: Final = 8
_CONFIRMATION: Final = re.compile(r"= \$([\d,]+\.\d\d)$", re.MULTILINE)


@dataclass(frozen=True)
class Incident:
    """The run that went wrong."""

    user: str
    stdout: str
    value_usd: float
    good_runs: int
    ledger_before: Path


class OneOrder(Telling):
    """A customer's order goes wrong in an agent that runs as a script."""

    up: Backend
    server: Service

    def make_agent_command(self, user: str) -> list[str]:
        """The command line of the agent, the same with and without recording."""
        return ["python", SCRIPT, "--user", user, REQUEST]

    def start_services(self, *, has_phoenix: bool) -> None:
        """(1) Start the model server, and `spanreplay up`: collector, store, replay service and Phoenix."""
        self.voice.start_step("Start a model server, and `spanreplay up` to keep the recordings")
        self.up = Backend(self.directory, self.environ, has_phoenix=has_phoenix)
        self.services.append(self.up.service)
        self.server = self.start_model_server()
        with self.voice.wait("waiting for the services"):
            self.use_model_server(self.server)
            self.up.wait_ready()
        self.environ.update(self.up.environ)
        self.voice.say(f"model server  {self.environ['OPENAI_BASE_URL']}")
        self.voice.say(f"collector     {self.environ['OTEL_EXPORTER_OTLP_ENDPOINT']}")
        self.voice.say(f"recordings    {self.environ['SPANREPLAY_ENDPOINT']}")
        self.voice.say(f"Phoenix       {self.up.phoenix_url or 'not started'}")

    def record_until_incident(self) -> Incident:
        """(2) Record the same request of several customers until one order is far too large."""
        self.voice.start_step("Customers ask the agent to sell $1,200 worth of ACME; every run is recorded")
        self.voice.say(f"The agent ({SCRIPT}) is plain LangGraph with the OpenAI SDK: not one line about spanreplay.")
        before = self.directory / "ledger.before.sqlite"
        for number in range(RUNS_MAX):
            user = f"u-{201 + number}"
            shutil.copyfile(self.ledger, before)
            command = ["opentelemetry-instrument", *self.make_agent_command(user)]
            if number == 0:
                self.voice.show_command(command)
            done = self.run(*command, SPANREPLAY_USER_ID=user)
            found = _CONFIRMATION.search(done.stdout)
            if done.status != 0 or found is None:
                raise DemoFailed(f"the agent did not finish its work\n{done.describe()}")
            value = float(found[1].replace(",", ""))
            is_bad = value > NOTIONAL_USD
            self.voice.show_order(user, done.stdout.splitlines()[-1], is_bad=is_bad)
            if is_bad:
                self.voice.say("Exit status 0, HTTP 200, no error anywhere. The dollars were read as shares.")
                return Incident(user, done.stdout, value, number, before)
        raise DemoFailed(f"no order went wrong in {RUNS_MAX} runs; the model server's deck should hold one in 8")

    def find_run(self, incident: Incident) -> str:
        """(3) Find the run id by customer and tool; waits until the recording has arrived in the store."""
        self.voice.start_step(
            f"The ticket: customer {incident.user} lost ${incident.value_usd:,.0f} in shares. Find the run"
        )
        return self.find_one_run(incident.user, "--user", incident.user, "--tool", "place_order")

    def show_run(self, run_id: str) -> str:
        """(4) Show every call of the run; return the URL of its page in Phoenix, or ""."""
        self.voice.start_step("See what happened: every call, with its request and its response")
        return str(self.show(run_id)["run"].get("phoenix") or "")

    def replay_offline(self, run_id: str, incident: Incident) -> None:
        """(5) Replay without a model server, against the same code: identical, and nothing is touched."""
        self.voice.start_step("Stop the model server and replay the run: no model, no tool, no order")
        self.server.stop()
        before = hash_file(self.ledger)
        done, verdict = self.replay(run_id, self.make_agent_command(incident.user))
        self.check_offline(done, verdict)
        self.voice.check(done.stdout == incident.stdout, "the agent printed the same bytes again", done.stdout)
        self.check_ledger(before)

    def replay_with_tools(self, run_id: str, incident: Incident) -> None:
        """(6) Replay the recorded answers of the model with the real tools, on a copy of the ledger."""
        self.voice.start_step("Replay the model's answers with the real tools, on a scratch copy of the ledger")
        before = hash_file(self.ledger)
        scratch = self.copy_ledger(incident.ledger_before)
        command = self.make_agent_command(incident.user)
        done, verdict = self.replay(run_id, command, "--live", "tool:*", LEDGER=str(scratch))
        self.voice.check(
            done.status == 0 and verdict["verdict"] == "identical",
            "the bug happens again, on demand",
            tell(verdict),
        )
        value = read_last_order(scratch)
        self.voice.check(value > NOTIONAL_USD, f"the scratch ledger has an order of ${value:,.2f}", f"it is {value!r}")
        self.check_ledger(before)

    def fix_agent(self) -> None:
        """(7) Put the guard into the agent and show the diff."""
        self.voice.start_step("Put a guard into place_order")
        self.voice.show_diff(self.put_guard(self.directory / SCRIPT))

    def prove_fix(self, run_id: str, incident: Incident) -> None:
        """(8) Replay the same run with the guard: its refusal is the only cause of any difference."""
        self.voice.start_step("Replay the same run against the fixed code")
        before = hash_file(self.ledger)
        scratch = self.copy_ledger(incident.ledger_before)
        command = self.make_agent_command(incident.user)
        done, verdict = self.replay(run_id, command, "--live", "tool:*", LEDGER=str(scratch))
        self.check_fix(done, verdict, script=SCRIPT, consequence="process:stdout")
        self.voice.check("order refused" in done.stdout, f"now: {done.stdout.splitlines()[-1]}", done.stdout)
        self.check_scratch(scratch)
        self.check_ledger(before)

    def tell_what_happened(self, incident: Incident, duration_s: float) -> None:
        """Summarize the first half."""
        decision = json.loads(self.decisions.read_text().splitlines()[-1])
        self.voice.start_part(f"What happened  ({duration_s:.0f} s)")
        self.voice.say(
            f"{incident.good_runs + 1} recorded runs, {incident.good_runs} good; the last sold 1,200 shares."
        )
        self.voice.say(
            f"The server's own log knows why: in a batch of {decision['batch_size']} it added in another order, "
            f"and the margin between two readings was {decision['margin']:+.1e}."
        )
        self.voice.say("Run it again and it is almost always fine: the recording is the only evidence.")
