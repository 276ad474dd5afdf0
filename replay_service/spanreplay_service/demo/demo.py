"""The story of the $190,000 order, told with the commands that a user would type; every step is checked.

(1) start the model server and `spanreplay up`   (5) stop the model server, replay: identical
(2) record customers until one is hurt           (6) replay with real tools on a scratch ledger: sold again
(3) find the run by customer                     (7) put a guard into the agent
(4) see what happened                            (8) replay with real tools: one difference, the intended one
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib.util
import json
import re
import shlex
import shutil
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from spanreplay_service.demo.backend import Backend
from spanreplay_service.demo.narration import Narrator
from spanreplay_service.demo.stage import DemoFailed, Done, Service, clean_environ, run_command

Json = dict[str, Any]

RUNS_MAX: Final = 10
NOTIONAL_USD: Final = 1200.0
REQUEST: Final = "sell $1,200 worth of ACME"
BUNDLE: Final = "incident.replay"
MARKER: Final = ".spanreplay-demo"
SERVER_TIMEOUT_S: Final = 20.0
ARRIVAL_TIMEOUT_S: Final = 30.0
AGENT: Final = Path(__file__).parent / "agent"
SCRIPT: Final = "agent/trading_agent.py"
STEPS: Final = 8
_CONFIRMATION: Final = re.compile(r"= \$([\d,]+\.\d\d)$", re.MULTILINE)
_GUARD_AFTER: Final = "        value = quantity * price\n"
_GUARD: Final = (
    "        if value > notional_usd:\n"
    '            return f"order refused: ${value:,.2f} is more than the ${notional_usd:,.2f} asked for"\n'
)


@dataclass(frozen=True)
class Incident:
    """The run that went wrong."""

    user: str
    stdout: str
    value_usd: float
    good_runs: int
    ledger_before: Path


class Story:
    """One telling; `services` are stopped at its end, whatever happens."""

    def __init__(self, directory: Path, console: Console, *, is_kept: bool, has_phoenix: bool) -> None:
        self.directory = directory
        self.voice = Narrator(console, STEPS)
        self.is_kept = is_kept
        self.has_phoenix = has_phoenix
        self.ledger = directory / "ledger.sqlite"
        self.environ = clean_environ()
        self.services: list[Service] = []
        self.up: Backend | None = None
        self.server: Service | None = None

    def run(self, *argv: str, **environ: str) -> Done:
        """Run a command in the working folder."""
        with self.voice.wait(argv[0]):
            return run_command(argv, cwd=self.directory, environ={**self.environ, **environ})

    def make_agent_command(self, user: str) -> list[str]:
        """The agent, as it is started with and without recording."""
        return ["python", SCRIPT, "--user", user, REQUEST]

    def run_spanreplay(self, *arguments: str) -> Done:
        """Run a `spanreplay` command that must succeed."""
        done = self.run("spanreplay", *arguments)
        if done.status != 0:
            raise DemoFailed(done.describe())
        return done

    def start_services(self) -> None:
        """(1) The model server, and collector, store, replay service and Phoenix in one process."""
        self.voice.start_step("Start a model server, and `spanreplay up` to keep the recordings")
        self.up = Backend(self.directory, self.environ, has_phoenix=self.has_phoenix)
        self.services.append(self.up.service)
        port_file = self.directory / "model.port"
        argv = [sys.executable, "-m", "spanreplay_service.demo.server", "--port-file", str(port_file)]
        argv += ["--log", str(self.directory / "decisions.jsonl")]
        log = self.directory / "model.log"
        self.server = Service("the model server", argv, cwd=self.directory, environ=self.environ, log=log)
        self.services.append(self.server)
        with self.voice.wait("waiting for the services"):
            self.server.wait_until(port_file.exists, timeout_s=SERVER_TIMEOUT_S)
            self.up.wait_ready()
        self.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{port_file.read_text()}/v1"
        self.environ["OPENAI_API_KEY"] = "none-needed"
        self.environ.update(self.up.environ)
        self.voice.say(f"model server  {self.environ['OPENAI_BASE_URL']}")
        self.voice.say(f"collector     {self.environ['OTEL_EXPORTER_OTLP_ENDPOINT']}")
        self.voice.say(f"recordings    {self.environ['SPANREPLAY_ENDPOINT']}")
        self.voice.say(f"Phoenix       {self.up.phoenix_url or 'not started'}")

    def record_until_incident(self) -> Incident:
        """(2) The same request of several customers, until one order is far too large."""
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
            style = "bold red" if is_bad else "dim"
            self.voice.console.print(f"       {user}  {done.stdout.splitlines()[-1]}", style=style, highlight=False)
            if is_bad:
                self.voice.say("Exit status 0, HTTP 200, no error anywhere. The dollars were read as shares.")
                return Incident(user, done.stdout, value, number, before)
        raise DemoFailed(f"no order went wrong in {RUNS_MAX} runs; the model server's deck should hold one in 8")

    def find_run(self, incident: Incident) -> str:
        """(3) The run id, by customer and tool; waits until the recording has arrived in the store."""
        self.voice.start_step(
            f"The ticket: customer {incident.user} lost ${incident.value_usd:,.0f} in shares. Find the run"
        )
        arguments = ["ls", "--user", incident.user, "--tool", "place_order"]
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while True:
            found: list[Json] = json.loads(self.run_spanreplay(*arguments, "--json").stdout)
            if found and found[0].get("status") != "incomplete":
                break
            if time.monotonic() > deadline:
                state = f"it is {found[0].get('status')!r}" if found else "it is not there"
                raise DemoFailed(
                    f"the run of {incident.user} did not arrive in the store within {ARRIVAL_TIMEOUT_S:.0f} s: {state}"
                )
        self.voice.show_command(["spanreplay", *arguments])
        self.voice.show_output(self.run_spanreplay(*arguments).stdout)
        self.voice.check(len(found) == 1, "one run of this customer, complete", f"ls --json gave {len(found)} runs")
        return str(found[0]["run_id"])

    def show_run(self, run_id: str) -> str:
        """(4) Every call of the run; the address of its page in Phoenix, or nothing."""
        self.voice.start_step("See what happened: every call, with its request and its response")
        self.voice.show_command(["spanreplay", "show", run_id])
        self.voice.show_output(self.run_spanreplay("show", run_id).stdout)
        shown: Json = json.loads(self.run_spanreplay("show", run_id, "--json").stdout)
        orders = [c["request"]["arguments"] for c in shown["calls"] if c["name"] == "place_order"]
        self.voice.check(
            [order["quantity"] for order in orders] == [NOTIONAL_USD],
            "the model asked place_order for 1,200 shares; the tool did as it was told",
            f"place_order was called with {orders!r}",
        )
        return str(shown["run"].get("phoenix") or "")

    def replay(self, run_id: str, incident: Incident, *plan: str, **environ: str) -> tuple[Done, Json]:
        """Replay the run against the agent as it is now; the verdict is read from a file."""
        report = self.directory / "verdict.json"
        report.unlink(missing_ok=True)
        command = ["replay", run_id, *plan, "--json", str(report)]
        agent = self.make_agent_command(incident.user)
        note = " ".join(f"{name}={Path(value).name}" for name, value in environ.items())
        self.voice.show_command(["spanreplay", "replay", run_id, *plan, "--", *agent], note)
        done = self.run("spanreplay", *command, "--", *agent, **environ)
        if not report.exists():
            raise DemoFailed(f"the replay gave no verdict\n{done.describe()}")
        self.voice.show_output(done.stderr)
        verdict: Json = json.loads(report.read_text())
        return done, verdict

    def replay_offline(self, run_id: str, incident: Incident) -> None:
        """(5) Without a model server, against the same code: identical, and nothing is touched."""
        self.voice.start_step("Stop the model server and replay the run: no model, no tool, no order")
        assert self.server is not None
        self.server.stop()
        before = _hash_file(self.ledger)
        done, verdict = self.replay(run_id, incident)
        self.voice.check(
            done.status == 0 and verdict["verdict"] == "identical", "the verdict is identical", _tell(verdict)
        )
        self.voice.check(done.stdout == incident.stdout, "the agent printed the same bytes again", done.stdout)
        counts = verdict["counts"]
        self.voice.check(
            counts["live"] == 0 and verdict["tokens"]["live"] == 0 and not verdict["sockets_denied"],
            f"{counts['served']} calls served from the recording, 0 live, 0 sockets, 0 tokens paid",
            _tell(verdict),
        )
        self._check_ledger(before)

    def replay_with_tools(self, run_id: str, incident: Incident) -> None:
        """(6) The recorded answers of the model with today's tools, on a copy of the ledger."""
        self.voice.start_step("Replay the model's answers with the real tools, on a scratch copy of the ledger")
        before = _hash_file(self.ledger)
        scratch = self._make_scratch(incident)
        done, verdict = self.replay(run_id, incident, "--live", "tool:*", LEDGER=str(scratch))
        self.voice.check(
            done.status == 0 and verdict["verdict"] == "identical",
            "the bug happens again, on demand",
            _tell(verdict),
        )
        value = _read_last_order(scratch)
        self.voice.check(value > NOTIONAL_USD, f"the scratch ledger has an order of ${value:,.2f}", f"it is {value!r}")
        self._check_ledger(before)

    def fix_agent(self) -> None:
        """(7) The guard, as a diff."""
        self.voice.start_step("Put a guard into place_order")
        path = self.directory / SCRIPT
        old = path.read_text(encoding="utf-8")
        if old.count(_GUARD_AFTER) != 1:
            raise DemoFailed(f"{path} has no single line {_GUARD_AFTER.strip()!r}; was it edited? Run the demo again")
        new = old.replace(_GUARD_AFTER, _GUARD_AFTER + _GUARD)
        path.write_text(new, encoding="utf-8")
        self.voice.show_diff(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))

    def prove_fix(self, run_id: str, incident: Incident) -> None:
        """(8) The same replay with the guard: its refusal is the only cause of any difference."""
        self.voice.start_step("Replay the same run against the fixed code")
        before = _hash_file(self.ledger)
        scratch = self._make_scratch(incident)
        done, verdict = self.replay(run_id, incident, "--live", "tool:*", LEDGER=str(scratch))
        self.voice.check(
            done.status == 3 and verdict["verdict"] == "diverged", "the verdict is diverged", _tell(verdict)
        )
        causes = [(d["kind"], d["boundary"]) for d in verdict["divergences"] if not d["downstream"]]
        self.voice.check(
            causes == [("output_changed", "tool:place_order")],
            "one cause: place_order now answers differently",
            _tell(verdict),
        )
        blamed = [d.get("cause") for d in verdict["divergences"] if not d["downstream"]]
        self.voice.check(
            blamed == [f"{SCRIPT} has changed since the recording"],
            f"and why: {SCRIPT} has changed since the recording",
            _tell(verdict),
        )
        effects = {d["boundary"] for d in verdict["divergences"] if d["downstream"]}
        counts = verdict["counts"]
        self.voice.check(
            effects <= {"process:stdout"} and not (counts["changed"] or counts["extra"] or counts["missing"]),
            "one consequence: what the customer reads; every other call is the same",
            _tell(verdict),
        )
        self.voice.check("order refused" in done.stdout, f"now: {done.stdout.splitlines()[-1]}", done.stdout)
        has_order = _read_last_order(scratch) > NOTIONAL_USD
        self.voice.check(not has_order, "the scratch ledger has no such order", "it has one")
        self._check_ledger(before)

    def _check_ledger(self, sha256: str) -> None:
        is_same = _hash_file(self.ledger) == sha256
        self.voice.check(is_same, "the real ledger is untouched", f"{self.ledger} has changed")

    def _make_scratch(self, incident: Incident) -> Path:
        scratch = self.directory / "ledger.scratch.sqlite"
        shutil.copyfile(incident.ledger_before, scratch)
        return scratch

    def tell_end(self, incident: Incident, link: str, duration_s: float) -> None:
        """What happened and what to do next."""
        decision = json.loads((self.directory / "decisions.jsonl").read_text().splitlines()[-1])
        self.voice.console.print(f"\n[bold]What happened[/]  ({duration_s:.0f} s)")
        self.voice.say(
            f"{incident.good_runs + 1} recorded runs, {incident.good_runs} good; the last sold 1,200 shares."
        )
        self.voice.say(
            f"The server's own log knows why: in a batch of {decision['batch_size']} it added in another order, "
            f"and the margin between two readings was {decision['margin']:+.1e}."
        )
        self.voice.say("Run it again and it is almost always fine: the recording is the only evidence.")
        self.voice.console.print("\n[bold]Next[/]")
        if self.is_kept and self.up is not None:
            exports = " ".join(f"{name}={value}" for name, value in self.up.environ.items())
            self.voice.say(f"look around:    cd {self.directory}; export {exports}; spanreplay ls")
            self.voice.say(f"in Phoenix:     {link or 'not started'}")
            self.voice.say(f"still running:  spanreplay up; end it: kill {self.up.service.pid}")
        else:
            self.voice.say("look around:    python -m spanreplay_service.demo --keep leaves everything running")
        settings = [f"{name}={self.environ[name]}" for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY")]
        replay = ["spanreplay", "replay", BUNDLE, "--", *self.make_agent_command(incident.user)]
        self.voice.say(f"without server: cd {self.directory}; {' '.join(settings)} {shlex.join(replay)}")
        self.voice.say("your own agent: spanreplay up, then opentelemetry-instrument python agent.py")

    def tell(self) -> None:
        """The whole story. Raises: DemoFailed."""
        started = time.monotonic()
        self.start_services()
        incident = self.record_until_incident()
        run_id = self.find_run(incident)
        link = self.show_run(run_id)
        self.replay_offline(run_id, incident)
        self.replay_with_tools(run_id, incident)
        self.fix_agent()
        self.prove_fix(run_id, incident)
        self.run_spanreplay("export", run_id, "-o", BUNDLE)
        self.tell_end(incident, link, time.monotonic() - started)

    def close(self, *, has_failed: bool) -> None:
        """Stop what was started; `up` stays after a success with --keep."""
        for service in reversed(self.services):
            if self.is_kept and not has_failed and self.up is not None and service is self.up.service:
                service.let_go()
            else:
                service.stop()


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_last_order(ledger: Path) -> float:
    with closing(sqlite3.connect(ledger)) as db:
        row = db.execute("SELECT value FROM orders ORDER BY id DESC LIMIT 1").fetchone()
    return float(row[0]) if row else 0.0


def _tell(verdict: Json) -> str:
    shown = {name: verdict.get(name) for name in ("verdict", "counts", "divergences", "reasons", "error")}
    return "the verdict: " + json.dumps(shown, indent=2)


def prepare_folder(directory: Path) -> None:
    """An empty working folder with the agent and its ledger.

    Raises: DemoFailed if the folder holds something that is not an earlier demo's.
    """
    if directory.exists():
        if any(directory.iterdir()) and not (directory / MARKER).exists():
            raise DemoFailed(f"{directory} is not empty and not a demo's; name another with --dir")
        shutil.rmtree(directory)
    (directory / "agent").mkdir(parents=True)
    (directory / MARKER).write_text("made by python -m spanreplay_service.demo; may be deleted\n")
    shutil.copyfile(AGENT / "trading_agent.py", directory / SCRIPT)
    with closing(sqlite3.connect(directory / "ledger.sqlite")) as db:
        db.executescript((AGENT / "ledger.sql").read_text(encoding="utf-8"))


def _check_packages() -> None:
    missing = [name for name in ("langgraph", "langchain_openai") if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(
            f"not installed: {', '.join(missing)}; run make setup, or pip install langgraph langchain-openai"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Tell the story; exit status 1 if a step fails."""
    parser = argparse.ArgumentParser(
        prog="python -m spanreplay_service.demo",
        description="Record the $190,000 incident, replay it, prove the fix",
    )
    parser.add_argument("--keep", action="store_true", help="leave `spanreplay up` running at the end")
    parser.add_argument("--dir", type=Path, default=Path(".demo"), help="working folder, emptied first (.demo)")
    parser.add_argument("--no-phoenix", action="store_true", help="start without Phoenix")
    args = parser.parse_args(argv)
    console = Console(soft_wrap=True)
    story = Story(args.dir.absolute(), console, is_kept=args.keep, has_phoenix=not args.no_phoenix)
    has_failed = True
    try:
        _check_packages()
        prepare_folder(story.directory)
        story.tell()
        has_failed = False
    except DemoFailed as exc:
        console.print(f"\n     ✗ step {story.voice.step} failed", style="bold red", highlight=False)
        console.print(str(exc), highlight=False, markup=False)
        console.print(f"     logs: {story.directory}", highlight=False, markup=False)
    except KeyboardInterrupt:
        console.print("\n     stopped", style="bold red")
    finally:
        story.close(has_failed=has_failed)
    sys.exit(1 if has_failed else 0)
