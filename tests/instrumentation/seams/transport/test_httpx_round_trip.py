"""httpx and httpx2, sync and async, with a real server: a replay without the server shows the agent the same."""

from __future__ import annotations

import gzip
import itertools
import json
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from spanreplay.model.call import Recording
from support.httpx_clients import FLAVOURS, Flavour
from support.in_process import Replayed, recorded, replayed
from support.route_server import Handler, RouteServer

CLOSED_PORT = "http://127.0.0.1:9"
TIMEOUT_S = 0.1
Scenario = Callable[[Flavour, str], Awaitable[Any]]


class Unwanted(Exception):
    """An exception of the agent."""


def _unique(handler: Handler) -> None:
    cookie = (handler.headers.get("cookie") or "").partition("=")[0]  # its value comes back as a token
    answer = {"id": uuid.uuid4().hex, "path": handler.path, "jar": cookie}
    handler.send(json.dumps(answer).encode(), headers={"content-type": "application/json", "x-id": uuid.uuid4().hex})


def _cut_characters(handler: Handler) -> None:
    text = f"é€😀 {uuid.uuid4().hex} 😀".encode()
    # every byte of a four-byte character in its own chunk, too
    handler.send_chunks([text[:1], text[1:4], text[4:6], text[6:7], text[7:8], text[8:9], text[9:-2], text[-2:]])


def _compressed_chunks(handler: Handler) -> None:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    pieces = [
        packer.compress(f"{n} {uuid.uuid4().hex} é ".encode()) + packer.flush(zlib.Z_SYNC_FLUSH) for n in range(3)
    ]
    handler.send_chunks([*pieces, packer.flush()], {"content-encoding": "gzip", "content-type": "text/plain"})


def _digest(handler: Handler) -> None:
    if not (handler.headers.get("authorization") or "").startswith("Digest"):
        challenge = 'Digest realm="here", nonce="7b2f9a3c", qop="auth", algorithm=MD5'
        handler.send(b"who?", 401, {"www-authenticate": challenge})
        return
    _unique(handler)


def _ticks(count: int) -> Iterator[bytes]:
    return (f"data: {n} {uuid.uuid4().hex}\n\n".encode() for n in range(count))


def _wait(handler: Handler) -> None:
    server: Any = handler.server
    server.owner.stopping.wait(30)


def _wait_in_body(handler: Handler) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        _wait(handler)

    handler.send_chunks(pieces(), is_whole=False)


def _hang_up(handler: Handler) -> None:
    handler.close_connection = True
    handler.connection.close()


ROUTES: dict[str, Callable[[Handler], None]] = {
    "/unique": _unique,
    "/gzip": lambda h: h.send(gzip.compress(f"é {uuid.uuid4().hex}".encode()), headers={"content-encoding": "gzip"}),
    "/gzip-chunks": _compressed_chunks,
    "/gzip-broken": lambda h: h.send_chunks([b"this is no gzip"], {"content-encoding": "gzip"}),
    "/cut": _cut_characters,
    "/torn": lambda h: h.send_chunks(["good €".encode()[:-1]]),
    "/binary": lambda h: h.send_chunks([bytes(range(256)), uuid.uuid4().bytes]),
    "/latin": lambda h: h.send("größer".encode("latin-1"), headers={"content-type": "text/plain; charset=latin-1"}),
    "/empty": lambda h: h.send(b"", 204),
    "/ticks": lambda h: h.send_chunks(_ticks(5), {"content-type": "text/event-stream"}),
    "/broken": lambda h: h.send_chunks(_ticks(2), is_whole=False),
    "/moved": lambda h: h.send(b"over there", 302, {"location": "/moved-again", "set-cookie": "hop=1"}),
    "/moved-again": lambda h: h.send(b"further", 307, {"location": "/unique?moved=1", "set-cookie": "hop=2"}),
    "/moved-away": lambda h: h.send(b"gone", 302, {"location": f"{CLOSED_PORT}/x"}),
    "/round": lambda h: h.send(b"again", 302, {"location": "/round"}),
    "/cookie": lambda h: h.send(b"{}", headers={"set-cookie": "flavour=oat; Path=/"}),
    "/digest": _digest,
    "/teapot": lambda h: h.send(json.dumps({"error": uuid.uuid4().hex}).encode(), 418),
    "/wait": _wait,
    "/wait-in-body": _wait_in_body,
    "/hang-up": _hang_up,
}


@pytest.fixture
def server() -> Iterator[RouteServer]:
    """A server that runs while the test does, unless the test stops it."""
    with RouteServer(ROUTES) as running:
        yield running


def _looks(response: Any) -> dict[str, Any]:
    """Everything that an agent can see of a response that was read."""
    return {
        "status": response.status_code,
        "reason": response.reason_phrase,
        "version": response.http_version,
        "headers": [(k, v.partition("=")[0] if k == "set-cookie" else v) for k, v in response.headers.multi_items()],
        "content": response.content,
        "text": response.text,
        "url": str(response.url),
        "request": (response.request.method, str(response.request.url)),
        "history": [(h.status_code, str(h.url), h.content) for h in response.history],
        "next": str(response.next_request.url) if response.next_request else "",
        "cookies": sorted(response.cookies),
        "is_closed": response.is_closed,
        "has_elapsed": bool(response.elapsed),
    }


async def plain(web: Flavour, url: str) -> Any:
    """Bodies of every kind, in both directions."""
    async with web.client() as client:
        return [
            _looks(await web.send(client, "GET", f"{url}/unique", params={"q": "a b"})),
            _looks(await web.send(client, "POST", f"{url}/unique", json={"a": [1, None]})),
            _looks(await web.send(client, "POST", f"{url}/unique", data={"a": "1", "b": "2"})),
            _looks(await web.send(client, "PUT", f"{url}/unique", content=b"\x00\xff")),
            _looks(await web.send(client, "HEAD", f"{url}/unique")),
            _looks(await web.send(client, "GET", f"{url}/empty")),
            _looks(await web.send(client, "GET", f"{url}/binary")),
            _looks(await web.send(client, "GET", f"{url}/latin")),
            _looks(await web.send(client, "GET", f"{url}/teapot")),
        ]


async def uploads(web: Flavour, url: str) -> Any:
    """Bodies that are sent piece by piece, and files."""

    async def apieces() -> Any:
        for piece in (b"one ", b"two"):
            yield piece

    body = apieces() if web.is_async else iter([b"one ", b"two"])
    async with web.client() as client:
        return [
            _looks(await web.send(client, "POST", f"{url}/unique", content=body)),
            _looks(
                await web.send(client, "POST", f"{url}/unique", files={"f": ("a.bin", b"\x00\x01")}, data={"k": "v"})
            ),
        ]


async def compressed(web: Flavour, url: str) -> Any:
    """Compressed bodies, whole and in chunks: decoded the same, headers kept."""
    async with web.client() as client:
        found: list[Any] = [_looks(await web.send(client, "GET", f"{url}/gzip"))]
        found.append(_looks(await web.send(client, "GET", f"{url}/gzip-chunks")))
        async with web.stream(client, f"{url}/gzip-chunks") as response:
            found.extend([response.headers["content-encoding"], await web.read(response)])
        return found


async def broken_compression(web: Flavour, url: str) -> Any:
    """A body that does not match its header."""
    async with web.client() as client:
        found = [await _error(web, client, f"{url}/gzip-broken")]
        async with web.stream(client, f"{url}/gzip-broken") as response:
            try:
                await web.read(response)
            except web.hx.DecodingError as exc:
                found.append((type(exc), str(exc)))
        return found


async def chunks(web: Flavour, url: str) -> Any:
    """Chunks as they arrive, even if they split a character, as bytes, text and lines."""
    found = []
    async with web.client() as client:
        for path, how in itertools.product(("cut", "torn", "ticks", "binary"), ("bytes", "raw", "text", "lines")):
            async with web.stream(client, f"{url}/{path}") as response:
                found.append(await web.read(response, how))
    return found


async def early_close(web: Flavour, url: str) -> Any:
    """Streams that are left after two chunks, one of them inside a character."""
    found = []
    async with web.client() as client:
        for path in ("ticks", "cut"):
            async with web.stream(client, f"{url}/{path}") as response:
                found.append(await web.read(response, limit=2))
        async with web.stream(client, f"{url}/ticks") as response:
            found.append(response.status_code)
    return found


async def abandoned(web: Flavour, url: str) -> Any:
    """A stream from which one chunk is read, and which nobody closes."""
    async with web.client() as client:
        response = await web.open_stream(client, f"{url}/ticks")
        kept.append(web.iterate(response))
        return await kept[-1].__anext__()


kept: list[Any] = []


async def redirects(web: Flavour, url: str) -> Any:
    """Redirects that are followed, not followed, endless, and broken."""
    async with web.client(follow_redirects=True, max_redirects=3) as client:
        found = [_looks(await web.send(client, "GET", f"{url}/moved")), sorted(client.cookies)]
        found += [await _error(web, client, f"{url}/{path}") for path in ("round", "moved-away")]
    async with web.client() as client:
        found.append(_looks(await web.send(client, "GET", f"{url}/moved")))
    return found


async def cookies(web: Flavour, url: str) -> Any:
    """Cookies from a response are in the client's jar and in later requests."""
    async with web.client() as client:
        await web.send(client, "GET", f"{url}/cookie")
        return [sorted(client.cookies), (await web.send(client, "GET", f"{url}/unique")).json()["jar"]]


async def authentication(web: Flavour, url: str) -> Any:
    """An authentication that takes two requests."""
    async with web.client() as client:
        return _looks(await web.send(client, "GET", f"{url}/digest", auth=web.hx.DigestAuth("me", "secret-password")))


async def hooks(web: Flavour, url: str) -> Any:
    """Event hooks run for every request and response, and may raise anything."""
    seen: list[Any] = []

    def refuse(response: Any) -> None:
        raise Unwanted(response.status_code)

    on_request = web.hook(lambda request: seen.append(str(request.url)))
    on_response = web.hook(lambda response: seen.append(response.status_code))
    async with web.client(
        follow_redirects=True, event_hooks={"request": [on_request], "response": [on_response]}
    ) as client:
        await web.send(client, "GET", f"{url}/moved")
        client.event_hooks = {"response": [web.hook(lambda response: response.raise_for_status())]}
        seen.append(await _error(web, client, f"{url}/teapot"))
        client.event_hooks = {"response": [web.hook(refuse)]}
        seen.append(await _error(web, client, f"{url}/unique"))
        client.event_hooks = {"request": [web.hook(refuse_request)]}
        seen.append(await _error(web, client, f"{url}/unique"))
    return seen


def refuse_request(request: Any) -> None:
    """A hook that refuses every request."""
    raise Unwanted(request.method)


async def failures(web: Flavour, url: str) -> Any:
    """Connection refused, timed out, closed, broken off: the library's own exceptions, with their requests."""
    async with web.client(timeout=web.hx.Timeout(30, read=TIMEOUT_S)) as impatient:
        found = [await _error(web, impatient, f"{url}/{path}") for path in ("wait", "wait-in-body")]
    async with web.client(timeout=30) as client:
        found += [await _error(web, client, f"{CLOSED_PORT}/x")]
        found += [await _error(web, client, f"{url}/{path}") for path in ("hang-up", "broken")]
        pieces: list[bytes] = []
        async with web.stream(client, f"{url}/broken") as response:
            try:
                async for piece in web.iterate(response):
                    pieces.append(piece)
            except web.hx.RemoteProtocolError as exc:
                found.append((type(exc), str(exc), exc.request.method))
        found.append(pieces)
    found.append(await _error(web, client, f"{url}/unique"))  # its client is closed
    return found


async def _error(web: Flavour, client: Any, url: str) -> Any:
    try:
        response = await web.send(client, "GET", url)
    except Exception as exc:  # noqa: BLE001 -- what is under test
        asked = getattr(exc, "_request", None)
        answered = getattr(exc, "response", None)
        return type(exc), exc.args, str(asked.url) if asked else "", answered.status_code if answered else 0
    return response.status_code


SCENARIOS: tuple[Scenario, ...] = (
    plain,
    uploads,
    compressed,
    broken_compression,
    chunks,
    early_close,
    abandoned,
    redirects,
    cookies,
    authentication,
    hooks,
    failures,
)


def _round_trip(web: Flavour, scenario: Scenario, server: RouteServer) -> tuple[Any, Recording, Replayed]:
    seen: list[Any] = []

    async def main() -> Any:
        seen.append(await scenario(web, server.url))
        return seen[-1]

    recording = recorded(main, web.seams)
    server.stop()
    return seen[0], recording, replayed(main, recording, seams=web.seams)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_s26_agent_sees_the_same_with_the_server_stopped(scenario: Scenario, flavour: str, server: RouteServer) -> None:
    """Everything that an agent can see of its requests is the same in a replay, which opens no socket."""
    seen, recording, replay = _round_trip(FLAVOURS[flavour], scenario, server)
    kept.clear()
    assert replay.error is None
    assert replay.result == seen
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert replay.verdict["verdict"] == "identical", replay.verdict["divergences"]
