"""Loops of a program's own over messages: with one setting each message is a run, and replays without the broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from redis import Redis

from spanreplay.model.call import Outcome, Recording
from support.agents import ENVIRONMENTS
from support.kafka_broker import a_broker, a_tansu
from support.message_programs import (
    AMQP,
    ANNOUNCE,
    HEAD,
    KAFKA,
    NAMES,
    NATS,
    NOBODY,
    PUBLISH,
    PUBLISH_NATS,
    PUBLISHED,
    REDIS,
    REDIS_HEAD,
    SQS,
    SQS_ASYNC,
)
from support.nats_server import a_nats
from support.provider import Provider
from support.queue_service import a_queue_service
from support.rabbitmq_server import a_rabbitmq
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.suites import insist_identical
from support.units import COMMAND, await_true, prepare, serve
from support.workers import output_of, units_of


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker."""
    with a_rabbitmq(tmp_path_factory.mktemp("broker")) as made:
        yield made.url


def insist_that_messages_are_runs(
    setting: str,
    address: str,
    source: str,
    changed_call: str,
    provider: Provider,
    path: Path,
    name: str = "",
    python: Path | None = None,
) -> None:
    """Four messages are four runs, each with its own calls; they replay alone without the broker and the provider."""
    name = name or NAMES[setting]
    settings = {"SPANREPLAY_UNITS": "messages", "SPANREPLAY_USER_HEADER": "x-user-id"}
    place = Workplace(path, {**provider.environ(), **settings}, python)
    publish = place.write("publish.py", PUBLISHED.get(setting, ""))
    environ = {**place.environ, setting: address}
    subprocess.run([str(place.python), str(publish)], check=True, timeout=TIMEOUT_S, env=environ)
    worker = place.write("worker.py", HEAD + source)
    assert place.record(worker, status=0, **{setting: address}).stdout.endswith("all done\n")
    provider.stop()
    units = units_of(place, name)
    assert len(units) == 4
    for number, unit in enumerate(units):
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert unit.root.user_id in (f"user-{number}", "" if setting == "REDIS" else None)
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
        assert not any(call.name.endswith(".close") or "beat" in call.request for call in unit.calls)
        assert not any(
            f"question-{other} " in f"{call.request} {call.response}"
            for call in unit.calls
            for other in {*range(4)} - {number}
        )
    (process,) = (run for run in place.recordings() if run.run_id not in {unit.run_id for unit in units})
    assert process.completeness().is_complete, process.completeness().reasons
    assert not any("question-" in call.request + call.response for call in process.calls)
    nobody = {setting: NOBODY.get(setting, address)}
    for unit, options in ((units[1], ()), (units[2], ()), (units[3], ("--warm", "all"))):
        replayed = place.replay(worker, source=unit.run_id, options=options, **nobody)
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
        assert "answered" in replayed.stdout
    worker.write_text(worker.read_text().replace('[order["number"], ', '[order["number"] + 1, '))
    changed = place.replay(worker, source=units[2].run_id, **nobody)
    assert changed.causes() == [("changed_call", changed_call)], changed.stderr


@pytest.mark.parametrize("name", KAFKA)
@pytest.mark.sampled(3)
def test_p3_p4_each_message_of_kafka_is_a_run_without_a_line_in_the_program(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """Also where the program's task waits for messages with a timeout, and where it starts a task for each."""
    with a_tansu() if name == "kafka-python" else a_broker() as broker:
        insist_that_messages_are_runs("KAFKA", broker.servers, KAFKA[name], "tool:kafka.produce", provider, tmp_path)


@pytest.mark.parametrize("name", AMQP)
@pytest.mark.sampled(2)
def test_p3_p4_each_message_of_rabbitmq_is_a_run_without_a_line_in_the_program(
    name: str, rabbitmq: str, provider: Provider, tmp_path: Path
) -> None:
    """From an iterator, in a callback, one by one, and above kombu's connections."""
    kind = "kombu" if name.startswith("kombu") else "amqp"
    asked, named = f"tool:{kind}.publish", f"{kind} orders"
    insist_that_messages_are_runs("AMQP_URL", rabbitmq, AMQP[name], asked, provider, tmp_path, named)


@pytest.mark.parametrize("name", REDIS)
@pytest.mark.sampled(2)
def test_p3_p4_each_message_of_redis_is_a_run_without_a_line_in_the_program(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """From a list, a stream and a subscription."""
    named = {"list": "redis orders", "stream": "redis stream", "subscription": "redis news"}[name]
    with a_redis(tmp_path) as port:
        environ = {"PATH": os.environ["PATH"], "REDIS": str(port)}
        announce = subprocess.Popen([sys.executable, "-c", ANNOUNCE], env=environ)
        source = REDIS_HEAD + REDIS[name]
        try:
            insist_that_messages_are_runs("REDIS", str(port), source, "tool:redis.RPUSH", provider, tmp_path, named)
        finally:
            announce.kill()
            announce.wait()


@pytest.mark.parametrize("name", NATS)
@pytest.mark.sampled(2)
def test_p3_p4_each_message_of_nats_is_a_run_without_a_line_in_the_program(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """In a callback, one by one, from an iterator, and fetched from a stream."""
    named = "nats jobs worker" if name == "fetch" else "nats orders"
    (tmp_path / "server").mkdir()
    (tmp_path / "agent").mkdir()
    with a_nats(tmp_path / "server") as port:
        url = f"nats://127.0.0.1:{port}"
        environ = {"PATH": os.environ["PATH"], "NATS_URL": url}
        publish = subprocess.Popen([sys.executable, "-c", PUBLISH_NATS], env=environ, cwd=tmp_path)
        try:
            await_true((tmp_path / "listens").exists)
            source, asked = NATS[name], "tool:nats.publish"
            insist_that_messages_are_runs("NATS_URL", url, source, asked, provider, tmp_path / "agent", named)
        finally:
            publish.kill()
            publish.wait()


def test_p3_p4_each_message_of_sqs_is_a_run_without_a_line_in_the_program(provider: Provider, tmp_path: Path) -> None:
    """What is received is no request of the program any more; what it sends and deletes is."""
    with a_queue_service() as address:
        asked = f"http:POST {address.removeprefix('http://')}"
        insist_that_messages_are_runs("SQS", address, SQS, asked, provider, tmp_path)


def test_p3_p4_each_message_of_sqs_with_asyncio_is_a_run_without_a_line_in_the_program(
    provider: Provider, tmp_path: Path
) -> None:
    """The same with aiobotocore, which has an environment of its own: it needs an older botocore."""
    python = ENVIRONMENTS["servers"]
    if not python.exists():
        pytest.skip(f"no {python}: tools/agents.sh builds it")
    with a_queue_service() as address:
        asked = f"http:POST {address.removeprefix('http://')}"
        insist_that_messages_are_runs("SQS", address, SQS_ASYNC, asked, provider, tmp_path, python=python)


ENDLESS: Final = """
import signal
from confluent_kafka import Consumer
settings = {"bootstrap.servers": os.environ["KAFKA"]}
consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
while True:
    message = consumer.poll(0.2)
    if message is None:
        continue
    order = json.loads(message.value())
    open("answers", "a").write(ask(order["text"]) + "\\n")
    open(f"done-{order['number']}", "w").close()
    if order["number"] == HELD:
        time.sleep(600)
    if order["number"] == BAD:
        raise ValueError(WHY)
"""


def prepare_endless(place: Workplace, servers: str, held: int = -1, bad: int = -1) -> Path:
    """Publish four messages, and write a worker that never ends by itself."""
    publish = place.write("publish.py", PUBLISH)
    environ = {**place.environ, "KAFKA": servers}
    subprocess.run([str(place.python), str(publish)], check=True, timeout=TIMEOUT_S, env=environ)
    source = (HEAD + ENDLESS).replace("HELD", str(held)).replace("BAD", str(bad)).replace("WHY", '"a bad order"')
    return place.write("worker.py", source)


def test_p9_a_worker_that_is_stopped_while_it_waits_leaves_whole_runs(provider: Provider, tmp_path: Path) -> None:
    """The last message ended when the program asked for the next one, which never came; each replays in one start."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_UNITS": "messages", "KAFKA": NOBODY["KAFKA"]})
    with a_broker() as broker:
        worker = prepare_endless(place, broker.servers)
        process = place.spawn([str(place.python), str(worker)], KAFKA=broker.servers)
        await_true(lambda: [is_ended(unit) for unit in units_of(place, "kafka g")] == [True] * 4)
        process.terminate()
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == -signal.SIGTERM, stderr
    provider.stop()
    units = units_of(place, "kafka g")
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    insist_identical(place, str(worker), units=units)
    worker.write_text(worker.read_text().replace("    if order[", "    break\n    if order[", 1))
    stopped = place.replay(worker, source=units[1].run_id)
    assert stopped.causes() == [("changed_call", "compute:output")], stopped.stderr


SERVICE: Final = """
import asyncio, json, os, time
from contextlib import asynccontextmanager
from fastapi import FastAPI
from groq import AsyncGroq
from redis.asyncio import Redis

client, queue, last = AsyncGroq(), Redis(port=int(os.environ["REDIS"])), []

async def ask(text):
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

async def work():
    while True:
        found = await queue.blpop("orders")
        await queue.rpush("answers", json.dumps([await ask(found[1].decode()), time.time()]))
        await queue.incr("done")

@asynccontextmanager
async def lifespan(app):
    task = asyncio.create_task(work())
    app.state.warm = await ask("warm up")
    yield
    task.cancel()

app = FastAPI(lifespan=lifespan)

@app.get("/ask/{text}")
async def answer(text: str):
    await queue.rpush("orders", f"later {text}")
    return {"answer": await ask(text), "at": time.time(), "warm": app.state.warm}
"""


def test_p2_p3_p4_requests_and_messages_of_one_service_replay_alone(provider: Provider, tmp_path: Path) -> None:
    """A task that the application starts takes messages beside its requests."""
    with a_redis(tmp_path) as port:
        place = prepare(tmp_path, provider, SERVICE)
        settings = {"SPANREPLAY_UNITS": "messages", "REDIS": str(port)}
        with serve(place, **settings) as server, Redis(port=port) as redis:
            for number in range(3):
                httpx.get(f"{server.url}/ask/question-{number}.", timeout=TIMEOUT_S).raise_for_status()
            await_true(lambda: redis.get("done") == b"3")
            server.await_ends()
            server.stop()
    provider.stop()
    requests, messages = units_of(place, "app:app"), units_of(place, "redis orders")
    assert (len(requests), len(messages)) == (3, 3)
    for unit in (requests[1], messages[1], requests[2], messages[2]):
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*COMMAND, "--port", "9", source=unit.run_id, REDIS="9")
        assert (replayed.status, replayed.verdict.get("verdict")) == (0, "identical"), replayed.stderr


TWO_SOURCES: Final = """
from redis import Redis
queue = Redis(port=int(os.environ["REDIS"]))

def ask_tool(text):
    queue.rpush("questions", text)
    queue.rpush("replies", b"reply to " + text)
    return queue.blpop("replies")[1].decode()

while queue.blpop("replies", timeout=1):
    print("a reply to nobody")
left = 4
while left:
    for name in ("urgent", "orders"):
        found = queue.blpop(name, timeout=1)
        if found is None:
            print(name, "is empty", flush=True)
            continue
        print(name, ask(f"question-{ask_tool(found[1])}"))
        left -= 1
"""


def test_p3_p4_a_loop_takes_from_two_sources_and_waits_for_replies(provider: Provider, tmp_path: Path) -> None:
    """What another source gives while a message is worked on is a call of its run; a replay waits at the right one."""
    with a_redis(tmp_path) as port, Redis(port=port) as redis:
        place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_UNITS": "messages"})
        worker = place.write("worker.py", HEAD + TWO_SOURCES)
        process = place.spawn([str(place.python), str(worker)], REDIS=str(port))
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["urgent is empty\n", "orders is empty\n"]
        redis.rpush("orders", "o-0", "o-1")
        redis.rpush("urgent", "u-0", "u-1")
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, stderr
    provider.stop()
    urgent, orders = units_of(place, "redis urgent"), units_of(place, "redis orders")
    assert (len(urgent), len(orders), units_of(place, "redis replies")) == (2, 2, [])
    for unit in (*urgent, *orders):
        names = [call.name for call in unit.calls if call.kind == "tool"]
        assert names == ["redis.BLPOP", "redis.RPUSH", "redis.RPUSH", "redis.BLPOP"]
    for unit, options in ((urgent[1], ()), (orders[0], ()), (orders[1], ("--warm", "all"))):
        replayed = place.replay(worker, source=unit.run_id, options=options, REDIS="9")
        assert (replayed.status, replayed.verdict.get("verdict")) == (0, "identical"), replayed.stderr


IDLE: Final = """
from redis import Redis
queue = Redis(port=int(os.environ["REDIS"]))
left = 2
while left:
    found = queue.blpop("orders", timeout=1)
    if found is None:
        queue.incr("idle")
        continue
    print(ask(f"question-{found[1].decode()}"))
    left -= 1
"""


def test_p3_p4_what_a_loop_does_before_the_first_message_is_of_its_start(provider: Provider, tmp_path: Path) -> None:
    """In a replay nothing comes until the program has done as much again."""
    with a_redis(tmp_path) as port, Redis(port=port) as redis:
        place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_UNITS": "messages"})
        worker = place.write("worker.py", HEAD + IDLE)
        process = place.spawn([str(place.python), str(worker)], REDIS=str(port))
        await_true(lambda: int(redis.get("idle") or 0) >= 2)
        redis.rpush("orders", "o-0", "o-1")
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, stderr
    provider.stop()
    units = units_of(place, "redis orders")
    assert len(units) == 2
    for unit in units:
        replayed = place.replay(worker, source=unit.run_id, REDIS="9")
        assert (replayed.status, replayed.verdict.get("verdict")) == (0, "identical"), replayed.stderr
    worker.write_text(worker.read_text().replace('        queue.incr("idle")\n', ""))
    changed = place.replay(worker, source=units[0].run_id, REDIS="9")
    assert changed.causes() == [("missing_call", "tool:redis.INCRBY")], changed.stderr


HEARTBEAT: Final = """
from redis import Redis
queue = Redis(port=int(os.environ["REDIS"]))
left = 2
while left:
    for name in ("urgent", "orders"):
        found = queue.blpop(name, timeout=1)
        if found is None:
            queue.incr("idle-" + name)
            continue
        print(name, ask(f"question-{found[1].decode()}"))
        left -= 1
"""


def test_p3_p4_what_a_loop_does_between_messages_is_answered_in_a_replay(provider: Provider, tmp_path: Path) -> None:
    """On its way to the recorded message it makes calls that it made between others; what it does first is compared."""
    with a_redis(tmp_path) as port, Redis(port=port) as redis:
        place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_UNITS": "messages"})
        worker = place.write("worker.py", HEAD + HEARTBEAT)
        process = place.spawn([str(place.python), str(worker)], REDIS=str(port))
        await_true(lambda: redis.get("idle-orders"))
        redis.rpush("urgent", "u-0")
        await_true(lambda: not redis.exists("urgent"))
        seen = int(redis.get("idle-orders") or 0)
        await_true(lambda: int(redis.get("idle-orders") or 0) >= seen + 2)
        redis.rpush("orders", "o-0")
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, stderr
    provider.stop()
    (unit,) = units_of(place, "redis orders")
    replayed = place.replay(worker, source=unit.run_id, REDIS="9")
    assert (replayed.status, replayed.verdict.get("verdict")) == (0, "identical"), replayed.stderr
    assert replayed.verdict["counts"]["beside"] == 1  # before it, "urgent" is empty
    text = worker.read_text()
    worker.write_text(text.replace("question-", "changed-"))
    changed = place.replay(worker, source=unit.run_id, REDIS="9")
    assert changed.causes() == [("changed_call", "llm:openai.chat.completions")], changed.stderr
    worker.write_text(text.replace('"idle-" + name', '"idle-" + name if left > 2 else "beat"'))
    other = place.replay(worker, source=unit.run_id, REDIS="9")
    assert other.causes() == [("changed_call", "tool:redis.INCRBY")], other.stderr


APART: Final = """
from aiokafka import AIOKafkaConsumer
async def main():
    given = dict(group_id="g", auto_offset_reset="earliest")
    async with AIOKafkaConsumer("orders", bootstrap_servers=os.environ["KAFKA"], **given) as consumer:
        stopped = asyncio.Event()
        for _ in range(4):
            waits = [asyncio.ensure_future(consumer.getone()), asyncio.ensure_future(stopped.wait())]
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            waits[1].cancel()
            await ask_async(json.loads(waits[0].result().value)["text"])
    print("all done")

asyncio.run(main())
"""


def test_p3_a_message_that_another_task_works_on_says_so(provider: Provider, tmp_path: Path) -> None:
    """Its run can't have what that task does: it is incomplete, and names the way to mend it."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_UNITS": "messages"})
    with a_broker() as broker:
        publish = place.write("publish.py", PUBLISH)
        environ = {**place.environ, "KAFKA": broker.servers}
        subprocess.run([str(place.python), str(publish)], check=True, timeout=TIMEOUT_S, env=environ)
        assert place.record(place.write("worker.py", HEAD + APART), KAFKA=broker.servers).stdout == "all done\n"
    units = units_of(place, "kafka g")
    assert len(units) == 4
    why = "a message was taken in a task of its own, and another one worked on it: await the call in the loop"
    assert {unit.completeness().reasons for unit in units} == {(why,)}


def is_ended(unit: Recording) -> bool:
    """Whether a run has been recorded to its end."""
    return bool(unit.root.manifest)


def test_p9_a_worker_that_is_stopped_at_work_leaves_an_incomplete_run(provider: Provider, tmp_path: Path) -> None:
    """Only the message that it worked on is incomplete, and says why."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_UNITS": "messages", "KAFKA": NOBODY["KAFKA"]})
    with a_broker() as broker:
        worker = prepare_endless(place, broker.servers, held=2)
        process = place.spawn([str(place.python), str(worker)], KAFKA=broker.servers)
        await_true((tmp_path / "done-2").exists)
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    *whole, cut = units_of(place, "kafka g")
    assert [each.completeness().is_complete for each in whole] == [True, True]
    assert cut.completeness().reasons == ("the process ended while this unit was under way",)


def test_p3_an_exception_that_ends_the_loop_is_compared(provider: Provider, tmp_path: Path) -> None:
    """The program ends as without us; its last message has failed, and a replay raises the same again."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_UNITS": "messages", "KAFKA": NOBODY["KAFKA"]})
    with a_broker() as broker:
        worker = prepare_endless(place, broker.servers, bad=1)
        recorded = place.record(worker, status=1, KAFKA=broker.servers)
        assert recorded.stderr.rstrip().splitlines()[-1] == "ValueError: a bad order"
    provider.stop()
    first, second = units_of(place, "kafka g")
    assert output_of(first) == {"then": "takes the next message"}
    assert (output_of(second)["then"], output_of(second)["raised"]["message"]) == ("ends", "a bad order")
    assert second.root.outcome == Outcome.ERROR.value
    replayed = place.replay(worker, source=second.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    worker.write_text(worker.read_text().replace("a bad order", "another order"))
    changed = place.replay(worker, source=second.run_id)
    assert changed.causes() == [("changed_call", "compute:output")], changed.stderr
