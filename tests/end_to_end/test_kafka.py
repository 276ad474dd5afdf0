"""An agent's messages replay without a broker of Kafka: producers, reports of delivery, consumers, transactions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.kafka_broker import Broker, a_broker, a_tansu
from support.replaying import TIMEOUT_S, Workplace, assert_same


@pytest.fixture
def broker() -> Iterator[Broker]:
    """An empty broker."""
    with a_broker() as made:
        yield made


PRODUCE: Final = """
import os
from confluent_kafka import Producer, SerializingProducer
from confluent_kafka.serialization import StringSerializer

conf = {"bootstrap.servers": os.environ["KAFKA"]}
made = []

def report(error, message):
    made.append(message)
    print(error, message.topic(), message.partition(), message.offset(), message.key(), message.value())
    if message.value() == b"again":
        p.produce("orders", "made in a report", partition=1, callback=report)

p = Producer({**conf, "on_delivery": report})
p.produce("orders", "hello", key="k", partition=0, headers={"a": b"b"}, timestamp=1700000000000)
while len(p):
    p.poll(0.1)
p.produce("orders", b"again", partition=0)
print(p.flush(60), p.poll(0), len(p), made[0].latency() > 0, made[0].timestamp()[1])
print(p.produce_batch("orders", [{"value": b"x"}, {"value": b"y", "key": b"z"}], partition=0), p.flush())
with SerializingProducer({**conf, "value.serializer": StringSerializer()}) as s:
    s.produce("orders", value="text", partition=0, on_delivery=report)
"""
CONSUME: Final = """
import json, os
from confluent_kafka import Consumer, DeserializingConsumer, KafkaException, Producer, TopicPartition
from confluent_kafka.serialization import StringDeserializer

conf = {"bootstrap.servers": os.environ["KAFKA"]}
p = Producer(conf)
for n in range(4):
    p.produce("orders", json.dumps({"n": n}), key=str(n), partition=0)
p.flush()

def assigned(consumer, places):
    print("assigned", sorted((each.topic, each.partition) for each in places))
    consumer.assign([TopicPartition(each.topic, each.partition, 1) for each in places])

def revoked(consumer, places):
    try:
        print("revoked", len(places), consumer.commit(asynchronous=False)[0].offset)
    except KafkaException as exc:
        print(exc)

def committed(error, places):
    print("committed", error, max(each.offset for each in places))

c = Consumer({**conf, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False,
              "on_commit": committed, "session.timeout.ms": 6000})
c.subscribe(["orders"], on_assign=assigned, on_revoke=revoked)
got = []
while len(got) < 3:
    message = c.poll(0.2)
    if message is None:
        continue
    if message.error():
        raise KafkaException(message.error())
    got.append(message)
    print(message.partition(), message.offset(), message.key(), json.loads(message.value()), message.timestamp()[0])
c.commit(message=got[0])
while c.committed([TopicPartition("orders", 0)])[0].offset != 2:
    c.poll(0.05)
print(c.commit(message=got[-1], asynchronous=False)[0].offset, c.consume(5, timeout=0.01))
print(c.position([TopicPartition("orders", 0)]), c.get_watermark_offsets(TopicPartition("orders", 0)))
try:
    c.seek(TopicPartition("nowhere", 7, 3))
except KafkaException as exc:
    print(exc.args[0].name(), exc)
print(len(c.list_topics().topics["orders"].partitions), c.memberid() != "")
c.close()
try:
    c.poll(0)
except RuntimeError as exc:
    print(exc)
d = DeserializingConsumer({**conf, "group.id": "d", "auto.offset.reset": "earliest",
                           "value.deserializer": StringDeserializer()})
d.assign([TopicPartition("orders", 0, 2)])
while (message := d.poll(0.1)) is None:
    pass
print(message.value())
"""
WORSE: Final = """
import os, queue, threading
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

conf = {"bootstrap.servers": os.environ["KAFKA"]}
p = Producer({**conf, "transactional.id": "t"})
p.init_transactions(60)
p.begin_transaction()
p.produce("orders", b"one", partition=0, on_delivery=lambda error, message: print(error, message.value()))
p.commit_transaction(60)
p.begin_transaction()
p.produce("orders", b"two", partition=0)
p.abort_transaction(60)
try:
    p.commit_transaction()
except KafkaException as exc:
    print(exc.args[0].name(), exc.args[0].retriable())
c = Consumer({**conf, "group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
c.subscribe(["orders"])
while (message := c.poll(0.1)) is None:
    pass
p.begin_transaction()
p.produce("out", message.value().upper())
p.send_offsets_to_transaction(c.position(c.assignment()), c.consumer_group_metadata())
p.commit_transaction()
c.close()

shared, stop, got = Producer(conf), threading.Event(), queue.Queue()

def serve():
    while not stop.is_set():
        shared.poll(0.02)

thread = threading.Thread(target=serve)
thread.start()
for n in range(3):
    shared.produce("orders", str(n), partition=0, callback=lambda error, message: got.put(message.value()))
print([got.get() for _ in range(3)])
stop.set()
thread.join()

def refuse(error, message):
    raise ValueError(message.value())

shared.produce("orders", "bad", callback=refuse)
try:
    shared.flush()
except ValueError as exc:
    print("raised", exc)
small = Producer({**conf, "queue.buffering.max.messages": 1, "linger.ms": 60000})
small.produce("orders", "1")
try:
    small.produce("orders", "2")
except BufferError as exc:
    print(exc)
for settings in ({"no.such": 1}, {"acks": "every"}):
    try:
        Producer(settings)
    except KafkaException as exc:
        print(exc)
heard = []
lost = Producer({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 300, "log_level": 0,
                 "error_cb": lambda error: heard.append(error.name())})
lost.produce("orders", "lost", callback=lambda error, message: print(error.name(), message.value()))
print(lost.flush(), sorted(set(heard)))
try:
    lost.produce("orders", b"x" * 2_000_000)
except KafkaException as exc:
    print(exc.args[0].name())
"""
ASYNC: Final = """
import asyncio, os
from confluent_kafka import KafkaException
from confluent_kafka.aio import AIOConsumer, AIOProducer

conf = {"bootstrap.servers": os.environ["KAFKA"]}

async def main():
    p = AIOProducer(dict(conf), batch_size=3, buffer_timeout=0.1)
    later = [await p.produce("orders", value=str(n).encode(), key=b"k", partition=0) for n in range(5)]
    print([(each.offset(), each.key(), each.value()) for each in await asyncio.gather(*later)])
    last = await p.produce("orders", value=b"last", partition=0)
    await p.flush()
    print((await last).offset(), len(p))
    refused = await p.produce("orders", value=b"x" * 2_000_000)
    try:
        await refused
    except KafkaException as exc:
        print(exc.args[0].name())
    await p.close()

    async def assigned(consumer, places):
        print("assigned", len(places))
        await consumer.assign(places)

    c = AIOConsumer({**conf, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    await c.subscribe(["orders"], on_assign=assigned)
    got = []
    while len(got) < 4:
        if (message := await c.poll(timeout=0.2)) is not None:
            got.append((message.offset(), message.value()))
    print(got, [each.offset for each in await c.commit(asynchronous=False) if each.offset >= 0])
    await c.close()

asyncio.run(main())
"""
ADMIN: Final = """
import asyncio, concurrent.futures, os
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

a = AdminClient({"bootstrap.servers": os.environ["KAFKA"]})
for topic, future in sorted(a.create_topics([NewTopic("orders", 2, 1), NewTopic("others", 1, 1)]).items()):
    print(topic, future.result(timeout=60), future.done())
try:
    a.create_topics([NewTopic("orders", 2, 1)])["orders"].result()
except KafkaException as exc:
    print(exc.args[0].name(), exc)
print(len(a.list_topics(timeout=60).topics["orders"].partitions))
resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
print(type(a.describe_configs([resource])[resource].result()))
place = TopicPartition("orders", 0)
print([each.result().offset for each in a.list_offsets({place: OffsetSpec.latest()}).values()])
print(len(a.describe_topics(TopicCollection(["orders"]))["orders"].result().partitions))
print(len(a.describe_cluster().result().nodes))
done, left = concurrent.futures.wait(a.delete_topics(["orders", "others"]).values(), timeout=60)
print(len(done), len(left))

async def main():
    print(await asyncio.wrap_future(a.create_topics([NewTopic("third", 1, 1)])["third"]))

asyncio.run(main())
"""


@pytest.mark.parametrize("source", [PRODUCE, CONSUME, WORSE, ASYNC], ids=["produce", "consume", "worse", "async"])
def test_s50_messages_of_kafka_replay_without_a_broker(source: str, broker: Broker, tmp_path: Path) -> None:
    """Calls, callbacks and errors come as they came, and nothing is sent."""
    place = Workplace(tmp_path)
    place.write("agent.py", source)
    recorded = place.record("agent.py", KAFKA=broker.servers)
    broker.stop()
    assert_same(place.replay("agent.py", KAFKA=broker.servers), recorded.stdout)


def test_s50_requests_of_an_administrator_replay_without_a_broker(tmp_path: Path) -> None:
    """Futures end as they ended, whoever waits for them."""
    place = Workplace(tmp_path)
    place.write("agent.py", ADMIN)
    with a_tansu() as tansu:
        recorded = place.record("agent.py", KAFKA=tansu.servers)
    assert_same(place.replay("agent.py", KAFKA=tansu.servers), recorded.stdout)


SHARED: Final = """
import os, subprocess
from confluent_kafka import ShareConsumer

c = ShareConsumer({"bootstrap.servers": os.environ["KAFKA"], "group.id": "g"})
c.subscribe(["orders"])
subprocess.run(["true"], check=True)
"""


def test_n4_a_client_of_kafka_that_is_not_recorded_leaves_a_hole(broker: Broker, tmp_path: Path) -> None:
    """What no method of ours knows is named, and a replay does not do it."""
    place = Workplace(tmp_path)
    place.write("agent.py", SHARED)
    place.record("agent.py", KAFKA=broker.servers)
    (why,) = place.recording().completeness().reasons
    assert "subscribe of a client of Kafka was used" in why
    replayed = place.replay("agent.py", KAFKA=broker.servers)
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr


LATE: Final = """
import os
from confluent_kafka import Producer, SerializingProducer
from confluent_kafka.serialization import StringSerializer
import spanreplay

conf = {"bootstrap.servers": os.environ["KAFKA"]}
early = Producer(conf)

def send(other=None):
    p = Producer(conf)
    p.produce("orders", "a", callback=lambda error, message: print(message.value()))
    s = SerializingProducer({**conf, "value.serializer": StringSerializer()})
    s.produce("orders", value="b")
    print(p.flush(), s.flush())
    if other is not None:
        other.produce("orders", "c")

with spanreplay.record() as first:
    send()
with spanreplay.record() as second:
    send(early)
print(first.run_id, second.run_id, type(early) is type(Producer(conf)))
"""


def test_u1_a_library_that_was_imported_before_recording_began_is_recorded(broker: Broker, tmp_path: Path) -> None:
    """Classes of the library are replaced wherever they are; objects that were made before leave a hole."""
    place = Workplace(tmp_path)
    place.write("agent.py", LATE)
    done = subprocess.run(
        [str(place.python), "agent.py"],
        cwd=tmp_path,
        env={**place.environ, "KAFKA": broker.servers},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    first, second = place.recordings()
    names = ["kafka.produce", "kafka.produce", "kafka.delivery", "kafka.flush", "kafka.flush"]
    assert [each.name for each in first.calls] == names
    assert first.completeness().is_complete
    assert "made before recording began" in second.completeness().reasons[0]


SEND: Final = """
import os
from confluent_kafka import Producer

p = Producer({"bootstrap.servers": os.environ["KAFKA"]})
p.produce("orders", "hello", key="k", partition=1, headers=[("a", "b")], timestamp=1700000000000)
p.flush()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [('"hello"', '"other"'), ('key="k"', 'key="j"'), ("partition=1", "partition=2"), ('"b")', '"c")'),
     ("1700000000000", "1700000000001"), ('"orders"', '"others"'), ('"KAFKA"]', '"KAFKA"], "acks": 0')],
    ids=["value", "key", "partition", "header", "timestamp", "topic", "acks"],
)  # fmt: skip
def test_n14_a_changed_message_of_kafka_is_named(old: str, new: str, broker: Broker, tmp_path: Path) -> None:
    """What is sent is compared, whichever part of it changes."""
    place = Workplace(tmp_path)
    place.write("agent.py", SEND)
    place.record("agent.py", KAFKA=broker.servers)
    broker.stop()
    place.write("agent.py", SEND.replace(old, new))
    replayed = place.replay("agent.py", KAFKA=broker.servers)
    assert replayed.causes()[0] == ("changed_call", "tool:kafka.produce"), replayed.stderr


SECRET: Final = """
import os
from confluent_kafka import KafkaException, Producer

p = Producer({"bootstrap.servers": os.environ["KAFKA"], "sasl.username": "someone", "sasl.password": "s3cr3t-w0rd"})
p.set_sasl_credentials("someone", "an0ther-w0rd")
p.produce("orders", "s3cr3t-w0rd and an0ther-w0rd")
p.flush()
"""


def test_r1_credentials_of_a_client_of_kafka_are_not_recorded(broker: Broker, tmp_path: Path) -> None:
    """Neither settings nor later credentials are in a recording, nor texts with them."""
    place = Workplace(tmp_path)
    place.write("agent.py", SECRET)
    place.record("agent.py", KAFKA=broker.servers)
    held = b"".join(each.read_bytes() for each in (tmp_path / ".spanreplay").rglob("*") if each.is_file())
    assert b"kafka.produce" in held
    assert b"s3cr3t-w0rd" not in held
    assert b"an0ther-w0rd" not in held
