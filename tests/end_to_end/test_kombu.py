"""Messages that an agent gives to a broker with kombu itself replay without it: on RabbitMQ and on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.orders import insist_that_orders_replay_alone
from support.provider import Provider
from support.rabbitmq_server import a_rabbitmq
from support.redis_server import a_redis
from support.replaying import Workplace, assert_same
from support.units import prepare

NOBODY: Final = {"amqp": "amqp://guest:guest@127.0.0.1:1//", "redis": "redis://127.0.0.1:1/0"}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of a RabbitMQ and of a Redis."""
    folder = tmp_path_factory.mktemp("brokers")
    with a_rabbitmq(folder) as rabbitmq, a_redis(folder) as redis:
        yield {"amqp": f"{rabbitmq.url}/", "redis": f"redis://127.0.0.1:{redis}/0"}


PROGRAM: Final = """
import os, socket
from kombu import Connection, Exchange, Queue
from kombu.pools import connections, producers

URL, WHO = os.environ["BROKER"], os.environ.get("WHO", "ann")
media = Exchange("media", "direct", durable=False)
video = Queue("video", exchange=media, routing_key="video", durable=False)

def take(body, message):
    print(body, message.headers, message.content_type, message.delivery_info["routing_key"])
    message.ack()

with Connection(URL) as connection:
    producer = connection.Producer(serializer="json")
    producer.publish(
        {"name": f"for {WHO}"}, exchange=media, routing_key="video", declare=[video], headers={"n": 1}, retry=True
    )
    with connection.Consumer(video, callbacks=[take]):
        connection.drain_events(timeout=60)
        producer.publish("two", exchange=media, routing_key="video", compression="zlib")
        connection.drain_events(timeout=60)
        try:
            connection.drain_events(timeout=0.05)
        except socket.timeout as exc:
            print(type(exc))
    simple = connection.SimpleQueue("simple")
    for each in ({"a": 1}, [1, 2]):
        simple.put(each)
    for number in range(2):
        message = simple.get(timeout=60)
        print(message.payload)
        message.ack() if number else message.reject()
    for get in (lambda: simple.get(timeout=0.05), simple.get_nowait):
        try:
            get()
        except simple.Empty as exc:
            print(type(exc))
    simple.close()

pooled = Connection(URL)
for number in range(2):
    with producers[pooled].acquire(block=True) as producer:
        producer.publish(number, exchange=media, routing_key="video", declare=[video])
with connections[pooled].acquire(block=True) as connection:
    queue = video(connection.channel())
    got = []
    while len(got) < 2:
        message = queue.get()
        if message is not None:
            got.append(message.payload)
            message.ack()
    print(got, queue.get(), queue.purge())
    queue.delete()
try:
    Connection("amqp://guest:unspoken@127.0.0.1:9//").ensure_connection(
        max_retries=1, interval_start=0.01, interval_step=0
    )
except Exception as exc:
    print(type(exc), exc)
"""


@pytest.mark.parametrize("kind", NOBODY)
def test_s50_messages_of_kombu_replay_without_a_broker(kind: str, brokers: dict[str, str], tmp_path: Path) -> None:
    """What was published, taken and waited for comes again; a changed message is named."""
    place = Workplace(tmp_path)
    # Whether a message that was just published is there already is up to the broker: the program asks until it is
    place.write("agent.py", PROGRAM)
    recorded = place.record("agent.py", BROKER=brokers[kind])
    recording = place.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert not any("unspoken" in text for call in recording.calls for text in (call.request, call.response))
    assert_same(place.replay("agent.py", BROKER=NOBODY[kind]), recorded.stdout)
    changed = place.replay("agent.py", BROKER=NOBODY[kind], WHO="bob")
    assert changed.causes() == [("changed_call", "tool:kombu.publish")], changed.stderr


SERVED: Final = """
import os
from contextlib import asynccontextmanager
from fastapi import FastAPI
from kombu import Connection, Queue
from kombu.pools import producers

broker = Connection(os.environ["BROKER"])
orders = Queue("orders", routing_key="orders", durable=False)

app = FastAPI()

@app.post("/orders/{text}")
def order(text: str):
    with producers[broker].acquire(block=True) as producer:
        producer.publish({"text": text}, routing_key="orders", declare=[orders])
        queue = orders(producer.channel)
        message = queue.get()
        if message is not None:
            message.ack()
        return {"taken": message and message.payload}
"""


@pytest.mark.parametrize("kind", NOBODY)
def test_p4_requests_that_publish_with_kombu_replay_alone(
    kind: str, brokers: dict[str, str], provider: Provider, tmp_path: Path
) -> None:
    """A pool of connections is used by many requests at once; which of them connects does not matter."""
    place = prepare(tmp_path, provider, SERVED)
    change = ('"text": text', '"text": text + "!"')
    environ = {"BROKER": brokers[kind]}
    insist_that_orders_replay_alone(place, environ, {"BROKER": NOBODY[kind]}, change, "tool:kombu.publish")
