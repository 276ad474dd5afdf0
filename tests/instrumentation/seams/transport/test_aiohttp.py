"""The aiohttp seam with a real server: recorded, the server stopped, replayed in a second process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from spanreplay.model.call import Outcome, Recording
from spanreplay.seams.transport import aiohttp as _aiohttp
from support.in_process import recorded
from support.replaying import Workplace
from support.transports import assert_patches, recorded_calls
from support.web_server import WebServer

RoundTrip = Callable[[str], Recording]
SEAMS = ((_aiohttp.install, aiohttp),)

EVERYTHING = """
import aiohttp, asyncio, os
url = os.environ["URL"]

async def pieces():
    yield b"one "
    yield b"two"

async def main():
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "/json", params={"q": "a b"}) as r:
            print(r.status, r.reason, r.version, await r.json(), r.headers["X-Request-Id"], r.url, r.content_type)
            print(r.method, r.host, r.request_info.url, r.ok, r.closed, await r.text())
        async with session.get(url + "/moved") as r:
            print([(h.status, h.url, h.headers["Location"]) for h in r.history], r.url, await r.json())
        async with session.get(url + "/cookie") as r:
            print(sorted(r.cookies), sorted(c.key for c in session.cookie_jar))
        async with session.get(url + "/cookies") as r:
            print(await r.json())
        async with session.get(url + "/gzip") as r:
            print(r.headers["Content-Encoding"], await r.json())
        async with session.get(url + "/binary") as r:
            print(await r.read())
        for body in ({"json": {"a": [1, None]}}, {"data": pieces()}, {"data": {"form": "x"}}, {"data": b"raw"}):
            async with session.post(url + "/json", **body) as r:
                print(await r.text())
        async with session.head(url + "/json") as r:
            print(r.status, r.headers["x-request-id"], await r.read())
        async with session.get(url + "/status/503") as r:
            try:
                r.raise_for_status()
            except aiohttp.ClientResponseError as exc:
                print(type(exc), exc, exc.status, exc.headers["x-request-id"])
        try:
            await session.get(url + "/status/404", raise_for_status=True)
        except aiohttp.ClientResponseError as exc:
            print(type(exc), exc)
        for bad in (os.environ["NOBODY"], url + "/hang_up"):
            try:
                await session.get(bad)
            except aiohttp.ClientError as exc:
                print(type(exc), exc, isinstance(exc, OSError), getattr(exc, "host", ""))
        print([await (await session.get(url + "/json")).json() for _ in range(2)])
        many = await asyncio.gather(*(session.get(url + "/json") for _ in range(5)))
        print([(await r.json())["id"] for r in many])

asyncio.run(main())
"""


def test_s26_aiohttp_replays_byte_for_byte_without_the_server(round_trip: RoundTrip) -> None:
    """Answers, redirects, cookies, compression, uploads and errors come back with the server stopped."""
    recording = round_trip(EVERYTHING)
    assert len([c for c in recording.calls if "/moved" in c.request]) == 1  # its redirect is a hop of it
    assert len([c for c in recording.calls if c.outcome == Outcome.ERROR.value]) == 4


STREAMS = """
import aiohttp, asyncio, os
url = os.environ["URL"]

async def main():
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "/pieces") as r:
            print([piece async for piece in r.content.iter_any()])
        async with session.get(url + "/pieces") as r:
            print([piece async for piece in r.content.iter_chunked(7)])
        async with session.get(url + "/pieces") as r:
            print([line async for line in r.content])
        async with session.get(url + "/pieces") as r:
            print([pair async for pair in r.content.iter_chunks()])
        async with session.get(url + "/pieces") as r:
            print(await r.content.readline(), await r.content.readexactly(5), await r.content.readuntil(b"\\n"))
            print(await r.content.read(), r.content.at_eof(), isinstance(r.content, aiohttp.StreamReader))
        async with session.get(url + "/gzip") as r:
            print([piece async for piece in r.content.iter_chunked(10)])
        async with session.get(url + "/pieces") as r:
            async for line in r.content:
                print(line)
                break
        r = await session.get(url + "/broken")
        try:
            async for piece in r.content.iter_any(): print(piece)
        except aiohttp.ClientPayloadError as exc:
            print(type(exc), exc)
        r = await session.get(url + "/pieces")
        print(await r.content.read(4))
        r.close()
        r = await session.get(url + "/pieces")
        print(r.status)

asyncio.run(main())
"""


def test_s26_aiohttp_streams_come_back_piece_by_piece(round_trip: RoundTrip) -> None:
    """Streams replay in the same pieces for every way of reading; one that was left early ends at the same place."""
    recording = round_trip(STREAMS)
    ends = [c.response.rpartition('"end":"')[2].split('"')[0] for c in recording.calls]
    assert ends == ["complete"] * 6 + ["closed", "error", "closed", "closed"]


TORN = """
import aiohttp, asyncio, os

async def main():
    async with aiohttp.ClientSession() as session:
        async with session.get(os.environ["URL"] + "/torn") as r:
            print([pair async for pair in r.content.iter_chunks()])
        async with session.get(os.environ["URL"] + "/torn") as r:
            print([piece async for piece in r.content.iter_any()])

asyncio.run(main())
"""


def test_s26_aiohttp_chunks_in_parts_end_where_they_ended(round_trip: RoundTrip) -> None:
    """`iter_chunks` reports the same chunk ends, even if an end came after its chunk."""
    recording = round_trip(TORN)
    assert '"chunk_ends"' in recording.calls[0].response
    assert '"chunk_ends"' not in recording.calls[1].response


TIMED_OUT = """
import aiohttp, asyncio, os
async def main():
    async with aiohttp.ClientSession() as session:
        try:
            await session.get(os.environ["URL"] + "/wait", timeout=aiohttp.ClientTimeout(total=0.3))
        except asyncio.TimeoutError as exc:
            print(type(exc), exc)
        task = asyncio.create_task(session.get(os.environ["URL"] + "/wait"))
        done, pending = await asyncio.wait([task], timeout=0.3)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled")
asyncio.run(main())
"""


def test_aiohttp_timeouts_and_cancellations_happen_again(round_trip: RoundTrip) -> None:
    """A total timeout is raised again, and a cancelled request is cancelled again."""
    recording = round_trip(TIMED_OUT)
    assert [c.outcome for c in recording.calls] == ["error", "cancelled"]


def test_s28_changed_aiohttp_call_stops_the_replay(web: WebServer, workplace: Workplace) -> None:
    """Another body is a changed call, and the server is not asked."""
    source = """
import aiohttp, asyncio, os
async def main():
    async with aiohttp.ClientSession() as session:
        async with session.post(os.environ["URL"] + "/json", json={"n": os.environ["N"]}) as r:
            print(r.status)
asyncio.run(main())
"""
    agent = workplace.write("agent.py", source)
    workplace.record(agent, N="1")
    asked = len(web.requests)
    replayed = workplace.replay(agent, N="2")
    assert replayed.status == 3
    assert [kind for kind, _ in replayed.causes()] == ["changed_call"]
    assert len(web.requests) == asked


def test_aiohttp_model_call_is_an_llm_call(web: WebServer) -> None:
    """A request that a dialect understands is recorded under the dialect's name."""

    async def agent() -> None:
        body = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}
        async with aiohttp.ClientSession() as s, s.post(web.url + "/v1/chat/completions", json=body) as r:
            await r.read()

    assert [c.boundary for c in recorded(agent, SEAMS).calls] == ["llm:openai.chat.completions"]


def test_aiohttp_telemetry_and_suppressed_calls_are_no_calls(web: WebServer) -> None:
    """Other tools' telemetry and calls under OTel's suppression are not recorded."""
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    async def agent() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.post(web.url + "/v1/traces", data=b"x") as r:
                await r.read()
            with suppress_instrumentation():
                async with session.get(web.url + "/json") as r:
                    await r.read()

    assert recorded_calls(agent, SEAMS) == ()
    assert web.requests == ["POST /v1/traces", "GET /json"]


def test_aiohttp_user_exception_goes_on_unchanged(web: WebServer) -> None:
    """An exception from the agent's own body iterator reaches the agent as the same object."""
    mine = RuntimeError("mine")

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        raise mine

    async def agent() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(RuntimeError) as caught:
                await session.post(web.url + "/json", data=body())
            assert caught.value is mine

    assert recorded_calls(agent, SEAMS) == ()


def test_aiohttp_uninstall_restores_the_originals() -> None:
    """Each target is patched, and is the same object again afterwards."""
    targets = (
        (aiohttp.ClientSession, "_request"),
        (aiohttp.BaseConnector, "connect"),
        (aiohttp.ClientResponse, "start"),
    )
    assert_patches(SEAMS, *targets)
