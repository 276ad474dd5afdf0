"""arq workers: each job is a separate run, and replays by itself with the provider and Redis stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.workers import ARQ_APP, input_of, output_of, units_of

WORKER: Final = ("-m", "arq", "shop.Worker", "--burst")
PUBLISH: Final = """
import asyncio, sys

import shop
from arq import create_pool

async def publish():
    pool = await create_pool(shop.Worker.redis_settings)
    for number in range(int(sys.argv[1])):
        await pool.enqueue_job("answer", number, user=f"user-{number % 4}")

asyncio.run(publish())
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a program that publishes jobs."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("publish.py", PUBLISH)
    return workplace


def record(place: Workplace, count: int) -> str:
    """Let a recorded worker do that many jobs until none is left; return the source of its application."""
    with a_redis(place.path) as port:
        app = ARQ_APP.replace("PORT", str(port))
        place.write("shop.py", app)
        publish = [str(place.python), "publish.py", str(count)]
        subprocess.run(publish, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
        place.record(*WORKER)
    return app


def test_p3_p4_each_arq_job_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """Concurrent jobs on one loop, one retried, one failed: each is a whole run, and identical without Redis."""
    record(place, 6)
    provider.stop()
    answers, notes = units_of(place, "answer"), units_of(place, "note")
    assert (len(answers), len(notes)) == (7, 5)
    for unit in answers:
        assert unit.completeness().is_complete, unit.completeness().reasons
        number, user = input_of(unit)["args"][0], input_of(unit)["kwargs"]["user"]
        assert user == f"user-{number % 4}"
        models = [call for call in unit.calls if call.kind == "llm"]
        assert len(models) == 2
        assert all(f"question-{number} " in call.request for call in models)
    published = [[call.name for call in unit.calls if call.kind == "tool"] for unit in answers]
    assert sorted(published) == [[], [], *[["arq.enqueue_job"]] * 5]
    raised = [unit for unit in answers if "raised" in output_of(unit)]
    assert sorted(output_of(unit)["raised"]["type"] for unit in raised) == ["arq.worker.Retry", "builtins.KeyError"]
    for unit in [*raised, answers[-1], notes[0]]:
        replayed = place.replay(*WORKER, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_a_changed_arq_job_is_named_and_one_that_is_gone_stops_the_replay(
    provider: Provider, place: Workplace
) -> None:
    """A changed result has one cause; a function that no longer exists gives one line and status 1."""
    app = record(place, 1)
    provider.stop()
    (unit,) = units_of(place, "answer")
    place.write("shop.py", app.replace('{"answer": first', '{"answer": first.upper()'))
    assert place.replay(*WORKER, source=unit.run_id).causes() == [("changed_call", "compute:output")]
    place.write("shop.py", app.replace("answer(ctx", "renamed(ctx").replace("[answer, note]", "[renamed, note]"))
    gone = place.replay(*WORKER, source=unit.run_id)
    assert gone.status == 1
    assert "the function 'answer' is not registered in this worker" in gone.stderr
