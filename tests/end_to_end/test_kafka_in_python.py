"""Messages of Kafka's clients in Python replay without a broker: aiokafka on an event loop, kafka-python in threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.kafka_broker import a_broker, a_tansu
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import COMMAND, prepare, serve

AIOKAFKA: Final = """
import asyncio, contextlib, json, os
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaConnectionError, MessageSizeTooLargeError

at = {"bootstrap_servers": os.environ["KAFKA"]}

async def send():
    async with AIOKafkaProducer(**at, value_serializer=lambda value: json.dumps(value).encode(), linger_ms=5) as p:
        made = await p.send_and_wait("orders", {"n": 0}, key=b"k", partition=0, headers=[("a", b"b")], timestamp_ms=17)
        print(made.topic, made.partition, made.offset)
        later = [await p.send("orders", {"n": n}, partition=0) for n in range(1, 4)]
        print([each.offset for each in await asyncio.gather(*later)])
        told = asyncio.Event()
        (await p.send("orders", {"n": 4}, partition=1)).add_done_callback(lambda made: told.set())
        await told.wait()
        await p.flush()
        with contextlib.suppress(Exception):  # as OpenTelemetry's instrumentor asks
            await p.client._wait_on_metadata("orders")
        batch = p.create_batch()
        print(batch.append(key=None, value={"n": 5}, timestamp=None) is not None)
        made = await (await p.send_batch(batch, "orders", partition=2))
        print(made.offset, sorted(await p.partitions_for("orders")))
        await asyncio.gather(*(p.send_and_wait("others", {"n": n}, partition=0) for n in range(5)))
        try:
            await p.send("orders", "x" * 2_000_000)
        except MessageSizeTooLargeError as exc:
            print(str(exc)[:40])

async def take():
    c = AIOKafkaConsumer("orders", **at, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False,
                         value_deserializer=json.loads)
    async with c:
        count = 0
        async for message in c:
            print(message.partition, message.offset, message.key, message.value, message.headers)
            count += 1
            if count == 6:
                break
        await c.commit()
        print(sorted(c.assignment()), await c.committed(TopicPartition("orders", 0)))
        print(await c.getmany(timeout_ms=50), await c.end_offsets([TopicPartition("orders", 0)]))
        try:
            await asyncio.wait_for(c.getone(TopicPartition("orders", 3)), 0.1)
        except asyncio.TimeoutError:
            print("nothing came")

async def worse():
    p = AIOKafkaProducer(**at, transactional_id="t")
    await p.start()
    async with p.transaction():
        await p.send_and_wait("sold", b"one", partition=0)
    try:
        async with p.transaction():
            await p.send("sold", b"two", partition=0)
            raise ValueError("not sold")
    except ValueError as exc:
        print(exc)
    try:
        await p.send("sold", b"three")
    except IllegalOperation as exc:
        print(exc)
    await p.stop()
    away = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    try:
        await away.start()
    except KafkaConnectionError as exc:
        print(exc)
    finally:
        await away.stop()

async def main():
    await send()
    await take()
    await worse()

asyncio.run(main())
"""
LISTENER: Final = """
import asyncio, os
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition

at = {"bootstrap_servers": os.environ["KAFKA"]}

class Listener(ConsumerRebalanceListener):
    def __init__(self, consumer):
        self.consumer = consumer

    async def on_partitions_revoked(self, revoked):
        print("revoked", sorted(revoked))

    async def on_partitions_assigned(self, assigned):
        print("assigned", sorted(assigned))
        for place in assigned:
            self.consumer.seek(place, 1)
        print(await self.consumer.committed(TopicPartition("orders", 0)))

async def main():
    async with AIOKafkaProducer(**at) as p:
        for n in range(3):
            await p.send_and_wait("orders", str(n).encode(), partition=0)
    c = AIOKafkaConsumer(**at, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    c.subscribe(["orders"], listener=Listener(c))
    await c.start()
    print("started")
    for _ in range(2):
        message = await c.getone(TopicPartition("orders", 0))
        print(message.offset, message.value)
    await c.commit()
    await c.stop()

asyncio.run(main())
"""
KAFKA_PYTHON: Final = """
import json, os
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, MessageSizeTooLargeError

at = {"bootstrap_servers": os.environ["KAFKA"]}
p = KafkaProducer(**at, value_serializer=lambda value: json.dumps(value).encode())
future = p.send("orders", {"n": 0}, key=b"k", partition=0, headers=[("a", b"b")], timestamp_ms=1700000000000)
made = future.get(timeout=60)
print(made.topic, made.partition, made.offset, made.timestamp, future.is_done, future.succeeded(), future.value.offset)
heard = []
for n in range(3):
    later = p.send("orders", {"n": n + 1}, partition=0)
    later.add_callback(lambda made, n=n: heard.append((n, made.offset))).add_errback(print)
p.flush()
print(heard)
print([each.get(60).offset for each in [p.send("orders", {"m": n}, partition=0) for n in range(3)]])
try:
    p.send("orders", "x" * 2_000_000)
except MessageSizeTooLargeError as exc:
    print(str(exc)[:40])
c = KafkaConsumer(**at, auto_offset_reset="earliest", value_deserializer=json.loads, consumer_timeout_ms=3000)
c.assign([TopicPartition("orders", 0)])
c.seek(TopicPartition("orders", 0), 1)
taken = [next(c) for _ in range(2)]
while len(taken) < 6:
    for place, found in c.poll(timeout_ms=50, max_records=3).items():
        taken += found
print([(each.offset, each.key, each.value, each.timestamp > 0) for each in taken])
print(c.assignment(), c.position(TopicPartition("orders", 0)), c.end_offsets([TopicPartition("orders", 0)]))
print(list(c), c.partitions_for_topic("nowhere"))
c.close()
p.close()
try:
    p.send("orders", 1)
except KafkaError as exc:
    print(exc)
try:
    KafkaProducer(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=200)
except KafkaError as exc:
    print(exc)
"""


@pytest.mark.parametrize(
    ("source", "run"),
    [(AIOKAFKA, a_broker), (LISTENER, a_broker), (KAFKA_PYTHON, a_tansu)],
    ids=["aiokafka", "listener", "kafka-python"],
)
def test_s50_messages_of_clients_in_python_replay_without_a_broker(source: str, run: Any, tmp_path: Path) -> None:
    """Calls, futures, callbacks and errors come as they came, and nothing is sent."""
    place = Workplace(tmp_path)
    place.write("agent.py", source)
    with run() as broker:
        recorded = place.record("agent.py", KAFKA=broker.servers)
    assert_same(place.replay("agent.py", KAFKA=broker.servers), recorded.stdout)


IN_THREAD: Final = """
import os
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer

at = {"bootstrap_servers": os.environ["KAFKA"]}

class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked):
        pass

    def on_partitions_assigned(self, assigned):
        print("assigned", sorted(assigned))

p = KafkaProducer(**at)
p.send("orders", b"a", partition=0).get(60)
c = KafkaConsumer(**at, group_id="g", auto_offset_reset="earliest", session_timeout_ms=6000)
c.subscribe(["orders"], listener=Listener())
for _ in range(300):
    if c.poll(timeout_ms=100):
        break
"""


def test_n4_a_listener_in_a_thread_of_the_client_leaves_a_hole(tmp_path: Path) -> None:
    """kafka-python 3 calls listeners in a thread of its own, in no order with the program's."""
    place = Workplace(tmp_path)
    place.write("agent.py", IN_THREAD)
    with a_tansu() as broker:
        place.record("agent.py", KAFKA=broker.servers)
    assert any("a listener was told of partitions" in each for each in place.recording().completeness().reasons)
    replayed = place.replay("agent.py", KAFKA=broker.servers)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr


SEND: Final = {
    "aiokafka": """
import asyncio, os
from aiokafka import AIOKafkaProducer

at = {"bootstrap_servers": os.environ["KAFKA"]}

async def main():
    async with AIOKafkaProducer(**at, value_serializer=lambda value: value.encode()) as p:
        await p.send("orders", "hello", key=b"k", partition=1, headers=[("a", b"b")], timestamp_ms=1700000000000)

asyncio.run(main())
""",
    "kafka-python": """
import os
from kafka import KafkaProducer

p = KafkaProducer(bootstrap_servers=os.environ["KAFKA"], value_serializer=lambda value: value.encode())
p.send("orders", "hello", key=b"k", partition=1, headers=[("a", b"b")], timestamp_ms=1700000000000)
p.flush()
""",
}
CHANGES: Final = {
    "value": ('"hello"', '"other"'),
    "serializer": ("value.encode()", "value.upper().encode()"),
    "key": ('b"k"', 'b"j"'),
    "partition": ("partition=1", "partition=2"),
    "header": ('b"b"', 'b"c"'),
    "timestamp": ("1700000000000", "1700000000001"),
    "topic": ('"orders"', '"others"'),
    "acks": ("value.encode()", "value.encode(), acks=0"),
}


@pytest.mark.parametrize("client", SEND)
def test_n14_a_changed_message_of_a_client_in_python_is_named(client: str, tmp_path: Path) -> None:
    """What is sent is compared, whichever part of it changes."""
    place = Workplace(tmp_path)
    place.write("agent.py", SEND[client])
    with a_tansu() as broker:
        place.record("agent.py", KAFKA=broker.servers)
    for part, (old, new) in CHANGES.items():
        place.write("agent.py", SEND[client].replace(old, new))
        replayed = place.replay("agent.py", KAFKA=broker.servers)
        name = "tool:kafka.connect" if part == "acks" else "tool:kafka.produce"
        assert replayed.causes()[0] == ("changed_call", name), f"{part}: {replayed.stderr}"


FASTSTREAM: Final = """
import asyncio, os
from faststream.KIND import KafkaBroker

async def main():
    async with KafkaBroker(os.environ["KAFKA"]) as broker:
        await broker.publish("hello", "orders", partition=0)
        await broker.publish({"a": 1}, "orders", key=b"k")

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["kafka", "confluent"])
def test_s50_what_a_framework_sends_for_the_agent_is_the_agents(kind: str, tmp_path: Path) -> None:
    """A broker object of FastStream in a script: its messages are calls, of it or of the client below it."""
    place = Workplace(tmp_path)
    source = FASTSTREAM.replace("KIND", kind)
    place.write("agent.py", source)
    with a_tansu() as broker:
        recorded = place.record("agent.py", KAFKA=broker.servers)
    assert_same(place.replay("agent.py", KAFKA=broker.servers), recorded.stdout)
    place.write("agent.py", source.replace("hello", "other"))
    replayed = place.replay("agent.py", KAFKA=broker.servers)
    asked = {"kafka": "tool:faststream.publish", "confluent": "tool:kafka.produce"}[kind]
    assert replayed.causes()[0] == ("changed_call", asked), replayed.stderr


SERVICE: Final = """
import asyncio, json, os, threading
from contextlib import asynccontextmanager
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.aio import AIOProducer
from fastapi import FastAPI, Request
from kafka import KafkaProducer

class Polled:
    def __init__(self):
        self.loop, self.producer = asyncio.get_running_loop(), Producer({"bootstrap.servers": os.environ["KAFKA"]})
        self.is_stopped, self.thread = False, threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.is_stopped:
            self.producer.poll(0.05)

    def stop(self):
        self.is_stopped = True
        self.thread.join()

    def produce(self, value):
        result = self.loop.create_future()
        report = lambda error, made: self.loop.call_soon_threadsafe(result.set_result, made)
        self.producer.produce("orders", value, on_delivery=report, partition=2)
        return result

@asynccontextmanager
async def lifespan(app):
    polled = Polled()
    batched = AIOProducer({"bootstrap.servers": os.environ["KAFKA"]}, buffer_timeout=0.1)
    threaded = KafkaProducer(bootstrap_servers=os.environ["KAFKA"])
    native = Producer({"bootstrap.servers": os.environ["KAFKA"]})
    async with AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA"]) as looped:
        yield {"looped": looped, "threaded": threaded, "native": native, "polled": polled, "batched": batched}
    threaded.close()
    native.flush()
    polled.stop()
    await batched.close()

app = FastAPI(lifespan=lifespan)

@app.get("/looped/{text}")
async def looped(text: str, request: Request):
    await request.state.looped.send("orders", b"unseen", partition=0)
    return {"offset": (await request.state.looped.send_and_wait("orders", text.encode(), partition=0)).offset}

@app.get("/threaded/{text}")
def threaded(text: str, request: Request):
    heard = []
    p = request.state.threaded
    p.send("orders", text.encode(), partition=1).add_callback(lambda made: heard.append(made.offset))
    p.flush()
    return {"heard": heard, "next": p.send("orders", b"x", partition=1).get(60).offset}

@app.get("/native/{text}")
def native(text: str, request: Request):
    heard = []
    request.state.native.produce("orders", text, partition=2, callback=lambda error, made: heard.append(made.offset()))
    return {"left": request.state.native.flush(), "heard": heard}

@app.get("/queued/{text}")
async def queued(text: str, request: Request):
    request.state.native.produce("orders", text, partition=2, callback=lambda error, made: print(made.value()))
    request.state.native.poll(0)
    return {"queued": text}

@app.get("/polled/{text}")
async def polled(text: str, request: Request):
    made = await request.state.polled.produce(text)
    return {"offset": made.offset(), "value": made.value().decode()}

@app.get("/batched/{text}")
async def batched(text: str, request: Request):
    made = await (await request.state.batched.produce("orders", value=text.encode(), partition=0))
    return {"offset": made.offset(), "value": made.value().decode()}
"""


def test_p4_requests_share_producers_of_kafka(provider: Provider, tmp_path: Path) -> None:
    """Each request replays alone on a fresh process, also one that polled while another's message was delivered."""
    place = prepare(tmp_path, provider, SERVICE)
    paths = ("/looped/a", "/threaded/b", "/queued/c", "/native/d", "/polled/e", "/batched/f", "/native/g", "/polled/h")
    with a_tansu() as broker, serve(place, KAFKA=broker.servers) as server:
        for path in paths:
            assert httpx.get(f"{server.url}{path}", timeout=TIMEOUT_S).status_code == 200
        server.await_ends()
        server.stop()
    units = server.units()
    assert len(units) == len(paths)
    assert server.the_process().completeness().is_complete
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*COMMAND, source=unit.run_id, KAFKA=broker.servers)
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
