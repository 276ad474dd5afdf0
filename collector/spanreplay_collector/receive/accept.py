"""Steps that HTTP and gRPC share: check, append to the log, count. The receiver sends the ACK afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from spanreplay_collector import limits
from spanreplay_collector.log.segment_log import LogUnavailable, SegmentLog
from spanreplay_collector.metrics import Metrics
from spanreplay_collector.receive.admit import Admission, Busy
from spanreplay_collector.receive.auth import Authenticator
from spanreplay_collector.receive.payload import CheckedRequest

Result = TypeVar("Result")


class Acceptor:
    """Makes requests durable: once `accept` has returned, the spans survive a crash."""

    def __init__(self, log: SegmentLog, authenticator: Authenticator, admission: Admission, metrics: Metrics) -> None:
        self.authenticator = authenticator
        self.admission = admission
        self.metrics = metrics
        self._log = log
        # One thread: parsing holds the GIL anyway, and hostile JSON takes twenty times its size in memory.
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spanreplay-check")

    async def run(self, work: Callable[[], Result], *, is_long: bool) -> Result:
        """Do CPU work here, or on a thread if it would delay other requests."""
        if not is_long:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def accept(
        self, tenant: str, body: bytes, check: Callable[[bytes], CheckedRequest], *, transport: str
    ) -> CheckedRequest:
        """Check a body and append it to the log. Raises: BadRequest, Busy."""
        checked = await self.run(lambda: check(body), is_long=len(body) > limits.PARSE_INLINE_BYTES_MAX)
        if checked.spans:
            try:
                await self._log.append(tenant, checked.payload)
            except LogUnavailable as exc:
                raise Busy(str(exc), reason="log", retry_after_s=limits.RETRY_AFTER_DISK_S) from exc
        self.metrics.add("received_requests_total", transport=transport)
        self.metrics.add("received_spans_total", checked.spans)
        self.metrics.add("received_bytes_total", len(checked.payload))
        if checked.refused_spans:
            self.metrics.add("invalid_spans_total", checked.refused_spans)
        return checked

    def close(self) -> None:
        """Release the thread."""
        self._threads.shutdown(wait=False)
