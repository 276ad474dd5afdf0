"""`spanreplay serve`: the replay service alone, on a ClickHouse server that collectors fill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from spanreplay.model.config import SERVICE_PORT
from spanreplay_collector.receive.auth import TlsFiles, Token, check_exposure
from spanreplay_collector.store.deferred import wait_for_store
from spanreplay_service.limits import STORE_WAIT_S_MAX
from spanreplay_service.phoenix import PhoenixSink
from spanreplay_service.server import ReplayServer, ServerSettings

__all__ = ["Serve", "ServeSettings"]


@dataclass(frozen=True)
class ServeSettings:
    """All settings of `spanreplay serve`; port 0 takes a free port."""

    store_url: str
    host: str = "127.0.0.1"
    port: int = SERVICE_PORT
    tokens: tuple[Token, ...] = ()
    tls: TlsFiles | None = None
    is_plaintext_allowed: bool = False
    phoenix_url: str = ""
    phoenix_public_url: str = ""
    phoenix_token: str = ""


class Serve:
    """Store and service, started in order and stopped in reverse order."""

    def __init__(self, settings: ServeSettings, *, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._parts = AsyncExitStack()

    async def start(self) -> str:
        """Wait for the store, listen and return the address.

        Raises: ConfigError, PortTaken, StoreError, NewerSchema.
        """
        settings = self._settings
        public_url = settings.phoenix_public_url or settings.phoenix_url
        check_exposure(
            settings.host,
            has_tokens=bool(settings.tokens),
            tls=settings.tls,
            is_plaintext_allowed=settings.is_plaintext_allowed,
        )
        async with AsyncExitStack() as parts:
            store = await wait_for_store(settings.store_url, self._say, wait_s=STORE_WAIT_S_MAX)
            parts.push_async_callback(asyncio.to_thread, store.close)
            sink = (
                PhoenixSink(settings.phoenix_url, settings.phoenix_token, public_url=public_url)
                if settings.phoenix_url
                else None
            )
            server = ReplayServer(
                store,
                ServerSettings(
                    host=settings.host,
                    port=settings.port,
                    tokens=settings.tokens,
                    tls=settings.tls,
                    is_plaintext_allowed=settings.is_plaintext_allowed,
                    phoenix_url=public_url,
                ),
                sink=sink,
            )
            await server.start()
            parts.push_async_callback(server.stop)
            self._parts = parts.pop_all()
        return server.address

    async def stop(self) -> None:
        """Finish the calls in progress, then close the store."""
        await self._parts.aclose()
