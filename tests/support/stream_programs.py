"""Random programs with concurrent streams, whose end arrives in a separate read; for several HTTP clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import aiohttp
import httpx
import httpx2
import requests

from spanreplay.seams.transport import aiohttp as _aiohttp
from spanreplay.seams.transport import httpx as _httpx
from spanreplay.seams.transport import requests as _requests
from support.in_process import Seams
from support.route_server import Handler, Route

UNIT_S: Final = 0.001


def _answer(handler: Handler) -> None:
    """Send the pieces of a body, each after a gap, and its end after the last gap.

    "cut" closes the connection instead of ending the body; "bare" doesn't state the body's length, so that closing the
    connection ends it.
    """
    asked = parse_qs(urlsplit(handler.path).query)
    *gaps, last = (int(gap) for gap in asked["gaps"][0].split(","))

    def pieces() -> Iterator[bytes]:
        for number, gap in enumerate(gaps):
            time.sleep(gap * UNIT_S)
            yield f"data: {number} {uuid.uuid4().hex[:6]}\n\n".encode()
        time.sleep(last * UNIT_S)

    if "bare" in asked:
        handler.send_until_closed(pieces(), {"content-type": "text/event-stream"})
    else:
        handler.send_chunks(pieces(), {"content-type": "text/event-stream"}, is_whole="cut" not in asked)


ROUTES: Final[dict[str, Route]] = {"/stream": _answer}


@dataclass
class Stream:
    """One stream that a program reads: its path, the pieces after which it is left (-1: never), and the next stream."""

    path: str
    left_after: int
    then: Stream | None = None


def _draw_stream(rng: random.Random, depth: int) -> Stream:
    gaps = [rng.choice((0, 0, 1, 2, 3)) for _ in range(rng.randint(1, 5))]
    end = rng.choice(("", "", "", "", "&cut=1", "&bare=1"))
    left_after = rng.choice((-1, -1, -1, -1, 1))
    then = _draw_stream(rng, depth - 1) if depth and rng.random() < 0.4 else None
    return Stream(f"/stream?gaps={','.join(map(str, gaps))}{end}", left_after, then)


@dataclass
class StreamProgram:
    """Two to five concurrent streams; `observed` are the program's observations, in order."""

    streams: list[Stream]
    is_as_completed: bool
    observed: list[Any] = field(default_factory=list)


def draw_program(seed: int) -> StreamProgram:
    """Return a random program."""
    rng = random.Random(seed)
    return StreamProgram([_draw_stream(rng, 1) for _ in range(rng.randint(2, 5))], rng.random() < 0.5)


# ── in tasks ────────────────────────────────────────────────────────────────────────────────────────
Open = Callable[[Any, str], Any]


@dataclass(frozen=True)
class Client:
    """An HTTP library: its seams, and how a program runs with it."""

    seams: Seams
    run: Callable[[StreamProgram, str], Callable[[], Any]]


def _in_tasks(session: Callable[[], Any], open_stream: Open) -> Callable[[StreamProgram, str], Callable[[], Any]]:
    def build(program: StreamProgram, url: str) -> Callable[[], Awaitable[None]]:
        seen = program.observed

        async def read(client: Any, stream: Stream, name: str) -> str:
            count = 0
            try:
                async with open_stream(client, url + stream.path) as pieces:
                    async for piece in pieces:
                        count += 1
                        seen.append((name, piece))
                        if count == stream.left_after:
                            break
            except Exception as exc:  # noqa: BLE001 -- each library has its own for a body that is cut
                seen.append((name, type(exc).__name__))
            seen.append((name, "end"))
            return await read(client, stream.then, f"{name}+") if stream.then is not None else name

        async def main() -> None:
            async with session() as client:
                tasks = [asyncio.create_task(read(client, s, str(n))) for n, s in enumerate(program.streams)]
                if program.is_as_completed:
                    for done in asyncio.as_completed(tasks):
                        seen.append(("done", await done))
                else:
                    await asyncio.gather(*tasks)

        return main

    return build


def _open_httpx(hx: Any) -> Open:
    @asynccontextmanager
    async def open_stream(client: Any, url: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async with client.stream("GET", url) as response:
            yield response.aiter_bytes()

    return open_stream


@asynccontextmanager
async def _open_aiohttp(client: Any, url: str) -> AsyncIterator[AsyncIterator[bytes]]:
    async with client.get(url) as response:
        yield response.content.iter_any()


@asynccontextmanager
async def _open_aiohttp_lines(client: Any, url: str) -> AsyncIterator[AsyncIterator[bytes]]:
    async def lines(content: Any) -> AsyncIterator[bytes]:
        while not content.at_eof():
            yield await content.readline()

    async with client.get(url) as response:
        yield lines(response.content)


# ── in threads ──────────────────────────────────────────────────────────────────────────────────────
def _in_threads(open_stream: Callable[[str], Any]) -> Callable[[StreamProgram, str], Callable[[], Any]]:
    def build(program: StreamProgram, url: str) -> Callable[[], None]:
        seen = program.observed

        def read(stream: Stream, name: str) -> list[str]:
            own: list[str] = []
            try:
                with open_stream(url + stream.path) as pieces:
                    for piece in itertools.islice(pieces, None if stream.left_after < 0 else stream.left_after):
                        own.append(f"{name} {piece!r}")
            except Exception as exc:  # noqa: BLE001 -- each library has its own for a body that is cut
                own.append(f"{name} {type(exc).__name__}")
            return own + (read(stream.then, f"{name}+") if stream.then is not None else [])

        def main() -> None:
            with concurrent.futures.ThreadPoolExecutor(len(program.streams)) as pool:
                futures = [pool.submit(read, stream, str(n)) for n, stream in enumerate(program.streams)]
                if program.is_as_completed:
                    seen.extend(future.result() for future in concurrent.futures.as_completed(futures))
                else:
                    pending = set(futures)
                    while pending:
                        done, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
                        seen.append(sorted(future.result() for future in done))

        return main

    return build


@contextmanager
def _open_requests(url: str) -> Iterator[Iterator[bytes]]:
    with requests.get(url, stream=True, timeout=10) as response:
        yield response.iter_content(None)


def _open_sync_httpx(hx: Any) -> Callable[[str], Any]:
    @contextmanager
    def open_stream(url: str) -> Iterator[Iterator[bytes]]:
        with hx.Client() as client, client.stream("GET", url) as response:
            yield response.iter_bytes()

    return open_stream


CLIENTS: Final[dict[str, Client]] = {
    "httpx": Client(((_httpx.install, httpx),), _in_tasks(httpx.AsyncClient, _open_httpx(httpx))),
    "httpx2": Client(((_httpx.install, httpx2),), _in_tasks(httpx2.AsyncClient, _open_httpx(httpx2))),
    "aiohttp": Client(((_aiohttp.install, aiohttp),), _in_tasks(aiohttp.ClientSession, _open_aiohttp)),
    "aiohttp-lines": Client(((_aiohttp.install, aiohttp),), _in_tasks(aiohttp.ClientSession, _open_aiohttp_lines)),
    "requests": Client(((_requests.install, requests),), _in_threads(_open_requests)),
    "httpx-threads": Client(((_httpx.install, httpx),), _in_threads(_open_sync_httpx(httpx))),
}
