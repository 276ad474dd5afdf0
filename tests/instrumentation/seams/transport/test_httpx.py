"""The httpx seam's contract: recorded calls, unrecorded requests, and that nothing is delayed or left behind."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import httpx2
import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation

from spanreplay.model import config
from spanreplay.model.call import CallRecord, Outcome
from spanreplay.model.errors import ReplayMiss, RunNotFound
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.patches import Patches
from support.httpx_clients import FLAVOURS, Flavour
from support.in_process import recorded, replayed
from support.route_server import Handler, RouteServer

DEADLINE_S = 30


def _unique(handler: Handler) -> None:
    handler.send(json.dumps({"id": uuid.uuid4().hex}).encode(), headers={"content-type": "application/json"})


ROUTES = {
    "/unique": _unique,
    "/other": _unique,
    "/v1/traces": _unique,
    "/ticks": lambda h: h.send_chunks([b"one ", b"two ", b"three"]),
    "/big": lambda h: h.send(b"x" * 5000),
    "/wait": lambda h: h.server.owner.stopping.wait(DEADLINE_S),
}


@pytest.fixture
def server() -> Iterator[RouteServer]:
    """A server that runs while the test does, unless the test stops it."""
    with RouteServer(ROUTES) as running:
        yield running


@pytest.fixture(params=list(FLAVOURS))
def web(request: pytest.FixtureRequest) -> Flavour:
    """Each of the four clients."""
    return FLAVOURS[request.param]


async def get(web: Flavour, url: str, **options: Any) -> Any:
    """One GET with a new client."""
    async with web.client() as client:
        return await web.send(client, "GET", url, **options)


def calls_of(web: Flavour, main: Any) -> tuple[CallRecord, ...]:
    """The recorded calls of a coroutine function, none if there is no recording."""
    try:
        return recorded(main, web.seams).calls
    except RunNotFound:
        return ()


# ── What is recorded ────────────────────────────────────────────────────────────────────────────────
def test_request_is_recorded_with_what_it_asked_and_nothing_secret(web: Flavour, server: RouteServer) -> None:
    """Method, address, body and few headers are recorded; credentials are not."""

    async def main() -> None:
        async with web.client(headers={"authorization": "Bearer sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3"}) as client:
            await web.send(client, "POST", f"{server.url}/unique?api_key=Zx9Yw8Vu7Ts6Rq5Po4", json={"n": 1})

    (call,) = calls_of(web, main)
    request = json.loads(call.request)
    assert (request["method"], request["body"]) == ("POST", {"n": 1})
    assert request["url"].startswith(f"{server.url}/unique?api_key=rdx-")
    assert "authorization" not in request["headers"]
    assert "Zx9Yw8Vu7Ts6" not in call.request + call.response
    assert (call.kind, call.effect) == ("http", "write")
    assert "httpx_clients.py" in call.code


@pytest.mark.parametrize(("limit", "end"), [(-1, "complete"), (1, "closed")], ids=["whole", "left"])
def test_s26_stream_is_recorded_chunk_by_chunk_as_far_as_it_was_read(
    web: Flavour, server: RouteServer, limit: int, end: str
) -> None:
    """Each chunk has its time; a stream that was left early says so."""

    async def main() -> None:
        async with web.client() as client, web.stream(client, f"{server.url}/ticks") as response:
            await web.read(response, limit=limit)

    (call,) = calls_of(web, main)
    response = json.loads(call.response)
    assert [chunk[1] for chunk in response["chunks"]] == ["one ", "two ", "three"][:limit] if limit > 0 else True
    assert response["end"] == end
    times = [chunk[0] for chunk in response["chunks"]]
    assert times == sorted(times)


def test_identical_concurrent_requests_keep_their_own_answers(server: RouteServer) -> None:
    """Ten equal concurrent requests each get their own answer."""
    web = FLAVOURS["httpx-async"]

    async def one() -> str:
        found: str = (await get(web, f"{server.url}/unique")).json()["id"]
        return found

    seen: list[Any] = []

    async def main() -> Any:
        answers = list(await asyncio.gather(*(one() for _ in range(10))))
        seen.append(answers)
        return answers

    recording = recorded(main, web.seams)
    server.stop()
    assert replayed(main, recording, seams=web.seams).result == seen[0]
    assert len(set(seen[0])) == 10


def test_calls_made_by_a_hook_lie_inside_the_request(web: Flavour, server: RouteServer) -> None:
    """A request that a hook makes is a child of the hook's request, and is served to the hook in a replay."""

    def hook(response: Any) -> None:
        if response.request.url.path == "/unique":
            inner.append(web.hx.get(f"{server.url}/other").json())

    inner: list[Any] = []

    async def main() -> Any:
        async with web.client(event_hooks={"response": [web.hook(hook)]}) as client:
            await web.send(client, "GET", f"{server.url}/unique")

    recording = recorded(main, web.seams)
    assert sorted(c.parent for c in recording.calls) == [-1, min(c.seq for c in recording.calls)]
    server.stop()
    replay = replayed(main, recording, seams=web.seams)
    assert replay.verdict["verdict"] == "identical"
    assert inner[0] == inner[1]


def test_in_process_transports_are_boundaries(web: Flavour) -> None:
    """A client with its own transport (an app, a mock) is recorded, and the transport does not run in a replay."""
    runs: list[str] = []

    def answer(request: Any) -> Any:
        runs.append(request.url.path)
        return web.hx.Response(200, json={"run": len(runs)})

    async def main() -> Any:
        async with web.client(transport=web.hx.MockTransport(answer)) as client:
            whole = (await web.send(client, "GET", "http://app/a")).json()
            async with web.stream(client, "http://app/b") as response:
                return whole, b"".join(await web.read(response))

    recording = recorded(main, web.seams)
    replay = replayed(main, recording, seams=web.seams)
    assert replay.result == ({"run": 1}, b'{"run":2}')
    assert (runs, replay.verdict["verdict"]) == (["/a", "/b"], "identical")


# ── What a replay refuses ───────────────────────────────────────────────────────────────────────────
def test_s27_replay_never_asks_the_server(web: Flavour, server: RouteServer) -> None:
    """With the server still running, a replay sends it nothing, neither recorded calls nor an extra one."""

    async def main() -> None:
        await get(web, f"{server.url}/unique")

    async def more() -> None:
        await get(web, f"{server.url}/unique")
        await get(web, f"{server.url}/unique")

    more.__qualname__ = main.__qualname__
    recording = recorded(main, web.seams)
    asked = len(server.requests)
    replay = replayed(more, recording, seams=web.seams)
    assert isinstance(replay.error, ReplayMiss)
    assert replay.kinds() == ["extra_call"]
    assert len(server.requests) == asked


def test_s2_live_boundary_reaches_the_server(web: Flavour, server: RouteServer) -> None:
    """If the plan says live, the request is made, and compared."""

    async def main() -> Any:
        return (await get(web, f"{server.url}/unique")).json()

    recording = recorded(main, web.seams)
    replay = replayed(main, recording, Plan(live=("http:*",)), web.seams)
    assert len(server.requests) == 2
    assert replay.kinds() == ["output_changed"]
    assert replay.verdict["counts"]["live"] == 1


def test_reading_on_where_the_recording_stopped_is_an_overrun(web: Flavour, server: RouteServer) -> None:
    """Chunks after the point where the recorded agent stopped are not made up."""
    limit = 1

    async def main() -> Any:
        async with web.client() as client, web.stream(client, f"{server.url}/ticks") as response:
            return await web.read(response, limit=limit)

    recording = recorded(main, web.seams)
    limit = -1
    replay = replayed(main, recording, seams=web.seams)
    assert isinstance(replay.error, ReplayMiss)
    assert replay.kinds() == ["stream_overrun"]


def test_one_redirect_more_than_recorded_is_refused(web: Flavour) -> None:
    """A replay that follows a redirect that the recorded agent did not follow has no answer for it."""
    follow = False

    async def main() -> Any:
        moved = web.hx.MockTransport(lambda request: web.hx.Response(302, headers={"location": "/b"}))
        async with web.client(transport=moved) as client:
            return (await web.send(client, "GET", "http://app/a", follow_redirects=follow)).status_code

    recording = recorded(main, web.seams)
    follow = True
    replay = replayed(main, recording, seams=web.seams)
    assert isinstance(replay.error, ReplayMiss)
    assert replay.kinds() == ["stream_overrun"]


def test_s36_body_above_the_limit_is_counted_and_stops_its_replay(
    web: Flavour, server: RouteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response above the limit reaches the agent whole; its run is incomplete, and its replay says so."""
    monkeypatch.setattr(config, "BODY_BYTES_MAX", 1000)
    sizes: list[int] = []

    async def main() -> None:
        sizes.append(len((await get(web, f"{server.url}/big")).content))

    recording = recorded(main, web.seams)
    assert sizes == [5000]
    assert recording.completeness().reasons == ("1 calls truncated",)
    replay = replayed(main, recording, seams=web.seams)
    assert isinstance(replay.error, ReplayMiss)
    assert (replay.verdict["verdict"], replay.verdict["divergences"]) == ("incomplete", [])


# ── What is left alone ──────────────────────────────────────────────────────────────────────────────
def test_telemetry_passes_when_recording_and_goes_nowhere_in_a_replay(web: Flavour, server: RouteServer) -> None:
    """Other tools' telemetry is not a boundary: sent as usual when recording, swallowed in a replay."""

    async def main() -> Any:
        status = (await get(web, f"{server.url}/v1/traces")).status_code
        return status, (await get(web, f"{server.url}/unique")).json()

    recording = recorded(main, web.seams)
    assert [c.name for c in recording.calls] == [f"GET {server.url.removeprefix('http://')}"]
    assert server.requests == ["GET /v1/traces", "GET /unique"]
    replay = replayed(main, recording, seams=web.seams)
    assert replay.result[0] == 200
    assert replay.verdict["verdict"] == "identical"
    assert len(server.requests) == 2


def test_suppressed_instrumentation_records_nothing(web: Flavour, server: RouteServer) -> None:
    """Requests inside OpenTelemetry's suppression, as exporters use it, are not recorded."""

    async def main() -> None:
        with suppress_instrumentation():
            await get(web, f"{server.url}/unique")

    assert calls_of(web, main) == ()
    assert server.requests == ["GET /unique"]


def test_plumbing_records_nothing(web: Flavour, server: RouteServer) -> None:
    """Requests that carry another boundary's traffic belong to that boundary."""

    async def main() -> None:
        with plumbing():
            await get(web, f"{server.url}/unique")

    assert calls_of(web, main) == ()
    assert server.requests == ["GET /unique"]


def test_client_that_passes_inside_a_recorded_one_is_not_taken_for_it(web: Flavour, server: RouteServer) -> None:
    """A suppressed request made by a hook of a recorded one leaves no trace in it."""

    def hook(request: Any) -> None:
        with suppress_instrumentation():
            web.hx.get(f"{server.url}/other")

    async def main() -> Any:
        async with web.client(event_hooks={"request": [web.hook(hook)]}) as client:
            await web.send(client, "GET", f"{server.url}/unique")

    (call,) = calls_of(web, main)
    assert "hops" not in json.loads(call.response)
    assert server.requests == ["GET /other", "GET /unique"]


def test_agents_own_body_iterator_raises_its_own_exception(web: Flavour, server: RouteServer) -> None:
    """The very object that the agent's upload raises is raised to the agent."""
    failure = OSError("the disk is gone")

    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise failure

    async def apieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise failure

    async def main() -> Any:
        async with web.client() as client:
            try:
                await web.send(client, "POST", f"{server.url}/unique", content=apieces() if web.is_async else pieces())
            except OSError as exc:
                seen.append(exc)

    seen: list[BaseException] = []
    calls_of(web, main)
    assert seen == [failure]


def test_wrong_sort_of_body_is_refused_by_the_client_itself(web: Flavour, server: RouteServer) -> None:
    """A sync client with an async body, or the reverse, raises httpx's own RuntimeError."""

    async def apieces() -> AsyncIterator[bytes]:
        yield b""

    async def main() -> None:
        async with web.client() as client:
            body: Any = iter([b""]) if web.is_async else apieces()
            with pytest.raises(RuntimeError, match="sync request"):
                await web.send(client, "POST", f"{server.url}/unique", content=body)

    calls_of(web, main)
    assert server.requests == []


def test_clients_log_line_is_there_in_a_replay(
    web: Flavour, server: RouteServer, caplog: pytest.LogCaptureFixture
) -> None:
    """httpx logs each request; an agent that prints its log prints the same in a replay."""

    async def main() -> None:
        await get(web, f"{server.url}/unique")

    with caplog.at_level(logging.INFO, logger=web.hx.__name__):
        recording = recorded(main, web.seams)
        live = [r.getMessage() for r in caplog.records if r.name == web.hx.__name__]
        caplog.clear()
        replayed(main, recording, seams=web.seams)
    assert [r.getMessage() for r in caplog.records if r.name == web.hx.__name__] == live
    assert len(live) == 1


@pytest.mark.parametrize("hx", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_uninstall_restores_by_identity(hx: Any) -> None:
    """Every patched attribute is the very same object again, whatever was recorded in between."""
    targets = [(c, n) for c in (hx.Client, hx.AsyncClient) for n in ("send", "_transport_for_url")]
    before = [vars(owner)[name] for owner, name in targets]
    patches = Patches()
    for flavour in FLAVOURS.values():
        for install, module in flavour.seams if flavour.hx is hx else ():
            install(module, patches)
    assert all(vars(o)[n] is not old for (o, n), old in zip(targets, before, strict=True))
    patches.undo()
    assert all(vars(o)[n] is old for (o, n), old in zip(targets, before, strict=True))


# ── Time ────────────────────────────────────────────────────────────────────────────────────────────
def test_first_chunk_is_not_delayed(web: Flavour) -> None:
    """The agent gets the first chunk while the server still holds back the second."""
    go_on = threading.Event()

    def ticks() -> Iterator[bytes]:
        yield b"first"
        yield b"second" if go_on.wait(DEADLINE_S) else b"too late"

    async def main() -> None:
        async with web.client() as client, web.stream(client, f"{server.url}/held") as response:
            async for piece in web.iterate(response):
                seen.append(piece)
                go_on.set()

    seen: list[bytes] = []
    with RouteServer({"/held": lambda h: h.send_chunks(ticks())}) as server:
        recorded(main, web.seams)
    assert seen == [b"first", b"second"]


@pytest.mark.parametrize("how", ["request", "stream"])
def test_n2_cancelled_request_is_cancelled_by_the_agent_again(how: str, server: RouteServer) -> None:
    """A request that the agent's own timeout cancelled replays with that timeout, not with an invented cancellation."""
    web = FLAVOURS["httpx-async"]
    server.routes["/stuck"] = lambda h: h.send_chunks(stuck(), is_whole=False)

    def stuck() -> Iterator[bytes]:
        yield b"first"
        server.stopping.wait(DEADLINE_S)

    async def read(client: Any, seen: list[bytes], is_under_way: asyncio.Event) -> None:
        async with web.stream(client, f"{server.url}/stuck") as response:
            async for piece in web.iterate(response):
                seen.append(piece)
                is_under_way.set()

    async def main() -> Any:
        seen: list[bytes] = []
        is_under_way = asyncio.Event()
        async with web.client() as client:
            if how == "request":
                work = asyncio.create_task(client.get(f"{server.url}/wait"))
            else:
                work = asyncio.create_task(read(client, seen, is_under_way))
                await is_under_way.wait()
            try:
                await asyncio.wait_for(work, 0.1)
            except asyncio.TimeoutError:
                return ["timed out", *seen]
        return seen

    recording = recorded(main, web.seams)
    assert recording.calls[0].outcome == Outcome.CANCELLED.value
    server.stop()
    replay = replayed(main, recording, seams=web.seams)
    assert replay.result == ["timed out"] + ([b"first"] if how == "stream" else [])
    assert replay.verdict["verdict"] == "identical"


# ── Keys ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("content", [b"plain text", bytes(range(256))], ids=["text", "binary"])
def test_multipart_bodies_have_equal_keys_whatever_their_boundary(web: Flavour, content: bytes) -> None:
    """The random boundary of a multipart body is not part of its key; its parts are."""

    def ask(*contents: bytes) -> Any:
        async def main() -> None:
            answer = web.hx.MockTransport(lambda request: web.hx.Response(200))
            async with web.client(transport=answer) as client:
                for each in contents:
                    await web.send(client, "POST", "http://app/upload", files={"f": ("a", each)}, data={"k": "v"})

        return main

    one, two, other = calls_of(web, ask(content, content, content + b"."))
    assert one.request != two.request
    assert one.key == two.key
    assert other.key != one.key


def test_order_of_query_and_form_does_not_count(web: Flavour) -> None:
    """The same pairs in another order are the same request; another value is not."""

    async def main() -> None:
        async with web.client(transport=web.hx.MockTransport(lambda request: web.hx.Response(200))) as client:
            for query in ("a=1&b=2", "b=2&a=1", "a=1&b=3"):
                await web.send(client, "GET", f"http://app/?{query}")

    one, two, other = calls_of(web, main)
    assert one.key == two.key != other.key
