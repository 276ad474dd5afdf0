"""Celery workers: each task execution is a separate run, and replays with the provider and Redis stopped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.units import await_true, trace_of
from support.workers import CELERY_APP, input_of, output_of, units_of

WORKER: Final = ("-m", "celery", "-A", "shop", "worker", "-l", "WARNING", "--without-gossip", "--without-mingle")
POOLS: Final = {
    "prefork": ("-c", "2"),
    "threads": ("-P", "threads", "-c", "2"),
    "solo": ("-P", "solo"),
}
HANGING: Final = """
import threading

@app.task
def hang():
    ask("question before the end")
    Path("hanging").write_text(str(os.getpid()))
    threading.Event().wait()
"""
PUBLISH: Final = """
import sys
from shop import answer
for number in range(int(sys.argv[1])):
    headers = {"baggage": f"user.id=user-{number % 4},session.id=s-{number}"}
    headers["traceparent"] = f"00-{number + 1:032x}-00f067aa0ba902b7-01"
    answer.apply_async((number, f"user-{number % 4}"), headers=headers)
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a program that publishes tasks."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("publish.py", PUBLISH)
    return workplace


@contextmanager
def broker(place: Workplace, source: str) -> Iterator[str]:
    """A separate Redis for the application; write the application and yield its source."""
    with a_redis(place.path) as port:
        app = source.replace("PORT", str(port))
        place.write("shop.py", app)
        yield app


@contextmanager
def working(place: Workplace, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A recorded worker; killed at the end if it still runs."""
    process = place.spawn([str(place.python), *WORKER, *options])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)


def publish(place: Workplace, count: int) -> None:
    """Publish that many tasks from a program that is not recorded."""
    subprocess.run(
        [str(place.python), "publish.py", str(count)],
        cwd=place.path,
        env=place.environ,
        check=True,
        timeout=TIMEOUT_S,
    )


def await_runs(place: Workplace, process: subprocess.Popen[str], count: int) -> None:
    """Wait until that many units are complete."""

    def are_here() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return sum(each.completeness().is_complete for each in units_of(place)) >= count

    await_true(are_here)


def kill_hanging(place: Workplace) -> None:
    """Kill the pool process that runs the hanging task; wait for the other tasks."""
    with working(place, "-c", "1") as process:
        pid_file = place.path / "hanging"
        await_true(lambda: pid_file.exists() and pid_file.read_text(encoding="utf-8") != "")
        os.kill(int(pid_file.read_text(encoding="utf-8")), signal.SIGKILL)
        await_runs(place, process, 2)  # its replacement works on the note
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.sampled(1)
def test_p3_p4_each_task_is_a_run_and_replays_alone(pool: str, provider: Provider, place: Workplace) -> None:
    """Tasks of several users have only their own calls; without provider and broker each is identical."""
    count = 11 if pool == "prefork" else 5
    with broker(place, CELERY_APP):
        publish(place, count)
        with working(place, *POOLS[pool]) as process:
            await_runs(place, process, count + 1 + count - 1)  # one is retried, one fails and notes nothing
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    answers, notes = units_of(place, "shop.answer"), units_of(place, "shop.note")
    assert (len(answers), len(notes)) == (count + 1, count - 1)
    for unit in answers:
        assert unit.completeness().is_complete, unit.completeness().reasons
        given = input_of(unit)
        number, user = given["args"]
        assert (unit.root.user_id, unit.root.session_id) == (user, f"s-{number}")
        assert trace_of(unit) == number + 1
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request or f'question-{number}"' in call.request for call in models)
    retried = next(each for each in answers if output_of(each)["state"] == "RETRY")
    assert "celery.send_task" in [call.name for call in retried.calls]
    for unit in [retried, answers[-1], notes[0]] if pool == "prefork" else [answers[0]]:
        replayed = place.replay(*WORKER, *POOLS[pool], source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_a_changed_task_is_named_and_a_killed_one_is_incomplete(provider: Provider, place: Workplace) -> None:
    """If a pool process is killed inside a task, earlier tasks are whole. Changed code has one cause."""
    publishing = [str(place.python), "-c", "import shop; shop.answer.delay(1, 'ann'); shop.hang.delay()"]
    with broker(place, CELERY_APP + HANGING) as app:
        subprocess.run(publishing, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
        kill_hanging(place)
    provider.stop()
    (hung,) = units_of(place, "shop.hang")
    assert not hung.completeness().is_complete
    assert hung.completeness().reasons
    (unit,) = units_of(place, "shop.answer")
    assert unit.completeness().is_complete, unit.completeness().reasons
    place.write("shop.py", app.replace('{"answer": first', '{"answer": first.upper()'))
    changed = place.replay(*WORKER, source=unit.run_id)
    assert changed.causes() == [("changed_call", "compute:output")]
    place.write("shop.py", app.replace("def answer", "def renamed"))
    gone = place.replay(*WORKER, source=unit.run_id)
    assert gone.status == 1
    assert "the task 'shop.answer' is not registered in this application" in gone.stderr
