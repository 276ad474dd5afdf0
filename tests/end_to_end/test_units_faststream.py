"""FastStream on Redis: each message is a separate run, and replays by itself with the provider and Redis stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from redis import Redis

from support.provider import Provider
from support.queue_programs import FASTSTREAM_APP, publish
from support.redis_server import a_redis
from support.replaying import Workplace
from support.suites import replay_suite
from support.units import trace_of
from support.workers import input_of, kill_under_way, output_of, record_until, units_of

WORKER: Final = ("-m", "faststream", "run", "shop:app")
PUBLISH: Final = """
import asyncio, sys

import shop

async def publish():
    async with shop.broker as broker:
        for number in range(int(sys.argv[1])):
            headers = {"baggage": f"user.id=user-{number}", "traceparent": f"00-{number + 1:032x}-00f067aa0ba902b7-01"}
            await broker.publish({"number": number, "key": "sk-proj-abcdefghijklmnopqrstuvwxyz123456"},
                                 list="questions", headers=headers)

asyncio.run(publish())
"""
BEGIN: Final = """
@app.after_startup
async def begin():
    await broker.publish({"number": 0}, list="questions")
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Iterator[Workplace]:
    """A directory with an application, its Redis, and a program that publishes messages."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("publish.py", PUBLISH)
    with a_redis(tmp_path) as port:
        workplace.write("shop.py", FASTSTREAM_APP.replace("PORT", str(port)))
        workplace.environ["REDIS_PORT"] = str(port)
        yield workplace


def publish_all(place: Workplace, count: int) -> None:
    """Publish that many messages, and make the stream's group, so that no worker has to be there first."""
    with Redis(port=int(place.environ["REDIS_PORT"])) as redis:
        redis.xgroup_create("notes", "all", mkstream=True)
    publish(place, count)


def test_p3_p4_each_faststream_message_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """With messages of a list and a stream in two processes, one failed: each is a whole run, and identical."""
    publish_all(place, 4)
    record_until(place, 4 + 3, *WORKER, "--workers", "2")
    provider.stop()
    answers, notes = units_of(place, "Answer"), units_of(place, "Note")
    assert (len(answers), len(notes)) == (4, 3)
    for unit in answers:
        assert unit.completeness().is_complete, unit.completeness().reasons
        number = trace_of(unit) - 1
        assert unit.root.user_id == f"user-{number}"
        models = [call for call in unit.calls if call.kind == "llm"]
        assert len(models) == 2
        assert all(f"question-{number} " in call.request for call in models)
        assert all("sk-proj-" not in call.request + (call.response or "") for call in unit.calls)
    (failed,) = [unit for unit in answers if "raised" in output_of(unit)]
    assert output_of(failed)["raised"] == {"type": "builtins.KeyError", "message": "2"}
    for unit in (answers[0], failed, notes[-1]):
        replayed = place.replay(*WORKER, "--workers", "2", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_faststream_messages_replay_in_one_start_and_what_changed_is_named(
    provider: Provider, place: Workplace
) -> None:
    """Messages find what hooks of the start left; a change has one cause; what is gone is named."""
    publish_all(place, 0)
    started = (place.path / "shop.py").read_text(encoding="utf-8").replace("@app.on_startup", "@app.after_startup")
    place.write("shop.py", started + BEGIN)
    record_until(place, 2, *WORKER)
    provider.stop()
    (answered,), (noted,) = units_of(place, "Answer"), units_of(place, "Note")
    app = (place.path / "shop.py").read_text(encoding="utf-8")
    place.write("shop.py", app.replace('"noted": noted', '"noted": noted.upper()'))
    suite = replay_suite(place, *WORKER, options=["--process", answered.run_id])
    assert suite.words() == {answered.run_id: "identical", noted.run_id: "diverged"}, suite.stderr
    assert suite.causes(noted.run_id) == [("changed_call", "tool:faststream.publish")]
    place.write("shop.py", app.replace("def note(", "def renamed("))
    gone = place.replay(*WORKER, source=noted.run_id)
    assert gone.status == 1
    assert "the subscriber 'Note' is not in this application" in gone.stderr


def test_p3_after_a_kill_only_the_faststream_message_under_way_is_incomplete(
    provider: Provider, place: Workplace
) -> None:
    """The worker is killed while one message waits: it says how it ended, and the others are whole and replay."""
    publish_all(place, 5)
    cut, ended = kill_under_way(place, 5 + 3, *WORKER)
    provider.stop()
    assert b'"number":4' in input_of(cut)["message"]["data"][b"__data__"]["body"]
    assert place.replay(*WORKER, source=ended[0].run_id).status == 0
