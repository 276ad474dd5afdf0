"""FastStream on Redis: each message is a separate run, and replays by itself with the provider and Redis stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from redis import Redis

from support.kafka_broker import a_broker
from support.nats_server import a_nats
from support.provider import Provider
from support.queue_programs import FASTSTREAM_APP, publish
from support.rabbitmq_server import a_rabbitmq
from support.redis_server import a_redis
from support.replaying import Workplace
from support.suites import replay_suite
from support.units import trace_of
from support.workers import ASKING, input_of, kill_under_way, output_of, record_until, units_of

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
NATS_APP: Final = """
from faststream import FastStream
from faststream.nats import NatsBroker
from groq import AsyncGroq

client = AsyncGroq()
broker = NatsBroker("nats://127.0.0.1:PORT")
app = FastStream(broker)

@broker.subscriber("questions")
async def answer(text: str):
    await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    app.exit()

@app.after_startup
async def begin():
    await broker.publish("how?", "questions")
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


OTHERS_APP: Final = (
    ASKING
    + """
import asyncio
from faststream import AckPolicy, FastStream
from faststream.BROKER import BROKERBroker as Broker, BROKERMessage as Message

broker = Broker(os.environ["SERVER"])
app = FastStream(broker)
LEFT, WARM = [6], ask("warm up")

@broker.subscriber("questions"OPTIONS)
async def answer(body: dict):
    number = body["number"]
    first, again = await asyncio.gather(think(f"question-{number} asked"), think(f"question-{number} again"))
    await broker.publish({"number": number, "text": first, "again": again}, "notes")
    end()

@broker.subscriber("notes", ack_policy=AckPolicy.MANUALOPTIONS)
@broker.publisher("done")
async def note(body: dict, message: Message):
    noted = await think(f"question-{body['number']} noted")
    await message.ack()
    end()
    return {"noted": noted, "warm": WARM, "at": time.time(), "id": str(uuid.uuid4())}

def end():
    LEFT[0] -= 1
    if not LEFT[0]:
        app.exit()

@app.after_startup
async def begin():
    for number in range(3):
        await broker.publish({"number": number}, "questions", headers={"baggage": f"user.id=user-{number}"})
"""
)


@contextmanager
def run_broker(name: str, path: Path) -> Iterator[str]:
    """Run a broker; yields its address."""
    if name == "rabbit":
        with a_rabbitmq(path) as rabbit:
            yield rabbit.url
    elif name == "nats":
        with a_nats(path) as port:
            yield f"nats://127.0.0.1:{port}"
    else:
        with a_broker() as kafka:
            yield kafka.servers


@pytest.mark.parametrize("name", ["rabbit", "kafka", "nats"])
@pytest.mark.sampled(2)
def test_p3_p4_each_message_of_another_broker_is_a_run_and_replays_alone(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """Published messages, acknowledgements by hand and results are compared; a replay has no broker."""
    (tmp_path / "broker").mkdir()
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    source = OTHERS_APP.replace("BROKERBroker", f"{name.capitalize()}Broker")
    source = source.replace("BROKERMessage", f"{name.capitalize()}Message").replace("BROKER", name)
    options = ', auto_offset_reset="earliest", group_id="g"' if name == "kafka" else ""
    place.write("shop.py", source.replace("OPTIONS", options))
    with run_broker(name, tmp_path / "broker") as address:
        place.record(*WORKER, SERVER=address)
    provider.stop()
    nobody = {"rabbit": "amqp://guest:guest@127.0.0.1:9/", "kafka": "127.0.0.1:9", "nats": "nats://127.0.0.1:9"}[name]
    answers, notes = units_of(place, "Answer"), units_of(place, "Note")
    assert (len(answers), len(notes)) == (3, 3)
    for unit in (*answers, *notes):
        assert unit.completeness().is_complete, unit.completeness().reasons
    assert {unit.root.user_id for unit in answers} == {"user-0", "user-1", "user-2"}
    for unit in (answers[0], answers[2], notes[1]):
        replayed = place.replay(*WORKER, source=unit.run_id, SERVER=nobody)
        assert (replayed.status, replayed.verdict.get("verdict")) == (0, "identical"), replayed.stderr
    app = (tmp_path / "shop.py").read_text(encoding="utf-8")
    place.write(
        "shop.py", app.replace('"text": first', '"text": first.upper()').replace("    await message.ack()\n", "")
    )
    changed = place.replay(*WORKER, source=answers[1].run_id, SERVER=nobody)
    assert changed.causes() == [("changed_call", "tool:faststream.publish")], changed.stderr
    forgotten = place.replay(*WORKER, source=notes[0].run_id, SERVER=nobody)
    assert forgotten.verdict["verdict"] == "diverged", forgotten.stderr


def test_p3_a_worker_on_a_client_in_native_code_says_what_no_call_has(provider: Provider, tmp_path: Path) -> None:
    """FastStream on confluent-kafka: nothing below the client can be seen, so that its use by the worker is named."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    with a_broker() as kafka:
        on_kafka = NATS_APP.replace("faststream.nats import NatsBroker", "faststream.confluent import KafkaBroker")
        on_kafka = on_kafka.replace("nats://127.0.0.1:PORT", kafka.servers).replace("NatsBroker", "KafkaBroker")
        place.write("shop.py", on_kafka.replace('r("questions")', 'r("questions", auto_offset_reset="earliest")'))
        place.record(*WORKER)
    reasons = place.recordings()[0].completeness().reasons
    assert "a server or worker used a client of Kafka in native code for itself: that is not recorded" in reasons
    assert "FastStream processed messages of confluent: they are not recorded" in reasons
