"""Agents that read the clock and random sources get the recorded values in a replay, even months later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from support.replaying import Workplace, assert_same

CALL = """
import spanreplay

@spanreplay.boundary("tool", name="book", effect="read")
def book(day):
    return f"booked {day}"
"""

EVERYTHING = (
    CALL
    + """
import asyncio, concurrent.futures, dataclasses, datetime, os, random, secrets, time, uuid
from datetime import date, timezone
from zoneinfo import ZoneInfo

print(time.time(), time.time_ns(), time.monotonic(), time.monotonic_ns(), time.perf_counter(), time.process_time())
print(datetime.datetime.now(), datetime.datetime.now(timezone.utc), datetime.datetime.now(tz=ZoneInfo("Asia/Tokyo")))
print(datetime.datetime.today(), date.today(), type(datetime.datetime.now()) is datetime.datetime)
print(time.localtime(), time.gmtime(), time.ctime(), time.asctime(), time.strftime("%H:%M:%S %Z"))
cards = list(range(20))
random.shuffle(cards)
print(cards, random.random(), random.randint(1, 10**9), random.uniform(0, 1), random.gauss(0, 1), random.randbytes(6))
print(random.choice("abcdefghij"), random.choices(cards, k=5), random.sample(cards, 5), random.getrandbits(64))
print(random.Random().random(), random.SystemRandom().random(), random.SystemRandom().choice(cards))
random.seed()
print(random.random())
print(uuid.uuid4(), uuid.uuid1(), os.urandom(8), secrets.token_hex(), secrets.randbelow(10**12), secrets.choice(cards))

class Timer:
    clock = time.perf_counter

@dataclasses.dataclass
class Order:
    id: uuid.UUID = dataclasses.field(default_factory=uuid.uuid4)
    at: float = dataclasses.field(default_factory=time.time)

print(Timer().clock(), Order())
print(book(str(date.today())), time.time_ns(), time.time_ns())

async def worker(n):
    await asyncio.sleep(0)
    return n, datetime.datetime.now(), uuid.uuid4()

async def main():
    for each in await asyncio.gather(*map(worker, range(5))):
        print(*each)

asyncio.run(main())
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    print(*pool.map(lambda n: (n, random.random()), range(8)))
"""
)


def test_s55_every_clock_and_random_source_replays_as_read(workplace: Workplace) -> None:
    """Time, dates, random numbers, UUIDs and secrets are as recorded, in tasks and threads too."""
    agent = workplace.write("agent.py", EVERYTHING)
    recorded = workplace.record(agent)
    assert workplace.recording().completeness().is_complete
    assert_same(workplace.replay(agent), recorded.stdout)


NEXT_TUESDAY = (
    CALL
    + """
import datetime
today = datetime.date.today()
print(book(str(today + datetime.timedelta(days=(1 - today.weekday()) % 7 or 7))))
"""
)


LATER = """
import time
AHEAD = {days} * 86400
real_time, real_time_ns = time.time, time.time_ns

def pre_instrument():
    time.time = lambda: real_time() + AHEAD
    time.time_ns = lambda: real_time_ns() + AHEAD * 10**9
"""


def later(workplace: Workplace, days: int) -> str:
    """The PYTHONPATH of a process whose clock is set ahead by some days, below all patches."""
    folder = workplace.path / "later"
    described = folder / "later-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / "later.py").write_text(LATER.format(days=days), encoding="utf-8")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n", encoding="utf-8")
    points = "[opentelemetry_pre_instrument]\nlater = later:pre_instrument\n"
    (described / "entry_points.txt").write_text(points, encoding="utf-8")
    return str(folder)


def test_s55_replayed_three_months_later_resolves_the_same_date(workplace: Workplace) -> None:
    """An agent that books "next Tuesday" books the same day when it is replayed after three months."""
    agent = workplace.write("agent.py", NEXT_TUESDAY)
    recorded = workplace.record(agent)
    recording = workplace.recording()
    ahead = later(workplace, days=90)
    assert workplace.record(agent, PYTHONPATH=ahead).stdout != recorded.stdout
    assert_same(workplace.replay(agent, source=recording.run_id, PYTHONPATH=ahead), recorded.stdout)


def test_replay_reads_go_on_where_the_recording_ends(workplace: Workplace) -> None:
    """One extra read is one divergence at its place; the clock continues from the last recorded value."""
    source = CALL + "import sys, time\nbook('a')\nfor _ in range(int(sys.argv[1])): print(time.time())\n"
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, "2")
    replayed = workplace.replay(agent, "4")
    assert replayed.status == 3
    assert replayed.causes() == [("extra_call", "clock:time.time")]
    assert "agent.py:" in replayed.verdict["divergences"][0]["code"]
    times = [float(line) for line in replayed.stdout.split()]
    assert replayed.stdout.startswith(recorded.stdout)
    assert times == sorted(times)
    assert times[-1] - times[1] < 60


def test_replay_that_reads_less_than_recorded_is_not_identical(workplace: Workplace) -> None:
    """A recorded read that isn't made is a divergence, even though the output is the same."""
    source = CALL + "import sys, time\nbook('a')\nfor _ in range(int(sys.argv[1])): time.time()\n"
    agent = workplace.write("agent.py", source)
    workplace.record(agent, "3")
    replayed = workplace.replay(agent, "1")
    assert replayed.status == 3
    assert replayed.causes() == [("missing_call", "clock:time.time")]
    assert workplace.replay(agent, "1", options=["--live", "clock:*"]).status == 0


def test_reads_inside_a_tool_are_kept_apart(workplace: Workplace) -> None:
    """They need not be served, because the body does not run in a replay; another number of them is no difference."""
    source = CALL.replace("    return", "    import time; time.time()\n    return")
    source += "import time\nbook(1); print(time.time())\n"
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    assert workplace.recording().root.manifest["reads"]["count"] == 2
    assert_same(workplace.replay(agent), recorded.stdout)
    twice = workplace.write("agent.py", source.replace("time.time()\n", "time.time(); time.time()\n", 1))
    assert_same(workplace.replay(twice, options=("--rerun", "tool")), recorded.stdout)


def test_clock_recording_can_be_switched_off(workplace: Workplace) -> None:
    """With SPANREPLAY_RECORD_CLOCK=false nothing is recorded, and a replay reads the real clock."""
    agent = workplace.write("agent.py", CALL + "import time\nbook(1); time.time()\n")
    workplace.record(agent, SPANREPLAY_RECORD_CLOCK="false")
    assert "reads" not in workplace.recording().root.manifest
    assert workplace.replay(agent).verdict["verdict"] == "identical"


SECRET = CALL + "import secrets, sys\nsys.stderr.write(secrets.token_hex(16))\nbook(1)\n"


def test_secret_values_are_sealed(workplace: Workplace) -> None:
    """A session key that the agent makes and prints is nowhere in the recording; with another key a new one is made."""
    agent = workplace.write("agent.py", SECRET)
    made = workplace.record(agent).stderr[-32:]
    assert len(bytes.fromhex(made)) == 16
    files = [p for p in (workplace.path / ".spanreplay").rglob("*") if p.is_file()]
    assert [p for p in files if made.encode() in p.read_bytes()] == []
    assert made in workplace.replay(agent).stderr
    elsewhere = workplace.replay(agent, SPANREPLAY_REDACT_KEY=str(workplace.path / "other.key"))
    assert elsewhere.status == 0, elsewhere.stderr
    assert made not in elsewhere.stderr
    named = [each["names"] for each in elsewhere.verdict["not_compared"] if "another redaction key" in each["why"]]
    assert named == [["random:secrets.token_hex"]]
    assert "values of random:secrets.token_hex" in elsewhere.stderr


def test_a_secret_value_that_leaves_the_agent_diverges_without_the_key(workplace: Workplace) -> None:
    """The use of a value sealed with another key is compared, and the key is the cause."""
    agent = workplace.write("agent.py", CALL + "import secrets\nbook(secrets.randbelow(10**12))\n")
    workplace.record(agent)
    assert workplace.replay(agent).status == 0
    elsewhere = workplace.replay(agent, SPANREPLAY_REDACT_KEY=str(workplace.path / "other.key"))
    assert elsewhere.status == 3
    assert elsewhere.causes()[0] == ("changed_call", "tool:book")
    assert "random:secrets.randbelow gave new values: the recorded ones are sealed with another key" in elsewhere.stderr
    assert "SPANREPLAY_REDACT_KEY" in elsewhere.verdict["divergences"][0]["hint"]


def test_a_killed_run_replays_its_reads_up_to_the_last_call(workplace: Workplace) -> None:
    """Reads are written with calls: after kill -9, the reads before the last call are there."""
    source = CALL + "import os, time\nprint(time.time(), flush=True)\nbook(1)\n"
    source += "if not os.getenv('STAY'): os.kill(os.getpid(), 9)\n"
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, status=-9)
    replayed = workplace.replay(agent, STAY="1")
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr


def test_s48_a_killed_run_has_what_other_threads_had_read(workplace: Workplace) -> None:
    """A call is written with what every thread had read before it: it may pass on what another one has drawn."""
    source = CALL + "import os, threading, time, uuid\ndrawn = []\n"
    source += "drawing = threading.Thread(target=lambda: drawn.append((uuid.uuid4(), time.time())))\n"
    source += "drawing.start()\ndrawing.join()\nprint(book(str(drawn)))\n"
    source += "if not os.getenv('STAY'): os.kill(os.getpid(), 9)\n"
    workplace.write("agent.py", source)
    workplace.record("agent.py", status=-9)
    replayed = workplace.replay("agent.py", STAY="1")
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr
    assert (replayed.verdict["divergences"], replayed.verdict["counts"]["exact"]) == ([], 1)


MODELS = (
    CALL
    + """
import datetime, pickle, time, uuid
from pydantic import BaseModel, Field

class Order(BaseModel):
    id: uuid.UUID = Field(default_factory=uuid.uuid4)
    at: datetime.datetime = Field(default_factory=datetime.datetime.now)

class Moment(datetime.datetime):
    pass

print(Order(), type(Moment.now()).__name__, type(Moment.now(datetime.timezone.utc)).__name__)
print(pickle.loads(pickle.dumps(time.time))() > 0, isinstance(datetime.datetime.now(), datetime.date))
book(1)
"""
)


def test_patched_types_stay_what_they_are(workplace: Workplace) -> None:
    """Pydantic fields, datetime subclasses and pickled functions work as without a recording."""
    agent = workplace.write("agent.py", MODELS)
    recorded = workplace.record(agent)
    assert "Moment Moment" in recorded.stdout
    assert "True True" in recorded.stdout
    assert_same(workplace.replay(agent), recorded.stdout)


@pytest.mark.parametrize("library", ["freezegun", "time_machine"])
def test_other_clock_patchers_do_not_crash(workplace: Workplace, library: str) -> None:
    """freezegun patches over our patches; time-machine finds the originals. A replay is given the travelled time."""
    pytest.importorskip(library)
    use = {
        "freezegun": "import freezegun\nwith freezegun.freeze_time('2020-01-01'):\n",
        "time_machine": "import time_machine\nwith time_machine.travel('2020-01-01 00:00Z', tick=False):\n",
    }[library]
    source = CALL + "import time, datetime\ntime.time()\n" + use + "    print(time.time())\nbook(1)\n"
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    assert float(recorded.stdout) == 1577836800.0
    assert workplace.recording().completeness().reasons == ()
    assert_same(workplace.replay(agent), recorded.stdout)


def test_clock_is_recorded_after_time_machine(workplace: Workplace) -> None:
    """The clock is recorded where time-machine is imported, before and after its time travel."""
    pytest.importorskip("time_machine")
    source = CALL + (
        "import time, datetime, time_machine\n"
        "print(time.time(), time.time_ns())\n"
        "with time_machine.travel('2020-01-01 00:00Z'):\n"
        "    print(datetime.datetime.now(), datetime.date.today(), time.strftime('%Y'))\n"
        "print(datetime.datetime.now(), time.localtime(), time.time())\n"
        "book(1)\n"
    )
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    assert workplace.recording().completeness().reasons == ()
    assert_same(workplace.replay(agent), recorded.stdout)


def test_reads_travel_as_one_text_with_the_next_call(workplace: Workplace) -> None:
    """Clock reads aren't separate spans: they are an attribute of the lane's next call."""
    source = CALL + "import time\nfor _ in range(100): time.time_ns()\nbook(1)\n"
    workplace.record(workplace.write("agent.py", source))
    recording = workplace.recording()
    assert len(recording.calls) == 1
    segments: list[Any] = json.loads(recording.calls[0].reads)
    assert segments[0][0] == "main"
    assert [len(row) for row in segments[0][1]] == [102]
    assert len(recording.calls[0].reads) < 1200


def test_the_clock_of_libraries_is_left_alone(workplace: Workplace) -> None:
    """Asyncio and OpenTelemetry read the real clock, in a replay too."""
    source = CALL + "import asyncio\nasyncio.run(asyncio.sleep(0.01))\nbook(1)\n"
    workplace.record(workplace.write("agent.py", source))
    recording = workplace.recording()
    assert recording.calls[0].reads == ""
    assert recording.root.manifest["reads"] == {"count": 0}
    assert Path(workplace.path / ".spanreplay").is_dir()


STATEMENTS = """
import time
import sqlalchemy as sa

engine = sa.create_engine("sqlite:///orders.db")
tables = sa.MetaData()
at = sa.Column("at", sa.Float, default=time.time)
orders = sa.Table("orders", tables, sa.Column("id", sa.Integer, primary_key=True), at)
tables.create_all(engine)
with engine.begin() as connection:
    connection.execute(orders.insert())
    print(connection.execute(sa.select(orders.c.at)).scalar())
"""


def test_s55_a_date_that_a_library_takes_for_the_agent_is_the_agents_and_its_stopwatch_is_not(
    workplace: Workplace,
) -> None:
    """SQLAlchemy calls the agent's column default, and times the compilation of its own statements."""
    agent = workplace.write("agent.py", STATEMENTS)
    recorded = workplace.record(agent)
    (workplace.path / "orders.db").unlink()
    reads = "".join(call.reads for call in workplace.recording().calls)
    assert '"time.time"' in reads
    assert '"time.perf_counter of libraries"' in reads
    assert '"time.perf_counter"' not in reads
    assert workplace.replay(agent).stdout == recorded.stdout


LOGGING = (
    CALL
    + """
import logging, sys, time
from concurrent.futures import ThreadPoolExecutor
from tenacity import before_sleep_log, retry, stop_after_attempt, wait_random

form = "%(asctime)s.%(msecs)03d %(relativeCreated)d %(process)d %(threadName)s %(name)s %(message)s"
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=form)
log = logging.getLogger("agent")
attempts = []

@retry(wait=wait_random(0.001, 0.02), stop=stop_after_attempt(5), before_sleep=before_sleep_log(log, logging.WARNING))
def flaky():
    attempts.append(1)
    if len(attempts) < 3:
        raise ConnectionError("not yet")
    return "there"

log.info("started")
log.info(flaky())
with ThreadPoolExecutor(1) as pool:
    pool.submit(log.info, "from a pool").result()
book(1)
log.info("after the last call")
"""
)


def test_s55_log_records_show_when_they_were_made(workplace: Workplace) -> None:
    """Time, process and thread in log records, and the waits of retries, are as recorded."""
    agent = workplace.write("agent.py", LOGGING)
    recorded = workplace.record(agent)
    assert recorded.stdout.count("agent Retrying") == 2
    assert_same(workplace.replay(agent), recorded.stdout)


def test_s55_records_that_are_logged_in_a_replay_only_differ_in_nothing_else(workplace: Workplace) -> None:
    """An extra log record shows the replay's clock, which continues from the recorded time; it is no divergence."""
    source = CALL + "import logging, sys\nlogging.basicConfig(stream=sys.stderr, format='%(created)f %(message)s')\n"
    agent = workplace.write("agent.py", source + "logging.warning('one')\nbook(1)\n")
    recorded = workplace.record(agent)
    workplace.write("agent.py", source + "logging.warning('one')\nlogging.warning('two')\nbook(1)\n")
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    first, second = (line.split() for line in replayed.stderr.splitlines()[:2])
    assert first[0] == recorded.stderr.split()[0]
    assert 0 <= float(second[0]) - float(first[0]) < 60


PICKS: Final = """
import random, spanreplay

@spanreplay.boundary("tool", effect="read")
def show(value):
    return "seen"

things = list("abcdefgh")
picked = {
    "choice": lambda: random.choice(things),
    "choices": lambda: random.choices(things, k=3),
    "sample": lambda: random.sample(things, 3),
    "shuffle": lambda: random.shuffle(things),
}["NAME"]()
print("picked", show(1))
"""


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("choice", 'list("abcdefgh")', "[1]"),
        ("choices", 'list("abcdefgh")', "[1]"),
        ("choices", "k=3", "k=5"),
        ("sample", "things, 3", "things, 5"),
        ("shuffle", 'list("abcdefgh")', "[1, 2]"),
    ],
)
def test_s28_picks_from_other_things_are_a_difference_and_no_exception(
    workplace: Workplace, name: str, before: str, now: str
) -> None:
    """A recorded pick that does not fit the changed program is named; the program gets one that fits."""
    source = PICKS.replace("NAME", name).replace(
        "random.choice(things)", "max(random.choice(things) for _ in range(9))"
    )
    workplace.record(workplace.write("agent.py", source))
    assert before in source
    replayed = workplace.replay(workplace.write("agent.py", source.replace(before, now)))
    assert replayed.stdout == "picked seen\n", replayed.stderr
    assert replayed.verdict["verdict"] == "diverged"
    assert replayed.verdict["divergences"][0]["boundary"] == f"random:random.{name}"
    assert "picks from fewer things" in replayed.verdict["divergences"][0]["message"]


IDS = """
from langsmith import traceable, uuid7
import spanreplay

@spanreplay.boundary("tool", name="ask")
def ask(text):
    return text.upper()

@traceable
def traced(text):
    return ask(text)

print(uuid7(), traced("who"), uuid7())
"""


def test_s55_ids_that_an_agent_asks_its_telemetry_for_replay(workplace: Workplace) -> None:
    """LangSmith draws ids for the agent, which sends them to others, and for its own reports, which nobody compares."""
    agent = workplace.write("agent.py", IDS)
    recorded = workplace.record(agent)
    assert_same(workplace.replay(agent), recorded.stdout)
