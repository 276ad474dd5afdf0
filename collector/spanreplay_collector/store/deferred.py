"""A store that is not there yet: a collector starts without it, everything else waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from spanreplay.model.errors import NewerSchema, StoreError
from spanreplay_collector.store.engine import parse_address
from spanreplay_collector.store.store import Store

__all__ = ["DeferredStore", "open_migrated", "wait_for_store"]

BACKOFF_S: Final = (0.25, 5.0)


def open_migrated(url: str) -> Store:
    """The store, if it answers and its tables are this version's. Raises: StoreError, ConfigError."""
    store = Store.open(url)
    try:
        pending = store.list_pending()
        if pending:
            raise StoreError(f"{store!r} lacks {', '.join(pending)}", hint="run `spanreplay migrate`")
    except BaseException:
        store.close()
        raise
    return store


class DeferredStore:
    """Opens the store with the first load, so that a collector takes spans in while the store is away.

    Nothing is loaded before the tables are there: a load raises StoreError till then. Thread-safe.
    Raises: ConfigError at once for an address that can't be one.
    """

    def __init__(self, url: str) -> None:
        parse_address(url)
        self._url = url
        self._store: Store | None = None
        self._lock = threading.Lock()

    @property
    def apart_spans(self) -> int:
        """How many spans were kept apart, because they came again with other content."""
        return 0 if self._store is None else self._store.apart_spans

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store requests and count their spans. Raises: StoreError while the store is away or not migrated."""
        return self._opened().load(tenant, payloads, token)

    def ping(self) -> None:
        """Return if the store answers and has its tables. Raises: StoreError."""
        self._opened().ping()

    def close(self) -> None:
        """Close the store if it was opened; idempotent."""
        with self._lock:
            if self._store is not None:
                self._store.close()

    def _opened(self) -> Store:
        with self._lock:
            if self._store is None:
                try:
                    self._store = open_migrated(self._url)
                except NewerSchema as exc:
                    # To the loader anything but a StoreError means that the records are at fault: it would set
                    # them aside, where they only have to wait for the right release.
                    raise StoreError(str(exc), hint=exc.hint) from exc
            return self._store


async def wait_for_store(
    url: str, say: Callable[[str], None], *, wait_s: float, open_store: Callable[[str], Store] = open_migrated
) -> Store:
    """The store as soon as it can be opened; what is in the way is said once.

    Raises: StoreError after `wait_s`; NewerSchema and ConfigError at once, since waiting changes nothing.
    """
    deadline_s = time.monotonic() + wait_s
    delay_s, delay_s_max = BACKOFF_S
    said = ""
    while True:
        try:
            return await asyncio.to_thread(open_store, url)
        except StoreError as exc:
            if time.monotonic() + delay_s > deadline_s:
                raise
            if str(exc) != said:
                said = str(exc)
                say(f"waiting for the store: {exc}")
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, delay_s_max)
