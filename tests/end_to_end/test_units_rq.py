"""RQ workers: each job is a separate run, and replays by itself with the provider and Redis stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Replayed, Workplace
from support.suites import replay_suite
from support.units import trace_of
from support.workers import RQ_APP, input_of, units_of

WORKER: Final = """
import sys
import rq
import shop
getattr(rq, sys.argv[1])([shop.queue()], connection=shop.queue().connection).work(burst=True)
"""
PUBLISH: Final = """
import sys
import shop
for number in range(int(sys.argv[1])):
    user = f"user-{number % 4}"
    baggage = f"user.id={user},session.id=s-{number}"
    meta = {"baggage": baggage, "traceparent": f"00-{number + 1:032x}-00f067aa0ba902b7-01"}
    shop.queue().enqueue(shop.answer, number, user, meta=meta)
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("publish.py", PUBLISH)
    return workplace


def describe_worker(name: str, port: int) -> tuple[str, ...]:
    """The command of a worker: a program that loads the application before forking, or `rq worker`."""
    if name != "command":
        return ("worker.py", name)
    return ("-m", "rq.cli", "worker", "--url", f"redis://127.0.0.1:{port}", "--burst", "jobs")


def record(place: Workplace, name: str, port: int, count: int, *, workers: int = 1) -> None:
    """Let recorded workers do that many jobs until none is left."""
    place.write("shop.py", RQ_APP.replace("PORT", str(port)))
    place.write("worker.py", WORKER)
    publish = [str(place.python), "publish.py", str(count)]
    subprocess.run(publish, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
    command = [str(place.python), *describe_worker(name, port)]
    started = [place.spawn(command, PYTHONPATH=".") for _ in range(workers)]
    for process in started:
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, stderr


@pytest.mark.parametrize(("name", "count"), [("Worker", 11), ("SimpleWorker", 5), ("command", 1)])
@pytest.mark.sampled(1)
def test_p3_p4_each_job_is_a_run_and_replays_alone(name: str, count: int, provider: Provider, place: Workplace) -> None:
    """With jobs of several users and two work horses, each run has its own calls, and replays identically."""
    with a_redis(place.path) as port:
        record(place, name, port, count, workers=2 if name == "Worker" else 1)
    provider.stop()
    answers, notes = units_of(place, "shop.answer"), units_of(place, "shop.note")
    assert (len(answers), len(notes)) == (count, count - 1 if count > 4 else count)
    for unit in answers:
        assert unit.completeness().is_complete, unit.completeness().reasons
        number, user = input_of(unit)["args"]
        assert (unit.root.user_id, unit.root.session_id) == (user, f"s-{number}")
        assert trace_of(unit) == number + 1
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
    failed = next((each for each in answers if each.root.outcome == "error"), None)
    for unit in [answers[-1], failed] if failed is not None else [notes[0]]:
        replayed = replay(place, name, port, unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_jobs_replay_in_one_start(provider: Provider, place: Workplace) -> None:
    """All jobs of a worker, of several functions, replay in forks of one started worker."""
    with a_redis(place.path) as port:
        record(place, "SimpleWorker", port, 5)
    provider.stop()
    units = [*units_of(place, "shop.answer"), *units_of(place, "shop.note")]
    suite = replay_suite(place, *describe_worker("SimpleWorker", port), options=["--process", units[0].run_id])
    assert suite.status == 0, suite.stderr
    assert suite.words() == {unit.run_id: "identical" for unit in units}
    assert suite.report["starts"] == 1, suite.stderr


def replay(place: Workplace, name: str, port: int, run_id: str) -> Replayed:
    """Replay a job with the recorded command."""
    return place.replay(*describe_worker(name, port), source=run_id)
