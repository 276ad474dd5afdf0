"""taskiq workers: each task is a separate run, and replays by itself with the provider and Redis stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.queue_programs import TASKIQ_APP, publish
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.suites import replay_suite
from support.units import ASKING, COMMAND, prepare, response_of, serve, trace_of
from support.workers import input_of, kill_under_way, output_of, record_until, units_of

WORKER: Final = ("-m", "taskiq", "worker", "--workers", "1", "shop:broker")
PUBLISH: Final = """
import asyncio, sys

import shop

async def publish():
    await shop.broker.startup()
    for number in range(int(sys.argv[1])):
        labels = {"baggage": f"user.id=user-{number % 4}", "traceparent": f"00-{number + 1:032x}-00f067aa0ba902b7-01"}
        await shop.answer.kicker().with_labels(**labels).kiq(number, user=f"user-{number % 4}")
    await shop.broker.shutdown()

asyncio.run(publish())
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Iterator[Workplace]:
    """A directory with an application, its Redis, and a program that publishes tasks."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("publish.py", PUBLISH)
    with a_redis(tmp_path) as port:
        workplace.write("shop.py", TASKIQ_APP.replace("PORT", str(port)))
        yield workplace


def test_p3_p4_each_taskiq_task_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """With tasks on a loop and in threads, one retried and failed, each is a whole run, and identical without Redis."""
    publish(place, 5)
    record_until(place, 6 + 4, *WORKER)
    provider.stop()
    answers, notes = units_of(place, "shop:answer"), units_of(place, "shop:note")
    assert (len(answers), len(notes)) == (6, 4)
    for unit in answers:
        assert unit.completeness().is_complete, unit.completeness().reasons
        (number,), user = input_of(unit)["args"], input_of(unit)["kwargs"]["user"]
        models = [call for call in unit.calls if call.kind == "llm"]
        assert len(models) == 2
        assert all(f"question-{number} " in call.request for call in models)
        assert (unit.root.user_id, trace_of(unit)) == (user, number + 1)
        assert [call.name for call in unit.calls if call.kind == "tool"] == ["taskiq.kick"] * (len(unit.calls) == 5)
    failed = [each for each in answers if input_of(each)["args"][0] == 4]
    assert [output_of(each)["replaced"] for each in failed] == [True, False]
    assert {output_of(each)["raised"]["type"] for each in failed} == {"builtins.KeyError"}
    for unit in [answers[0], *failed, notes[0]]:
        replayed = place.replay(*WORKER, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_taskiq_tasks_replay_in_one_start_and_what_changed_is_named(provider: Provider, place: Workplace) -> None:
    """A changed result has one cause; a task that no longer exists ends its replay with a line that names it."""
    publish(place, 1)
    record_until(place, 2, *WORKER)
    provider.stop()
    (answered,), (noted,) = units_of(place, "shop:answer"), units_of(place, "shop:note")
    app = (place.path / "shop.py").read_text(encoding="utf-8")
    place.write("shop.py", app.replace('{"answer": first', '{"answer": first.upper()'))
    suite = replay_suite(place, *WORKER, options=["--process", answered.run_id])
    assert suite.words() == {answered.run_id: "diverged", noted.run_id: "identical"}, suite.stderr
    assert suite.causes(answered.run_id) == [("changed_call", "compute:output")]
    place.write("shop.py", app.replace("def note(", "def renamed(").replace("note.kicker", "renamed.kicker"))
    gone = place.replay(*WORKER, source=noted.run_id)
    assert gone.status == 1
    assert "the task 'shop:note' is not registered with this broker" in gone.stderr


def test_p3_after_a_kill_only_the_taskiq_task_under_way_is_incomplete(provider: Provider, place: Workplace) -> None:
    """The worker is killed while one task waits: it says how it ended, and the others are whole and replay."""
    publish(place, 6)
    cut, ended = kill_under_way(place, 7 + 4, *WORKER)
    provider.stop()
    assert input_of(cut)["args"][0] == 5
    assert place.replay(*WORKER, source=ended[-1].run_id).status == 0


WEB: Final = f"""{ASKING}
from contextlib import asynccontextmanager

from fastapi import FastAPI
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker("redis://127.0.0.1:REDIS")

@broker.task
async def note(number):
    return number

@asynccontextmanager
async def lifespan(app):
    await broker.startup()
    yield

app = FastAPI(lifespan=lifespan)

@app.get("/chat")
async def chat():
    published = await note.kiq(3)
    return {{"told": published.task_id, "reply": await ask("question")}}
"""


def test_p4_a_request_that_publishes_a_taskiq_task_replays_without_redis(provider: Provider, tmp_path: Path) -> None:
    """A program that is no worker connects its broker when it starts; its replay does not, and publishes nothing."""
    with a_redis(tmp_path) as port:
        place = prepare(tmp_path, provider, WEB.replace("REDIS", str(port)))
        with serve(place) as server:
            answer = httpx.get(f"{server.url}/chat", timeout=TIMEOUT_S)
            server.await_ends()
            server.stop()
    provider.stop()
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert [call.name for call in unit.calls if call.kind == "tool"] == ["taskiq.kick"]
    assert response_of(unit)["body"]["text"] == answer.text
    assert place.replay(*COMMAND, source=unit.run_id).verdict["verdict"] == "identical"
