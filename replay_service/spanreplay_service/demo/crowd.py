"""The second half: the same agent as a service, 20 customers at once, and the one bad request among them.

 (9) serve the agent with FastAPI, send requests     (11) with everything stopped, replay that request alone
(10) stop everything, find it by customer and time   (12) replay it against the fixed code
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import httpx

from spanreplay_service.demo.stage import DemoFailed, Service
from spanreplay_service.demo.telling import (
    AGENT,
    ARRIVAL_TIMEOUT_S,
    NOTIONAL_USD,
    REQUEST,
    Json,
    Telling,
    hash_file,
    make_ledger,
)

USERS: Final = 20
STEPS: Final = 4
ASK_TIMEOUT_S: Final = 60.0
SERVICE_TIMEOUT_S: Final = 60.0
SCRIPTS: Final = ("trading_agent.py", "trading_service.py")
COMMAND: Final = ("python", "-m", "uvicorn", "trading_service:app", "--port", "0")
APP: Final = "trading_service:app"
_ADDRESS: Final = re.compile(r"running on (http://127\.0\.0\.1:\d+)")


@dataclass
class Order:
    """One customer's order; `lines` are the streamed lines of the response, the last one has the confirmation."""

    user: str
    at: datetime
    lines: list[str] = field(default_factory=list)
    confirmation: str = ""
    value_usd: float = 0.0

    def end(self) -> None:
        """Parse confirmation and value from the last line. Raises: ValueError, LookupError if it was truncated."""
        self.confirmation = str(json.loads(self.lines[-1])["confirmation"])
        self.value_usd = float(self.confirmation.rpartition("$")[2].replace(",", ""))

    @property
    def is_bad(self) -> bool:
        """Whether too much was sold."""
        return self.value_usd > NOTIONAL_USD


class Crowd:
    """Customers who send requests to a service at the same moment and read the streamed responses."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = 0
        self.open_max = 0
        self.arrivals: list[str] = []

    async def ask(self, users: list[str]) -> list[Order]:
        """Send all requests and return the orders. Raises: DemoFailed if one is not answered."""
        limits = httpx.Limits(max_connections=len(users))
        async with httpx.AsyncClient(
            base_url=self._url, timeout=ASK_TIMEOUT_S, limits=limits, trust_env=False
        ) as client:
            return await asyncio.gather(*(self._ask(client, user) for user in users))

    async def _ask(self, client: httpx.AsyncClient, user: str) -> Order:
        order = Order(user, datetime.now())
        body = {"user": user, "request": REQUEST}
        self._open += 1
        self.open_max = max(self.open_max, self._open)
        try:
            async with client.stream("POST", "/orders", json=body, headers={"baggage": f"user.id={user}"}) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    order.lines.append(line)
                    self.arrivals.append(user)
            order.end()
        except (httpx.HTTPError, ValueError, LookupError) as exc:
            raise DemoFailed(f"the service did not answer {user}: {exc!r}") from exc
        self._open -= 1
        return order

    def count_changes(self) -> int:
        """Number of lines that were followed by a line of another customer."""
        return sum(one != other for one, other in zip(self.arrivals, self.arrivals[1:], strict=False))


class ManyOrders(Telling):
    """One of many customers' orders goes wrong in an agent that runs as a service."""

    server: Service
    model: Service

    def prepare(self) -> None:
        """Set up the agent without the guard, its service, and a ledger with a position for every customer."""
        self.directory.mkdir()
        for name in SCRIPTS:
            shutil.copyfile(AGENT / name, self.directory / name)
        make_ledger(self.ledger)
        with closing(sqlite3.connect(self.ledger)) as db, db:
            db.executemany("INSERT INTO positions VALUES (?, 'ACME', 5000)", [(user,) for user in _list_users()])
        shutil.copyfile(self.ledger, self._ledger_before)

    def record_crowd(self) -> Order:
        """(9) Send the requests of all customers at once; return the order that is far too large."""
        self.voice.start_step(f"The same agent, still without the guard, as a service: {USERS} customers at once")
        self.model = self.start_model_server("--together", str(USERS))
        self.use_model_server(self.model)
        command = ["opentelemetry-instrument", *COMMAND]
        self.voice.show_command(command, f"in {self.directory.name}/")
        self.server = self.start_service("the agent's service", command, "service.log")
        with self.voice.wait("waiting for the service"):
            self.server.wait_until(lambda: self._find_address() != "", timeout_s=SERVICE_TIMEOUT_S)
        crowd = Crowd(self._find_address())
        with self.voice.wait("asking"):
            try:
                orders = asyncio.run(crowd.ask(_list_users()))
            except DemoFailed as exc:
                raise DemoFailed(f"{exc}\n{self.server.read_tail()}") from exc
        bad = [order for order in orders if order.is_bad]
        for order in orders:
            self.voice.show_order(order.user, order.confirmation, is_bad=order.is_bad)
        changes, lines = crowd.count_changes(), len(crowd.arrivals)
        self.voice.check(
            crowd.open_max == USERS, f"{USERS} answers were streamed at the same time", f"at most {crowd.open_max} were"
        )
        self.voice.check(
            changes > USERS,
            f"interleaved: of {lines} lines, {changes} were followed by a line of another customer",
            f"only {changes} of {lines} lines were followed by a line of another customer",
        )
        self.voice.check(len(bad) == 1, "one order of all of them went wrong", f"{len(bad)} did")
        self.voice.say("Twenty times HTTP 200, no error in the service's log.")
        return bad[0]

    def find_run(self, order: Order) -> str:
        """(10) Stop service and model server, then find the run id by customer and time."""
        self.voice.start_step(f"Stop service and model server. The ticket: customer {order.user}. Find the request")
        self.server.stop()
        self.model.stop()
        self.run_spanreplay("ship")  # spans that the service could not send within 5 s of its end on a busy machine
        run_id = self.find_one_run(order.user, "--user", order.user, "--around", f"{order.at:%H:%M}")
        shown = self.show(run_id)
        (response,) = [call for call in shown["calls"] if (call["kind"], call["name"]) == ("http", "response")]
        sent = str(response["request"]["arguments"]["body"]["text"])
        self.voice.check(sent.splitlines() == order.lines, "the recorded response is what the customer has read", sent)
        self._check_runs()
        self._export(run_id, str(shown["run"]["env"]["unit"]["process"]))
        return run_id

    def replay_alone(self, run_id: str) -> None:
        """(11) Replay the request alone, in a process that starts as the service did and opens no port."""
        self.voice.start_step("Replay that request alone: no service, no model, none of the other customers")
        before = hash_file(self.ledger)
        done, verdict = self.replay(run_id, COMMAND)
        self.check_offline(done, verdict)
        self.check_ledger(before)

    def prove_fix(self, run_id: str) -> None:
        """(12) Replay the same request with the guard and with real tools."""
        self.voice.start_step("Put the same guard into place_order, and replay the request against the fixed code")
        self.put_guard(self.directory / SCRIPTS[0])
        before = hash_file(self.ledger)
        scratch = self.copy_ledger(self._ledger_before)
        done, verdict = self.replay(run_id, COMMAND, "--live", "tool:*", LEDGER=str(scratch))
        self.check_fix(done, verdict, script=SCRIPTS[0], consequence="http:response")
        self.check_scratch(scratch)
        self.check_ledger(before)

    def tell_what_happened(self, order: Order, duration_s: float) -> None:
        """Summarize the second half."""
        self.voice.start_part(f"What happened  ({duration_s:.0f} s)")
        self.voice.say(f"{USERS} requests at the same time in one process are {USERS} complete runs.")
        self.voice.say(
            f"The one of {order.user} was found by customer and time and replayed alone; the fix is proved on it."
        )

    def _check_runs(self) -> None:
        """Wait until all runs have arrived, then check that each request is one run."""
        deadline = time.monotonic() + ARRIVAL_TIMEOUT_S
        while True:
            found: list[Json] = json.loads(self.run_spanreplay("ls", "--app", APP, "--json").stdout)
            runs = sorted((each["user_id"], each["status"], each["calls"]) for each in found)
            is_all = [run[0] for run in runs if run[1] == "ok"] == sorted(_list_users())
            if is_all or time.monotonic() > deadline:
                break
        self.voice.check(
            is_all and len({calls for _, _, calls in runs}) == 1,
            f"it is one of {USERS} runs: a run for each request, all complete, with as many calls each",
            f"found {runs}",
        )

    def _export(self, run_id: str, process_id: str) -> None:
        for each in (run_id, process_id):
            self.run_spanreplay("export", each)

    def _find_address(self) -> str:
        found = _ADDRESS.search(self.server.log.read_text(encoding="utf-8", errors="replace"))
        return found[1] if found else ""

    @property
    def _ledger_before(self) -> Path:
        return self.directory / "ledger.before.sqlite"


def _list_users() -> list[str]:
    return [f"u-{number}" for number in range(1, USERS + 1)]
