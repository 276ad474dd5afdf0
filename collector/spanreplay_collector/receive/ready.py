"""Whether the collector is ready: the log can be written, and the store answers. Phoenix doesn't matter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from spanreplay_collector import limits


class Readiness:
    """Checks log and store at most once per READY_FRESH_S, however many clients ask; used on one event loop."""

    def __init__(self, check_log: Callable[[], str], check_store: Callable[[], object] | None) -> None:
        """`check_log` returns why the log can't be written, or ""; `check_store` raises if the store is unavailable."""
        self._checks = ((check_log, "the log"), *(((check_store, "the store"),) if check_store else ()))
        self.log_alone: Readiness = Readiness(check_log, None) if check_store else self
        """Whether spans can be acknowledged, whatever the state of the store; for load balancers."""
        self._asking: asyncio.Task[str] | None = None
        self._asked_s = float("-inf")
        self._trouble = ""

    async def find_trouble(self) -> str:
        """One line on why the collector is not ready; "" if it is."""
        if self._asking is None:
            if time.monotonic() - self._asked_s < limits.READY_FRESH_S:
                return self._trouble
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> str:
        try:
            self._trouble = await self._look()
        finally:
            self._asked_s = time.monotonic()
            self._asking = None
        return self._trouble

    async def _look(self) -> str:
        # A thread that hangs on a dead disk or store is left alone: the response does not wait for it.
        for check, name in self._checks:
            try:
                said = await asyncio.wait_for(asyncio.to_thread(check), limits.READY_TIMEOUT_S)
            except asyncio.TimeoutError:
                return f"{name} does not answer within {limits.READY_TIMEOUT_S:g} s"
            except Exception as exc:  # noqa: BLE001 any error means not ready; its text may contain an address
                return f"{name} does not answer ({type(exc).__name__})"
            if said:
                return str(said)
        return ""
