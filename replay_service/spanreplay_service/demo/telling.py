"""The base of both halves of the demo: commands in a folder, services, and checks of verdicts and of the ledger."""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from spanreplay_service.demo.narration import Narrator
from spanreplay_service.demo.stage import DemoFailed, Done, Service, run_command

Json = dict[str, Any]

NOTIONAL_USD: Final = 1200.0
REQUEST: Final = "sell $1,200 worth of ACME"
AGENT: Final = Path(__file__).parent / "agent"
SERVER_TIMEOUT_S: Final = 20.0
ARRIVAL_TIMEOUT_S: Final = 30.0
_GUARD_AFTER: Final = "        value = quantity * price\n"
_GUARD: Final = (
    "        if value > notional_usd:\n"
    '            return f"order refused: ${value:,.2f} is more than the ${notional_usd:,.2f} asked for"\n'
)


class Telling:
    """One half of the story in its own folder; the creator of the list `services` stops them."""

    def __init__(self, directory: Path, voice: Narrator, environ: dict[str, str], services: list[Service]) -> None:
        self.directory = directory
        self.voice = voice
        self.environ = environ
        self.services = services
        self.ledger = directory / "ledger.sqlite"
        self.decisions = directory / "decisions.jsonl"

    def run(self, *argv: str, **environ: str) -> Done:
        """Run a command in the folder."""
        with self.voice.wait(argv[0]):
            return run_command(argv, cwd=self.directory, environ={**self.environ, **environ})

    def run_spanreplay(self, *arguments: str) -> Done:
        """Run a `spanreplay` command. Raises: DemoFailed if it fails."""
        done = self.run("spanreplay", *arguments)
        if done.status != 0:
            raise DemoFailed(done.describe())
        return done

    def start_service(self, name: str, argv: Sequence[str], log: str) -> Service:
        """Start a background process; it is stopped at the end at the latest."""
        service = Service(name, argv, cwd=self.directory, environ=self.environ, log=self.directory / log)
        self.services.append(service)
        return service

    def start_model_server(self, *options: str) -> Service:
        """Start a model server; `use_model_server` waits until it is ready."""
        argv = [sys.executable, "-m", "spanreplay_service.demo.server", "--port-file", str(self._port_file)]
        return self.start_service("the model server", [*argv, "--log", str(self.decisions), *options], "model.log")

    def use_model_server(self, server: Service) -> None:
        """Wait until it listens, then point agents to it. Raises: DemoFailed with its log."""
        server.wait_until(self._port_file.exists, timeout_s=SERVER_TIMEOUT_S)
        self.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{self._port_file.read_text()}/v1"
        self.environ["OPENAI_API_KEY"] = "none-needed"

    def find_one_run(self, user: str, *arguments: str) -> str:
        """Return the id of the only run that `spanreplay ls` finds, once it has completely arrived in the store."""
        found: list[Json] = []
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while not found or found[0].get("status") == "incomplete":
            if time.monotonic() > deadline:
                state = f"it is {found[0].get('status')!r}" if found else "it is not there"
                raise DemoFailed(
                    f"the run of {user} did not arrive in the store within {ARRIVAL_TIMEOUT_S:.0f} s: {state}"
                )
            found = json.loads(self.run_spanreplay("ls", *arguments, "--json").stdout)
        self.voice.show_command(["spanreplay", "ls", *arguments])
        self.voice.show_output(self.run_spanreplay("ls", *arguments).stdout)
        self.voice.check(len(found) == 1, "one run of this customer, complete", f"ls --json gave {len(found)} runs")
        return str(found[0]["run_id"])

    def show(self, run_id: str) -> Json:
        """Show a run and check that the model ordered far too much."""
        self.voice.show_command(["spanreplay", "show", run_id])
        self.voice.show_output(self.run_spanreplay("show", run_id).stdout)
        shown: Json = json.loads(self.run_spanreplay("show", run_id, "--json").stdout)
        orders = [c["request"]["arguments"] for c in shown["calls"] if c["name"] == "place_order"]
        self.voice.check(
            [order["quantity"] for order in orders] == [NOTIONAL_USD],
            "the model asked place_order for 1,200 shares; the tool did as it was told",
            f"place_order was called with {orders!r}",
        )
        return shown

    def replay(self, run_id: str, command: Sequence[str], *plan: str, **environ: str) -> tuple[Done, Json]:
        """Replay a run against the current code; the verdict is read from a file."""
        report = self.directory / "verdict.json"
        report.unlink(missing_ok=True)
        note = " ".join(f"{name}={Path(value).name}" for name, value in environ.items())
        self.voice.show_command(["spanreplay", "replay", run_id, *plan, "--", *command], note)
        done = self.run("spanreplay", "replay", run_id, *plan, "--json", str(report), "--", *command, **environ)
        if not report.exists():
            raise DemoFailed(f"the replay gave no verdict\n{done.describe()}")
        self.voice.show_output(done.stderr)
        verdict: Json = json.loads(report.read_text())
        return done, verdict

    def check_offline(self, done: Done, verdict: Json) -> None:
        """Check that a replay was identical, with no live calls and no sockets."""
        self.voice.check(
            done.status == 0 and verdict["verdict"] == "identical", "the verdict is identical", tell(verdict)
        )
        counts = verdict["counts"]
        self.voice.check(
            counts["live"] == 0 and verdict["tokens"]["live"] == 0 and not verdict["sockets_denied"],
            f"{counts['served']} calls served from the recording, 0 live, 0 sockets, 0 tokens paid",
            tell(verdict),
        )

    def check_fix(self, done: Done, verdict: Json, *, script: str, consequence: str) -> None:
        """Check that the guard's refusal is the only cause of any difference, with one consequence."""
        self.voice.check(
            done.status == 3 and verdict["verdict"] == "diverged", "the verdict is diverged", tell(verdict)
        )
        causes = [d for d in verdict["divergences"] if not d["downstream"]]
        self.voice.check(
            [(d["kind"], d["boundary"]) for d in causes] == [("output_changed", "tool:place_order")],
            "one cause: place_order now answers differently",
            tell(verdict),
        )
        why = f"{script} has changed since the recording"
        self.voice.check([d.get("cause") for d in causes] == [why], f"and why: {why}", tell(verdict))
        effects = {d["boundary"] for d in verdict["divergences"] if d["downstream"]}
        counts = verdict["counts"]
        changed = 1 if consequence.startswith("http:") else 0  # a response is a call, printed text is not
        self.voice.check(
            effects == {consequence} and counts["changed"] == changed and not (counts["extra"] or counts["missing"]),
            "one consequence: what the customer reads; every other call is the same",
            tell(verdict),
        )

    def put_guard(self, path: Path) -> list[str]:
        """Put the guard into an agent and return the diff."""
        old = path.read_text(encoding="utf-8")
        if old.count(_GUARD_AFTER) != 1:
            raise DemoFailed(f"{path} has no single line {_GUARD_AFTER.strip()!r}; was it edited? Run the demo again")
        new = old.replace(_GUARD_AFTER, _GUARD_AFTER + _GUARD)
        path.write_text(new, encoding="utf-8")
        return list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2))

    def copy_ledger(self, source: Path) -> Path:
        """Copy a ledger to a scratch ledger."""
        scratch = self.directory / "ledger.scratch.sqlite"
        shutil.copyfile(source, scratch)
        return scratch

    def check_scratch(self, scratch: Path) -> None:
        """Check that the latest order is not too large."""
        has_order = read_last_order(scratch) > NOTIONAL_USD
        self.voice.check(not has_order, "the scratch ledger has no such order", "it has one")

    def check_ledger(self, sha256: str) -> None:
        """Check that the ledger is unchanged."""
        is_same = hash_file(self.ledger) == sha256
        self.voice.check(is_same, "the real ledger is untouched", f"{self.ledger} has changed")

    @property
    def _port_file(self) -> Path:
        return self.directory / "model.port"


def make_ledger(path: Path) -> None:
    """Create a fresh ledger."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((AGENT / "ledger.sql").read_text(encoding="utf-8"))


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_last_order(ledger: Path) -> float:
    """The value of the latest order, or 0."""
    with closing(sqlite3.connect(ledger)) as db:
        row = db.execute("SELECT value FROM orders ORDER BY id DESC LIMIT 1").fetchone()
    return float(row[0]) if row else 0.0


def tell(verdict: Json) -> str:
    """Format the parts of a verdict that explain a failed step."""
    shown = {name: verdict.get(name) for name in ("verdict", "counts", "divergences", "reasons", "error")}
    return "the verdict: " + json.dumps(shown, indent=2)
