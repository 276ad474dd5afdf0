"""Messages that an agent gives to RabbitMQ and takes from it replay without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.orders import insist_that_orders_replay_alone
from support.provider import Provider
from support.rabbitmq_server import Broker, a_rabbitmq
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import await_true, prepare

NOBODY: Final = "amqp://guest:guest@127.0.0.1:1/"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A RabbitMQ; each test has queues of its own."""
    with a_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as made:
        yield made


@pytest.fixture
def broker(node: Broker) -> str:
    """Its address."""
    return node.url


HEAD: Final = """
import asyncio, os
import aio_pika
from aio_pika import Message
URL, WHO = os.environ["AMQP_URL"], os.environ.get("WHO", "ann")
"""
PUBLISHING: Final = f"""{HEAD}
async def main():
    async with await aio_pika.connect_robust(URL) as connection:
        channel = await connection.channel()
        orders = await channel.declare_exchange("orders", aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await channel.declare_queue("", exclusive=True)
        await queue.bind(orders, "new.*")
        message = Message(f"for {{WHO}}".encode(), headers={{"n": 1}}, correlation_id="c", expiration=60)
        answer = await orders.publish(message, "new.one")
        print(type(answer).__name__, answer.delivery_tag)
        await asyncio.gather(*(orders.publish(Message(b"%d" % n), "new.two") for n in range(3)))
        taken = await queue.get()
        print(taken.body, taken.headers, taken.correlation_id, taken.expiration, taken.exchange, taken.routing_key)
        await taken.ack()
        async with queue.iterator() as messages:
            async for each in messages:
                async with each.process():
                    print(each.body, each.consumer_tag)
                if each.body == b"2":
                    break
        print(await queue.get(fail=False))
        try:
            await queue.get()
        except aio_pika.exceptions.QueueEmpty as exc:
            print(type(exc))

asyncio.run(main())
"""
REFUSED: Final = f"""{HEAD}
async def main():
    connection = await aio_pika.connect(URL)
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue("", exclusive=True)
    async with channel.transaction():
        await channel.default_exchange.publish(Message(b"kept"), queue.name)
    try:
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"lost"), queue.name)
            raise ValueError(WHO)
    except ValueError as exc:
        print(exc)
    print((await queue.get()).body, await queue.get(fail=False), (await queue.purge()).message_count)
    raising = await connection.channel(on_return_raises=True)
    try:
        await raising.default_exchange.publish(Message(b"x", message_id="m"), "nowhere")
    except aio_pika.exceptions.PublishError as exc:
        print(exc, exc.message.body, exc.frame.reply_text)
    told = await connection.channel()
    told.return_callbacks.add(lambda channel, message: print("came back", message.body, message.routing_key))
    back = await told.default_exchange.publish(Message(b"y"), "nowhere")
    print(back.delivery.reply_code)
    closed = asyncio.Event()
    told.close_callbacks.add(lambda channel, exc: closed.set())
    try:
        await told.get_queue("missing")
    except aio_pika.exceptions.ChannelNotFoundEntity as exc:
        print(exc)
    await closed.wait()
    try:
        await told.default_exchange.publish(Message(b"z"), queue.name)
    except Exception as exc:
        print(type(exc), told.is_closed)
    await connection.close()
    for address in (URL.replace("guest:guest", "guest:unspoken"), "amqp://127.0.0.1:9/"):
        try:
            await aio_pika.connect_robust(address)
        except Exception as exc:
            print(type(exc), exc)

asyncio.run(main())
"""
CONSUMING: Final = f"""{HEAD}
from aio_pika.patterns import RPC

async def main():
    connection = await aio_pika.connect_robust(URL)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=2)
    queue = await channel.declare_queue("", exclusive=True)
    seen, done = [], asyncio.Event()

    async def work(message):
        async with message.process():
            seen.append(message.body)
            if message.body == b"2":
                await channel.default_exchange.publish(Message(WHO.encode()), queue.name)
            if message.body == WHO.encode():
                done.set()

    tag = await queue.consume(work)
    await asyncio.gather(*(channel.default_exchange.publish(Message(b"%d" % n), queue.name) for n in range(3)))
    await done.wait()
    await queue.cancel(tag)
    print(seen)
    try:
        async with queue.iterator(timeout=0.1) as messages:
            async for each in messages:
                print(each)
    except asyncio.TimeoutError:
        print("nothing came")
    rpc = await RPC.create(channel)
    async def double(*, x):
        return x * 2
    await rpc.register("double", double, auto_delete=True)
    print([await rpc.proxy.double(x=n) for n in range(3)])
    await connection.close()

asyncio.run(main())
"""
BLOCKING: Final = """
import os, pika
params = pika.URLParameters(os.environ["AMQP_URL"] + "%2F")
WHO = os.environ.get("WHO", "ann")
with pika.BlockingConnection(params) as connection:
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, f"for {WHO}", pika.BasicProperties(headers={"n": 1}, delivery_mode=2))
    method, properties, body = channel.basic_get(queue)
    print(method, properties.headers, body)
    channel.basic_ack(method.delivery_tag)
    print(channel.basic_get(queue))
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"two")
    try:
        channel.basic_publish("", "nowhere", b"x", mandatory=True)
    except pika.exceptions.UnroutableError as exc:
        print(exc, exc.messages[0].body)
    for method, properties, body in channel.consume(queue, inactivity_timeout=0.1):
        print(body)
        if method is None:
            break
        channel.basic_ack(method.delivery_tag)
    channel.cancel()
    connection.call_later(0, lambda: print("later"))

    def take(channel, method, properties, body):
        print(body, method.consumer_tag)
        channel.basic_ack(method.delivery_tag)
        if body == b"2":
            channel.basic_publish("", queue, b"last")
        if body == b"last":
            channel.stop_consuming()

    channel.basic_consume(queue, take)
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    channel.start_consuming()
    told = connection.channel()
    try:
        told.queue_declare("missing", passive=True)
    except pika.exceptions.ChannelClosedByBroker as exc:
        print(exc, told.is_open, connection.is_open)
    try:
        told.basic_publish("", queue, b"")
    except pika.exceptions.ChannelWrongStateError as exc:
        print(exc)
    told = connection.channel()
    told.tx_select()
    told.basic_publish("", queue, b"kept")
    print(told.tx_commit().method, told.queue_purge(queue).method.message_count)
print(connection.is_open)
for address in (os.environ["AMQP_URL"].replace("guest:guest", "guest:unspoken") + "%2F", "amqp://127.0.0.1:9/%2F"):
    try:
        pika.BlockingConnection(pika.URLParameters(address))
    except pika.exceptions.AMQPError as exc:
        print(repr(exc))
"""
IN_THREADS: Final = """
import functools, os, pika, threading
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"] + "%2F"))
channel = connection.channel()
queue = channel.queue_declare("", exclusive=True).method.queue
channel.basic_qos(prefetch_count=1)

def work(tag, body):
    print("working on", body.decode())
    connection.add_callback_threadsafe(functools.partial(channel.basic_ack, tag))
    if body == b"2":
        connection.add_callback_threadsafe(channel.stop_consuming)

def take(channel, method, properties, body):
    thread = threading.Thread(target=work, args=(method.delivery_tag, body))
    thread.start()
    thread.join()

channel.basic_consume(queue, take)
for number in range(3):
    channel.basic_publish("", queue, b"%d" % number)
channel.start_consuming()
connection.sleep(0.01)
channel.basic_publish("", queue, b"x" * 300_000)
print(len(channel.basic_get(queue, auto_ack=True)[2]))
channel.basic_ack(77)
try:
    while True:
        connection.process_data_events(0.01)
        channel.basic_publish("", queue, b"")
except pika.exceptions.AMQPError as exc:
    print(repr(exc), channel.is_open)
connection.close()
"""
PROGRAMS: Final = {
    "publishing": PUBLISHING,
    "refused": REFUSED,
    "consuming": CONSUMING,
    "pika": BLOCKING,
    "pika-threads": IN_THREADS,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_s50_messages_of_rabbitmq_replay_without_a_broker(name: str, broker: str, tmp_path: Path) -> None:
    """What was published, taken, refused and delivered comes again; a password is nowhere in clear."""
    place = Workplace(tmp_path)
    place.write("agent.py", PROGRAMS[name])
    recorded = place.record("agent.py", AMQP_URL=broker)
    recording = place.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert not any("unspoken" in text for call in recording.calls for text in (call.request, call.response))
    assert_same(place.replay("agent.py", AMQP_URL=NOBODY), recorded.stdout)


def test_u1_functions_that_hear_of_a_refused_message_are_called_as_in_a_plain_run(broker: str, tmp_path: Path) -> None:
    """Recording calls each of them once."""
    place = Workplace(tmp_path)
    place.write("agent.py", REFUSED)
    assert place.record("agent.py", AMQP_URL=broker).stdout == place.run_plain("agent.py", AMQP_URL=broker)


@pytest.mark.parametrize("name", ["publishing", "pika"])
def test_n14_a_changed_message_of_rabbitmq_diverges(name: str, broker: str, tmp_path: Path) -> None:
    """The verdict names the call and the part of the message."""
    place = Workplace(tmp_path)
    place.write("agent.py", PROGRAMS[name])
    place.record("agent.py", AMQP_URL=broker)
    replayed = place.replay("agent.py", AMQP_URL=NOBODY, WHO="bob")
    assert replayed.causes() == [("changed_call", "tool:amqp.publish")]
    assert "for bob" in replayed.stderr


LOST: Final = f"""{HEAD}
async def main():
    connection = await aio_pika.connect_robust(URL, reconnect_interval=1)
    back = asyncio.Event()

    async def hear(*args):
        print("connected again")
        await (await connection.channel()).declare_queue("heard", auto_delete=True)
        back.set()

    connection.reconnect_callbacks.add(hear)
    connection.close_callbacks.add(lambda connection, exc: print("closed", type(exc)))
    channel = await connection.channel()
    queue = await channel.declare_queue("lost-and-found")
    seen = asyncio.Queue()

    async def take(message):
        async with message.process():
            seen.put_nowait(message.body)

    await queue.consume(take)
    await channel.default_exchange.publish(Message(b"before"), queue.name)
    print(await seen.get())
    open("ready", "w").close()
    await back.wait()
    await channel.default_exchange.publish(Message(b"after"), queue.name)
    print(await seen.get())
    await queue.delete(if_unused=False, if_empty=False)
    await connection.close()

asyncio.run(main())
"""
LOST_BY_PIKA: Final = """
import os, pika
parameters = pika.URLParameters(os.environ["AMQP_URL"] + "%2F")

def connect():
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    return connection, channel, channel.queue_declare("lost-by-pika").method.queue

connection, channel, queue = connect()
channel.basic_publish("", queue, b"before")
try:
    for method, properties, body in channel.consume(queue):
        print(body)
        channel.basic_ack(method.delivery_tag)
        open("ready", "w").close()
except pika.exceptions.AMQPError as exc:
    print(repr(exc), connection.is_open, channel.is_open)
try:
    channel.basic_publish("", queue, b"lost")
except pika.exceptions.AMQPError as exc:
    print(repr(exc))
connection, channel, queue = connect()
channel.basic_publish("", queue, b"after")
print(channel.basic_get(queue, auto_ack=True)[2])
channel.queue_delete(queue)
connection.close()
"""


@pytest.mark.parametrize("source", [LOST, LOST_BY_PIKA], ids=["aio-pika", "pika"])
def test_s50_a_lost_connection_to_rabbitmq_replays_without_one(source: str, node: Broker, tmp_path: Path) -> None:
    """What the program hears of it comes again; what its client restores by itself is left out."""
    place = Workplace(tmp_path)
    place.write("agent.py", source)
    process = place.spawn([str(place.python), "agent.py"], AMQP_URL=node.url)
    await_true((tmp_path / "ready").exists)
    node.close_connections()
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    assert place.recording().completeness().is_complete, place.recording().completeness().reasons
    assert_same(place.replay("agent.py", AMQP_URL=NOBODY), stdout)


SERVED: Final = """
import os
from contextlib import asynccontextmanager
import aio_pika
from fastapi import FastAPI

@asynccontextmanager
async def lifespan(app):
    app.state.connection = await aio_pika.connect_robust(os.environ["AMQP_URL"])
    app.state.channel = await app.state.connection.channel()
    app.state.queue = await app.state.channel.declare_queue("served", auto_delete=True)
    yield
    await app.state.connection.close()

app = FastAPI(lifespan=lifespan)

@app.post("/orders/{text}")
async def order(text: str):
    made = await app.state.channel.default_exchange.publish(aio_pika.Message(text.encode()), "served")
    taken = await app.state.queue.get()
    await taken.ack()
    return {"tag": made.delivery_tag, "taken": taken.body.decode()}
"""
SERVED_BY_PIKA: Final = """
import os, threading
from contextlib import asynccontextmanager
import pika
from fastapi import FastAPI

lock = threading.Lock()

@asynccontextmanager
async def lifespan(app):
    app.state.connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"] + "%2F"))
    app.state.channel = app.state.connection.channel()
    app.state.channel.queue_declare("served-pika", auto_delete=True)
    app.state.channel.confirm_delivery()
    yield
    app.state.connection.close()

app = FastAPI(lifespan=lifespan)

@app.post("/orders/{text}")
def order(text: str):
    with lock:
        app.state.channel.basic_publish("", "served-pika", text.encode())
        method, _, body = app.state.channel.basic_get("served-pika")
        app.state.channel.basic_ack(method.delivery_tag)
        return {"tag": method.delivery_tag, "taken": body.decode()}
"""


@pytest.mark.parametrize("source", [SERVED, SERVED_BY_PIKA], ids=["aio-pika", "pika"])
def test_p4_requests_that_publish_on_a_shared_connection_replay_alone(
    source: str, broker: str, provider: Provider, tmp_path: Path
) -> None:
    """A connection that the application opened at its start is used by many requests at once."""
    place = prepare(tmp_path, provider, source)
    change = ("text.encode()", "text.upper().encode() + b'!'")
    insist_that_orders_replay_alone(place, {"AMQP_URL": broker}, {"AMQP_URL": NOBODY}, change, "tool:amqp.publish")


LIVE: Final = {
    "pika": """
import os, pika
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"] + "%2F"))
channel = connection.channel()
try:
    channel.basic_publish("", "nowhere", b"x")
except OSError as exc:
    print(exc)
""",
    "aio-pika": f"""{HEAD}
async def main():
    channel = await (await aio_pika.connect(URL)).channel()
    try:
        await channel.default_exchange.publish(Message(b"x"), "nowhere", mandatory=False)
    except OSError as exc:
        print(exc)

asyncio.run(main())
""",
}


@pytest.mark.parametrize("name", LIVE)
def test_n14_a_call_that_a_plan_lets_go_live_needs_a_live_connection(name: str, broker: str, tmp_path: Path) -> None:
    """On a connection that is served, publishing live raises instead of seeming to work."""
    place = Workplace(tmp_path)
    place.write("agent.py", LIVE[name])
    place.record("agent.py", AMQP_URL=broker)
    replayed = place.replay("agent.py", AMQP_URL=broker, options=["--live", "tool:amqp.publish"])
    assert "can't run live" in replayed.stdout, replayed.stderr
