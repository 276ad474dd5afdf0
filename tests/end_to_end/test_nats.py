"""Messages that an agent gives to NATS, asks for and takes replay without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.nats_server import a_nats
from support.orders import insist_that_orders_replay_alone
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import await_true, prepare

NOBODY: Final = "nats://127.0.0.1:1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a NATS server with streams."""
    with a_nats(tmp_path_factory.mktemp("nats")) as port:
        yield f"nats://127.0.0.1:{port}"


HEAD: Final = """
import asyncio, os
import nats
URL, WHO = os.environ["NATS_URL"], os.environ.get("WHO", "ann")
"""
CORE: Final = f"""{HEAD}
async def main():
    async def closed():
        print("closed")

    nc = await nats.connect(URL, closed_cb=closed)
    print(nc.is_connected, nc.max_payload)
    done = asyncio.Event()

    async def answer(message):
        print("heard", message.subject, message.data, message.headers)
        if message.reply:
            await nc.publish(message.reply, b"re: " + message.data, headers={{"of": "us"}})
        if message.data == b"last":
            done.set()

    kept = await nc.subscribe("talk.*", cb=answer)
    await nc.publish("talk.a", f"for {{WHO}}".encode(), headers={{"n": "1"}})
    reply = await nc.request("talk.b", b"what", timeout=5)
    print(reply.data, reply.headers)
    try:
        await nc.request("nobody.here", b"x", timeout=5)
    except nats.errors.NoRespondersError as exc:
        print(type(exc))
    inbox = nc.new_inbox()
    asked = await nc.subscribe(inbox)
    await nc.publish("talk.c", b"q", reply=inbox)
    print((await asked.next_msg(timeout=5)).data)
    taken = await nc.subscribe("news")
    for number in range(3):
        await nc.publish("news", b"%d" % number)
    print((await taken.next_msg(timeout=5)).data)
    async for message in taken.messages:
        print(message.data)
        if message.data == b"2":
            break
    try:
        await taken.next_msg(timeout=0.05)
    except nats.errors.TimeoutError as exc:
        print(exc)
    await taken.unsubscribe()
    await nc.flush()
    await nc.publish("talk.d", b"last")
    await done.wait()
    await kept.drain()
    await nc.drain()
    try:
        await nc.publish("talk.e", b"")
    except nats.errors.ConnectionClosedError as exc:
        print(type(exc), nc.is_closed)
    try:
        await nats.connect("nats://ann:unspoken@127.0.0.1:9", allow_reconnect=False, max_reconnect_attempts=1)
    except Exception as exc:
        print(type(exc), exc)

asyncio.run(main())
"""
STREAMS: Final = f"""{HEAD}
async def main():
    nc = await nats.connect(URL)
    js = nc.jetstream()
    try:
        await js.delete_stream("jobs")
    except nats.js.errors.NotFoundError as exc:
        print(exc.description)
    await js.add_stream(name="jobs", subjects=["jobs.>"])
    for number in range(4):
        made = await js.publish("jobs.new", f"{{number}} {{WHO}}".encode(), headers={{"n": str(number)}})
    print(made.stream, made.seq)
    pulled = await js.pull_subscribe("jobs.>", "worker")
    for message in await pulled.fetch(2, timeout=5):
        print(message.data, message.headers, message.metadata.sequence.stream, message.metadata.num_delivered)
        await message.ack()
    (again,) = await pulled.fetch(1)
    await again.ack_sync()
    (last,) = await pulled.fetch(1)
    await last.term()
    try:
        await pulled.fetch(1, timeout=0.05)
    except nats.errors.TimeoutError as exc:
        print(exc)
    ended = asyncio.Event()

    async def take(message):
        print("pushed", message.data)
        if message.metadata.sequence.stream == 4:
            ended.set()

    await js.subscribe("jobs.>", cb=take)
    await ended.wait()
    print((await (await js.publish_async("jobs.late", b"x"))).seq)
    bucket = await js.create_key_value(bucket="kept")
    await bucket.put("k", WHO.encode())
    print((await bucket.get("k")).value)
    await nc.close()

asyncio.run(main())
"""
PROGRAMS: Final = {"core": CORE, "streams": STREAMS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_s50_messages_of_nats_replay_without_a_server(name: str, server: str, tmp_path: Path) -> None:
    """What was published, answered, fetched and delivered comes again; a changed message is named."""
    place = Workplace(tmp_path)
    place.write("agent.py", PROGRAMS[name])
    recorded = place.record("agent.py", NATS_URL=server)
    recording = place.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert not any("unspoken" in text for call in recording.calls for text in (call.request, call.response))
    assert_same(place.replay("agent.py", NATS_URL=NOBODY), recorded.stdout)
    changed = place.replay("agent.py", NATS_URL=NOBODY, WHO="bob")
    asked = {"core": "nats.publish", "streams": "nats.request"}[name]
    assert changed.causes()[0] == ("changed_call", f"tool:{asked}"), changed.stderr


RECONNECTING: Final = f"""{HEAD}
async def main():
    lost, back = asyncio.Event(), asyncio.Event()

    async def lose():
        lost.set()

    async def return_():
        back.set()

    nc = await nats.connect(URL, disconnected_cb=lose, reconnected_cb=return_, reconnect_time_wait=0.05)
    await nc.publish("a", b"before")
    await nc.flush()
    open("ready", "w").close()
    await back.wait()
    await nc.publish("a", b"after")
    await nc.flush()
    print(lost.is_set(), nc.is_connected)
    await nc.close()

asyncio.run(main())
"""


def test_s50_functions_that_hear_of_a_lost_connection_are_called_again(tmp_path: Path) -> None:
    """A replay calls them where they were called; the client connects to nobody."""
    place = Workplace(tmp_path)
    place.write("agent.py", RECONNECTING)
    with a_nats(tmp_path / "first") as port:
        process = place.spawn([str(place.python), "agent.py"], NATS_URL=f"nats://127.0.0.1:{port}")
        ready = tmp_path / "ready"
        await_true(ready.exists)
    with a_nats(tmp_path / "second", port=port):
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout) == (0, "True True\n"), stderr
    assert_same(place.replay("agent.py", NATS_URL=NOBODY), stdout)


LIVE: Final = f"""{HEAD}
async def main():
    nc = await nats.connect(URL)
    try:
        await nc.publish("a", b"x")
    except OSError as exc:
        print(exc)

asyncio.run(main())
"""


def test_n14_a_call_that_a_plan_lets_go_live_needs_a_live_connection(server: str, tmp_path: Path) -> None:
    """On a connection that is served, publishing live raises instead of seeming to work."""
    place = Workplace(tmp_path)
    place.write("agent.py", LIVE)
    place.record("agent.py", NATS_URL=server)
    replayed = place.replay("agent.py", NATS_URL=server, options=["--live", "tool:nats.publish"])
    assert "can't run live" in replayed.stdout, replayed.stderr


SERVED: Final = """
import os
from contextlib import asynccontextmanager
import nats
from fastapi import FastAPI

@asynccontextmanager
async def lifespan(app):
    nc = app.state.nc = await nats.connect(os.environ["NATS_URL"])

    async def double(message):
        await message.respond(message.data * 2)

    await nc.subscribe("double", cb=double)
    yield
    await nc.close()

app = FastAPI(lifespan=lifespan)

@app.post("/orders/{text}")
async def order(text: str):
    await app.state.nc.publish("orders", text.encode())
    reply = await app.state.nc.request("double", text.encode(), timeout=60)
    return {"doubled": reply.data.decode()}
"""


def test_p4_requests_that_publish_to_nats_replay_alone(server: str, provider: Provider, tmp_path: Path) -> None:
    """A connection that the application opened at its start is used by many requests at once."""
    place = prepare(tmp_path, provider, SERVED)
    change = ("text.encode())", "text.encode() + b'!')")
    insist_that_orders_replay_alone(place, {"NATS_URL": server}, {"NATS_URL": NOBODY}, change, "tool:nats.publish")
