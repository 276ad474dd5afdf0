"""A store that may not be available yet: a collector starts without it, everything else waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from spanreplay.model.errors import NewerSchema, StoreError
from spanreplay_collector.store.engine import parse_address
from spanreplay_collector.store.retention import Retained
from spanreplay_collector.store.store import Store

__all__ = ["DeferredStore", "open_migrated", "wait_for_store"]

BACKOFF_S: Final = (0.25, 5.0)


def open_migrated(url: str) -> Store:
    """Open a store that answers and has this version's tables. Raises: StoreError, ConfigError, NewerSchema."""
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
    """Opens the store on first use, so that a collector accepts spans while the store is unavailable.

    A load raises StoreError until the tables exist. Thread-safe.
    Raises: ConfigError from the constructor if the URL is invalid.
    """

    def __init__(self, url: str) -> None:
        parse_address(url)
        self._url = url
        self._store: Store | None = None
        self._lock = threading.Lock()

    @property
    def apart_spans(self) -> int:
        """Number of spans kept apart because they arrived again with different content."""
        return 0 if self._store is None else self._store.apart_spans

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        """Store requests and count their spans. Raises: StoreError while the store is unavailable or not migrated."""
        return self._opened().load(tenant, payloads, token)

    def remove_older(self, before_ns: int, *, keep_failures: bool = True) -> Retained:
        """Remove runs that ended before a time, unless pinned. Raises: StoreError while the store is unavailable."""
        return self._opened().remove_older(before_ns, keep_failures=keep_failures)

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
                    # The loader takes any exception except StoreError as the records' fault and would set them
                    # aside, but they only have to wait for the right release.
                    raise StoreError(str(exc), hint=exc.hint) from exc
            return self._store


async def wait_for_store(
    url: str, say: Callable[[str], None], *, wait_s: float, open_store: Callable[[str], Store] = open_migrated
) -> Store:
    """Return the store as soon as it can be opened; pass each new obstacle to `say` once.

    Raises: StoreError after `wait_s`; NewerSchema and ConfigError at once, since waiting would not help.
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
