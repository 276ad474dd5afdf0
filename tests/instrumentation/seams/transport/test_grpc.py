"""The gRPC seam with a real server: recorded, the server stopped, replayed in a second process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import grpc
import grpc._channel
import grpc.aio
import pytest

from spanreplay.model.call import Outcome, Recording
from spanreplay.seams.transport import grpc as _grpc
from support.grpc_server import GrpcServer, encode
from support.replaying import Workplace
from support.transports import assert_patches, recorded_calls

SEAMS = ((_grpc.install, grpc),)

PREAMBLE = """
import asyncio, grpc, grpc.aio, json, os, queue
encode, decode = lambda m: json.dumps(m).encode(), json.loads
target = os.environ["TARGET"]
def methods(channel):
    wire = dict(request_serializer=encode, response_deserializer=decode)
    return (channel.unary_unary("/test.Oracle/Ask", **wire), channel.unary_stream("/test.Oracle/Many", **wire),
            channel.stream_unary("/test.Oracle/Sum", **wire), channel.stream_stream("/test.Oracle/Chat", **wire))
"""
SYNC = (
    PREAMBLE
    + """
class Stamp(grpc.UnaryUnaryClientInterceptor):
    def intercept_unary_unary(self, continuation, details, request):
        return continuation(details, {**request, "stamp": 1})

channel = grpc.insecure_channel(target)
grpc.channel_ready_future(channel).result(10)
ask, many, total, chat = methods(channel)
print(ask({"q": "hi"}, timeout=5))
answer, call = ask.with_call({"q": "again"})
print(answer, call.code(), call.trailing_metadata())
future = ask.future({"q": "later"})
print(future.result(), future.done(), future.code())
print(methods(grpc.intercept_channel(channel, Stamp()))[0]({"q": "stamped"}))
try:
    ask({"fail": True})
except grpc.RpcError as exc:
    print(type(exc), exc.code(), exc.details(), exc, exc.trailing_metadata())
print(list(many({"n": 3})))
try:
    for m in many({"n": 1, "fail": True}): print(m)
except grpc.RpcError as exc:
    print(type(exc), exc.code(), exc.details())
stream = many({"n": 1000})
print(next(stream))
stream.cancel()
print(total({"n": n} for n in range(3)))
says = queue.SimpleQueue()
says.put({"n": 0})
for n, m in enumerate(chat(iter(says.get, None))):
    print(m["id"])
    says.put({"n": n, "last": m["id"]} if n < 3 else None)
try:
    methods(grpc.insecure_channel("127.0.0.1:9"))[0]({"q": 1}, timeout=3)
except grpc.RpcError as exc:
    print(exc.code(), exc.details())
channel.close()
"""
)
ASYNC = (
    PREAMBLE
    + """
async def main():
    async with grpc.aio.insecure_channel(target) as channel:
        await channel.channel_ready()
        ask, many, total, chat = methods(channel)
        print(await ask({"q": "hi"}))
        call = ask({"q": "again"})
        print(await call, await call.code(), await call.trailing_metadata())
        print(await asyncio.gather(*(ask({"q": "same"}) for _ in range(4))))
        try:
            await ask({"fail": True})
        except grpc.aio.AioRpcError as exc:
            print(type(exc), exc.code(), exc.details(), exc.trailing_metadata())
        print([m async for m in many({"n": 3})])
        call = many({"n": 2})
        print(await call.read(), await call.read(), await call.read() is grpc.aio.EOF)
        try:
            async for m in many({"n": 1, "fail": True}): print(m)
        except grpc.aio.AioRpcError as exc:
            print(exc.code(), exc.details())
        async def pieces():
            for n in range(3): yield {"n": n}
        print(await total(pieces()))
        call = chat()
        last = None
        for n in range(3):
            await call.write({"n": n, "last": last})
            last = (await call.read())["id"]
            print(last)
        await call.done_writing()
        print(await call.read() is grpc.aio.EOF)
asyncio.run(main())
"""
)


@pytest.fixture
def oracle() -> Iterator[GrpcServer]:
    """A server that runs while the test does, unless the test stops it."""
    with GrpcServer() as running:
        yield running


@pytest.fixture
def there(oracle: GrpcServer, workplace: Workplace) -> Workplace:
    """A directory to record in; its agents get the server as $TARGET."""
    return Workplace(workplace.path, {**workplace.environ, "TARGET": oracle.target})


@pytest.fixture
def trip(oracle: GrpcServer, there: Workplace, assert_identical: Callable[..., None]) -> Callable[[str], Recording]:
    """Record an agent, stop the server, replay, and assert equal output. Returns the recording."""

    def run(source: str) -> Recording:
        agent = there.write("agent.py", source)
        recorded = there.record(agent)
        oracle.stop()
        recording = there.recording()
        assert_identical(there.replay(agent), recorded.stdout, recording)
        return recording

    return run


def test_s26_grpc_replays_byte_for_byte_without_the_server(trip: Callable[[str], Recording]) -> None:
    """All four kinds of calls, futures, interceptors, errors and cancelled streams replay with no server."""
    recording = trip(SYNC)
    assert {c.name for c in recording.calls} == {f"grpc test.Oracle/{m}" for m in ("Ask", "Many", "Sum", "Chat")}
    assert [c.outcome for c in recording.calls].count(Outcome.ERROR.value) == 3


def test_s26_grpc_aio_replays_byte_for_byte_without_the_server(trip: Callable[[str], Recording]) -> None:
    """All four kinds of asyncio calls, with iterators and with read and write, replay with the server stopped."""
    assert len(trip(ASYNC).calls) == 12


SAYS = (
    PREAMBLE + 'print(len(list(methods(grpc.insecure_channel(target))[3](iter([{"n": 1}, {"n": os.environ["N"]}])))))'
)


def test_s28_changed_grpc_message_is_named(there: Workplace) -> None:
    """Another message, in a stream or as a request, is a changed call that names the message."""
    agent = there.write("agent.py", SAYS)
    there.record(agent, N="1")
    replayed = there.replay(agent, N="2")
    assert replayed.status == 3
    assert replayed.causes() == [("changed_call", "http:grpc test.Oracle/Chat")]
    assert replayed.verdict["divergences"][0]["diff"][0]["path"].startswith("sent[1]")


READS = {
    "threads": """
stream = methods(grpc.insecure_channel(target))[1]({"n": 3})
for _ in range(int(os.environ["TIMES"])):
    next(stream)
""",
    "asyncio": """
async def main():
    async with grpc.aio.insecure_channel(target) as channel:
        call = methods(channel)[1]({"n": 3})
        for _ in range(int(os.environ["TIMES"])):
            await call.read()
asyncio.run(main())
""",
}


@pytest.mark.parametrize("way", READS)
def test_s28_grpc_stream_read_less_or_further_is_named(way: str, there: Workplace) -> None:
    """Reading less of a stream than recorded is an underrun, reading more an overrun."""
    agent = there.write("agent.py", PREAMBLE + READS[way])
    there.record(agent, TIMES="2")
    assert there.replay(agent, TIMES="2").status == 0
    name = "http:grpc test.Oracle/Many"
    less = there.replay(agent, TIMES="1")
    assert (less.status, less.causes()) == (3, [("stream_underrun", name)])
    if way == "threads":  # closing an asyncio channel cancels its calls, as it did when recorded
        further = there.replay(agent, TIMES="3")
        assert (further.status, further.causes()) == (3, [("stream_overrun", name)])


def test_grpc_telemetry_suppressed_and_own_calls_are_no_calls(oracle: GrpcServer) -> None:
    """OTLP, calls under OTel's suppression and spanreplay's own service are not recorded."""
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    def agent() -> None:
        with grpc.insecure_channel(oracle.target) as channel:
            for name in ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", "/spanreplay.v1.Runs/Get"):
                with pytest.raises(grpc.RpcError):
                    channel.unary_unary(name)(b"{}", timeout=5)
            with suppress_instrumentation():
                ask = channel.unary_unary("/test.Oracle/Ask", encode, json.loads)
                assert ask({}, timeout=5)["id"]

    assert recorded_calls(agent, SEAMS) == ()


def test_grpc_uninstall_restores_the_originals() -> None:
    """Each target is patched, and is the same object again afterwards."""
    shapes = ("unary_unary", "unary_stream", "stream_unary", "stream_stream", "__init__")
    channels = (grpc._channel.Channel, grpc.aio._channel.Channel)
    assert_patches(SEAMS, *((channel, shape) for channel in channels for shape in shapes))
