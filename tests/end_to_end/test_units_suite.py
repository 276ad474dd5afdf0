"""A suite of units replays from one start of its application: each in a separate fork, with its own verdict.

SPANREPLAY_TEST_SUITE sets how many units are recorded and replayed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import httpx
import pytest

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import LONG_S, Workplace
from support.seeding import fixed_seed
from support.suites import Suite, replay_suite
from support.units import COMMAND, path_of, response_of, serve

UNITS: Final = int(os.environ.get("SPANREPLAY_TEST_SUITE", "20"))
AT_ONCE: Final = 40
STARTED: Final = "the application starts\n"

FASTAPI: Final = """
import logging, sys, time
from contextlib import asynccontextmanager
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from groq import AsyncGroq

sys.stderr.write("the application starts\\n")
log = logging.getLogger("app")
log.addHandler(logging.FileHandler("app.log"))
client = AsyncGroq()

async def ask(text):
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

@asynccontextmanager
async def lifespan(app):
    app.state.greeting = await ask("a greeting")
    app.state.since = time.time()
    await run_in_threadpool(len, "leaves an idle thread")
    yield

app = FastAPI(lifespan=lifespan)

@app.get("/ask/{text}")
async def answer(text: str):
    log.warning("asked %s", text)
    found = await ask(text)
    return {"greeting": app.state.greeting, "since": app.state.since, "now": time.time(), "answer": found}

@app.get("/work/{text}")
def work(text: str):
    return {"text": text, "lines": open("app.log").read().count(text)}
"""
FLASK: Final = """
import sys, uuid
from flask import Flask
from groq import Groq

sys.stderr.write("the application starts\\n")
client = Groq()

def ask(text):
    made = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

greeting = ask("a greeting")
app = Flask(__name__)

@app.get("/ask/<text>")
def answer(text):
    tags = " ".join({"red", "green", "blue", "cyan", "teal"})  # in the order of their hashes
    return {"greeting": greeting, "id": uuid.uuid4().hex, "answer": ask(f"{text} {tags}")}
"""
PLAIN: Final = """
from flask import Flask

app = Flask(__name__)

@app.get("/<text>")
def answer(text):
    return {"text": text}
"""
GUNICORN: Final = ("-m", "gunicorn", "app:app", "--workers", "1", "--threads", "8")
STARLETTE: Final = """
import sys
from contextlib import asynccontextmanager
from groq import Groq
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.routing import Route

sys.stderr.write("the application starts\\n")

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

@asynccontextmanager
async def lifespan(app):
    yield {"greeting": ask("a greeting")}

async def answer(request):
    found = await run_in_threadpool(ask, request.path_params["text"])
    return PlainTextResponse(request.state.greeting + found)

app = Starlette(routes=[Route("/ask/{text}", answer)], lifespan=lifespan)
"""
ASGI_AT: Final = "--port {port} --no-access-log"
SERVERS: Final = {
    "starlette": (STARLETTE, ("-m", "hypercorn", "app:app"), "--bind 127.0.0.1:{port}"),
    "fastapi": (FASTAPI, COMMAND, ASGI_AT),
    "flask": (FLASK, GUNICORN, "--bind 127.0.0.1:{port}"),
}


def _record(
    place: Workplace, paths: Sequence[str], command: Sequence[str], at: str, at_once: int = AT_ONCE
) -> list[Recording]:
    """Send concurrent requests for all paths to a server; return their runs, in the order of the paths."""
    with serve(place, command=command, at=at) as server:
        with ThreadPoolExecutor(at_once) as pool:
            answers = pool.map(lambda path: httpx.get(f"{server.url}{path}", timeout=LONG_S).status_code, paths)
            assert set(answers) == {200}
        server.stop()
    return _units(place, paths)


def _units(place: Workplace, paths: Sequence[str]) -> list[Recording]:
    found = {path_of(unit): unit for unit in place.recordings() if "unit" in unit.root.env}
    return [found[path] for path in paths]


def _replay(place: Workplace, *words: str, command: Sequence[str], at: str) -> Suite:
    """Run `spanreplay suite` with these options."""
    return replay_suite(place, *command, *at.format(port=1).split(), options=words)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.sampled(1)
def test_p4_many_units_replay_in_one_start(name: str, provider: Provider, tmp_path: Path) -> None:
    """Requests answered under load replay in forks of one start, each identical, without a provider."""
    source, command, at = SERVERS[name]
    place = Workplace(tmp_path, {**provider.environ(), **fixed_seed()})
    place.write("app.py", source)
    _record(place, [f"/ask/question-{number}." for number in range(UNITS)], command, at)
    provider.stop()
    suite = _replay(place, "--app", "app:app", "--limit", str(UNITS), "--jobs", "2", command=command, at=at)
    assert suite.status == 0, suite.stderr
    assert suite.report["counts"] == {"identical": UNITS}
    assert (suite.report["starts"], suite.stderr.count(STARTED)) == (1, 1)
    assert len({unit["replay_run_id"] for unit in suite.report["units"]}) == UNITS
    assert suite.stderr.splitlines()[-1].startswith(f"{UNITS:,} units: {UNITS:,} identical; 1 start of the application")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, list[Recording]]:
    """An application that has answered five requests; its provider is gone."""
    with Provider() as provider:
        place = Workplace(tmp_path_factory.mktemp("asked"), provider.environ())
        place.write("app.py", FASTAPI)
        paths = [*(f"/ask/question-{number}." for number in range(4)), "/work/question-9."]
        return place, _record(place, paths, COMMAND, ASGI_AT)


def _suite(place: Workplace, app: str, *words: str) -> Suite:
    """Replay the units with the application changed to this one, and change it back afterwards."""
    place.write("app.py", app)
    try:
        return _replay(place, *words, command=COMMAND, at=ASGI_AT)
    finally:
        place.write("app.py", FASTAPI)


def _change(number: int, line: str) -> str:
    """The application with an added line for one of its questions."""
    known = "    found = await ask(text)\n"
    return FASTAPI.replace(known, f"    if text == 'question-{number}.':\n        {line}\n{known}")


def _all_but(units: list[Recording], number: int, word: str) -> dict[str, str]:
    return {unit.run_id: word if at == number else "identical" for at, unit in enumerate(units)}


@pytest.mark.slow
def test_p4_a_changed_unit_is_named_and_the_others_are_identical(
    asked: tuple[Workplace, list[Recording]], tmp_path: Path
) -> None:
    """A handler that answers one request differently makes only that unit diverge, in text, JSON and JUnit XML."""
    place, units = asked
    junit = tmp_path / "units.xml"
    suite = _suite(place, _change(2, "return {}"), "--process", units[0].run_id, "--junit", str(junit))
    assert suite.status == 3, suite.stderr
    assert suite.words() == _all_but(units, 2, "diverged")
    (line,) = [line for line in suite.stderr.splitlines() if line.startswith("diverged")]
    assert units[2].run_id in line
    suites = ET.fromstring(junit.read_text(encoding="utf-8")).iter("testsuite")  # noqa: S314 -- our own output
    failed = [each for each in suites if each.get("failures") != "0"]
    (run_id,) = [each.get("value") for each in failed[0].iter("property") if each.get("name") == "run_id"]
    assert (len(failed), run_id) == (1, units[2].run_id)


@pytest.mark.slow
def test_n12_a_change_that_breaks_every_unit_is_one_finding(asked: tuple[Workplace, list[Recording]]) -> None:
    """A response with another member in each unit: one line for all of them, with their number and what differs."""
    place, units = asked
    suite = _suite(place, FASTAPI.replace('"since": app.state.since', '"since": 1'), "--process", units[0].run_id)
    assert suite.status == 3, suite.stderr
    (line,) = [line for line in suite.stderr.splitlines() if line.startswith("  ")]
    broken = list(suite.words().values()).count("diverged")
    assert broken > 1
    assert re.match(rf"  {broken} units: changed_call http:response: [\w.]+", line), line
    assert any(unit.run_id in line for unit in units)


ENDS: Final = {
    "killed": ("__import__('signal').raise_signal(9)", (), "the unit was ended by SIGKILL before it finished"),
    "hangs": ("while True: pass", ("--timeout", "20"), "no verdict after 20 s: the unit was stopped"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.sampled(1)
def test_p4_a_unit_that_ends_badly_touches_no_other(name: str, asked: tuple[Workplace, list[Recording]]) -> None:
    """A unit that kills its process, or never ends, is an error of its own: later units are replayed."""
    place, units = asked
    line, words, why = ENDS[name]
    suite = _suite(place, _change(1, line), "--process", units[0].run_id, "--jobs", "2", *words)
    assert suite.status == 1, suite.stderr
    assert suite.words() == _all_but(units, 1, "error")
    assert suite.report["starts"] == 1
    assert why in next(unit["error"] for unit in suite.report["units"] if unit["run_id"] == units[1].run_id)


@pytest.mark.slow
def test_p4_a_unit_that_leaves_the_process_is_told_from_the_others(asked: tuple[Workplace, list[Recording]]) -> None:
    """With `os._exit` in a handler, that unit's calls are missing, and the others are identical."""
    place, units = asked
    suite = _suite(place, _change(0, "__import__('os')._exit(7)"), "--process", units[0].run_id)
    assert suite.status == 3, suite.stderr
    assert suite.words() == _all_but(units, 0, "diverged")


@pytest.mark.slow
def test_p4_what_a_unit_writes_is_its_own(asked: tuple[Workplace, list[Recording]]) -> None:
    """Each fork has its own files, and files left open by the start continue there; the world stays as it was."""
    place, units = asked
    log = (place.path / "app.log").read_text(encoding="utf-8")
    marked = _change(3, "log.warning('question-9.')").replace("found = await", "log.warning('x'); found = await")
    suite = _suite(place, marked, "--process", units[0].run_id)
    assert suite.words()[units[4].run_id] == "identical", suite.stderr
    assert (place.path / "app.log").read_text(encoding="utf-8") == log


@pytest.mark.slow
def test_p4_a_start_that_leaves_a_thread_is_made_for_each_unit(asked: tuple[Workplace, list[Recording]]) -> None:
    """A fork wouldn't have the start's thread: each unit gets its own process, and the reason is stated."""
    place, units = asked
    ticking = "import threading\nthreading.Thread(target=threading.Event().wait, name='ticks', daemon=True).start()\n"
    named = [word for unit in units[:2] for word in ("--run", unit.run_id)]
    suite = _suite(place, ticking + FASTAPI, *named)
    assert suite.status == 0, suite.stderr
    assert suite.report["starts"] == 2
    why = "each unit is replayed in its own process: its start leaves a thread running (ticks), which no fork"
    assert why in suite.stderr


KEEPING: Final = (
    FASTAPI.replace(
        '    await run_in_threadpool(len, "leaves an idle thread")\n', "    await run_in_threadpool(connect)\n"
    )
    + """
import threading
import cryptography.hazmat.bindings._rust  # puts a library among the modules that is none

local = threading.local()

def connect():
    if not hasattr(local, "since"):
        local.since = time.time()
    return local.since

@app.get("/connected/{text}")
def connected(text: str):
    return {"text": text, "since": connect()}
"""
)


@pytest.mark.slow
def test_p4_a_start_whose_threads_keep_something_is_made_for_each_unit(provider: Provider, tmp_path: Path) -> None:
    """A connection kept by a pool's thread exists in a unit's own process, but not in a fork."""
    place = Workplace(tmp_path, provider.environ())
    place.write("app.py", KEEPING)
    units = _record(place, ["/connected/one", "/connected/two"], COMMAND, ASGI_AT, at_once=1)
    assert len({response_of(unit)["body"]["text"].partition("since")[2] for unit in units}) == 1
    provider.stop()
    suite = _replay(place, "--process", units[0].run_id, command=COMMAND, at=ASGI_AT)
    assert suite.words() == {unit.run_id: "identical" for unit in units}, suite.stderr
    assert "2 units, each replayed in its own process: a thread of a pool keeps" in suite.stderr
    assert "keeps something for itself (app.local), which no fork has" in suite.stderr


@pytest.mark.slow
def test_p4_a_start_that_differs_is_told_for_each_unit(asked: tuple[Workplace, list[Recording]]) -> None:
    """A start that makes another call or ends early makes all units diverge, and the report says where it ended."""
    place, units = asked
    changed = _suite(place, FASTAPI.replace("a greeting", "a farewell"), "--process", units[0].run_id)
    assert (changed.status, set(changed.words().values())) == (3, {"diverged"}), changed.stderr
    broken = _suite(place, "raise SystemExit('not today')\n", "--process", units[0].run_id)
    assert (broken.status, broken.report["counts"]) == (3, {"diverged": len(units)}), broken.stderr
    assert f"the application ended with exit status 1 after reaching 0 of {len(units)} units" in broken.stderr


@pytest.mark.slow
def test_p4_an_application_that_does_not_start_is_no_identical_one(provider: Provider, tmp_path: Path) -> None:
    """A failing start without calls makes each unit diverge, even though everything up to there was as recorded."""
    place = Workplace(tmp_path, provider.environ())
    place.write("app.py", PLAIN)
    units = _record(place, ["/a", "/b"], GUNICORN, SERVERS["flask"][2])
    place.write("app.py", f"{PLAIN}\nraise ImportError('not here')\n")
    suite = _replay(place, "--process", units[0].run_id, command=GUNICORN, at=SERVERS["flask"][2])
    assert (suite.status, suite.report["counts"]) == (3, {"diverged": 2}), suite.stderr
    assert suite.stderr.count("diverged     ") == suite.stderr.count("  raised: the agent raised ImportError") == 2


@pytest.mark.slow
def test_p4_a_unit_of_another_application_is_refused(provider: Provider, tmp_path: Path) -> None:
    """Units of two applications don't form a suite: one line names them, and says how to choose."""
    place = Workplace(tmp_path, provider.environ())
    place.write("app.py", PLAIN)
    place.write("other.py", PLAIN)
    (first,) = _record(place, ["/here"], GUNICORN, SERVERS["flask"][2])
    other = tuple(word.replace("app:app", "other:app") for word in GUNICORN)
    (second,) = _record(place, ["/there"], other, SERVERS["flask"][2])
    suite = _replay(place, "--since", "1h", command=GUNICORN, at=SERVERS["flask"][2])
    assert (suite.status, suite.report) == (2, {})
    (line,) = [line for line in suite.stderr.splitlines() if line.startswith("Error: ")]
    assert all(word in line for word in (first.run_id, second.run_id, "'app:app'", "'other:app'"))
    process = next(run.run_id for run in place.recordings() if "unit" not in run.root.env)
    refused = _replay(place, "--run", process, command=GUNICORN, at=SERVERS["flask"][2])
    assert refused.status == 1
    assert f"error: run {process} is not a unit of a process that serves many" in refused.stderr
