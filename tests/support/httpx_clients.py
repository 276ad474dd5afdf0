"""The four clients of httpx and httpx2 behind one interface, so that a scenario is written once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import httpx
import httpx2

from spanreplay.seams.transport import httpx as _httpx
from support.in_process import Seams


@dataclass(frozen=True)
class Flavour:
    """One of the modules, sync or async."""

    hx: ModuleType
    is_async: bool

    @property
    def seams(self) -> Seams:
        """Return the seams to patch."""
        return ((_httpx.install, self.hx),)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Any]:
        """Open a client; it is closed on exit."""
        if self.is_async:
            async with self.hx.AsyncClient(**options) as client:
                yield client
        else:
            with self.hx.Client(**options) as client:
                yield client

    async def send(self, client: Any, method: str, url: str, **options: Any) -> Any:
        """Send one request."""
        made = client.request(method, url, **options)
        return await made if self.is_async else made

    @asynccontextmanager
    async def stream(self, client: Any, url: str, method: str = "GET") -> AsyncIterator[Any]:
        """Open a response without reading its body; it is closed on exit."""
        if self.is_async:
            async with client.stream(method, url) as response:
                yield response
        else:
            with client.stream(method, url) as response:
                yield response

    async def open_stream(self, client: Any, url: str) -> Any:
        """Return a response whose body isn't read and that is never closed."""
        made = client.send(client.build_request("GET", url), stream=True)
        return await made if self.is_async else made

    def iterate(self, response: Any, how: str = "bytes", limit: int = -1) -> AsyncIterator[Any]:
        """Yield the body in pieces, at most `limit` of them; `how`: bytes, raw, text, lines."""
        return _alimited(
            getattr(response, f"aiter_{how}")() if self.is_async else getattr(response, f"iter_{how}")(), limit
        )

    async def read(self, response: Any, how: str = "bytes", limit: int = -1) -> list[Any]:
        """Return the pieces that `iterate` yields."""
        return [piece async for piece in self.iterate(response, how, limit)]

    def hook(self, function: Callable[[Any], None]) -> Any:
        """Return an event hook in the form this client takes."""
        if not self.is_async:
            return function

        async def hook(subject: Any) -> None:
            function(subject)

        return hook


async def _alimited(pieces: Any, limit: int) -> AsyncIterator[Any]:
    count = 0
    if isinstance(pieces, Iterator):
        for piece in pieces:
            yield piece
            count += 1
            if count == limit:
                return
        return
    async for piece in pieces:
        yield piece
        count += 1
        if count == limit:
            return


FLAVOURS = {
    "httpx-sync": Flavour(httpx, is_async=False),
    "httpx-async": Flavour(httpx, is_async=True),
    "httpx2-sync": Flavour(httpx2, is_async=False),
    "httpx2-async": Flavour(httpx2, is_async=True),
}
