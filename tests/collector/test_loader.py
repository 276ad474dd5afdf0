"""From the log to the store: everything, once, in spite of outages, crashes and refusals."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model.errors import StoreError
from spanreplay_collector import limits
from spanreplay_collector.loader import Loader
from spanreplay_collector.log.segment_log import SegmentLog
from spanreplay_collector.metrics import Metrics
from support.collector import WAIT_S, SwitchStore, make_payload, wait_until

FAST = (0.001, 0.01)

OUTAGE_S = float(os.environ.get("SPANREPLAY_TEST_OUTAGE_S", "0"))
"""How long the store is down; ten minutes in `python -m bench outage`."""


def append(log: SegmentLog, *payloads: bytes, tenant: str = "t") -> None:
    async def run() -> None:
        for payload in payloads:
            await log.append(tenant, payload)

    asyncio.run(run())


@contextmanager
def open_log(directory: Path, **options: Any) -> Iterator[SegmentLog]:
    log = SegmentLog(directory / "log", cursors={"loader": None}, **options)
    try:
        yield log
    finally:
        log.close()


@contextmanager
def run_loader(log: SegmentLog, store: Any, directory: Path, metrics: Metrics | None = None) -> Iterator[Loader]:
    loader = Loader(log, store, metrics or Metrics(), directory / "rejected", linger_s=0.001, backoff_s=FAST)
    loader.start()
    try:
        yield loader
    finally:
        loader.stop(drain_s=1.0)


def test_loader_loads_everything_by_tenant(tmp_path: Path) -> None:
    """Each tenant's payloads are loaded in order, and the log is empty afterwards."""
    store = SwitchStore()
    bodies = [make_payload(n) for n in range(1, 101)]
    with open_log(tmp_path, segment_bytes=2000) as log, run_loader(log, store, tmp_path) as loader:
        for number, body in enumerate(bodies):
            append(log, body, tenant=f"t{number % 2}")
        assert loader.flush(WAIT_S)
        assert loader.lag_bytes == 0
    assert store.payloads("t0") == bodies[::2]
    assert store.payloads("t1") == bodies[1::2]


def test_loader_flush_of_an_empty_log_returns(tmp_path: Path) -> None:
    """flush of an empty log returns at once."""
    with open_log(tmp_path) as log, run_loader(log, SwitchStore(), tmp_path) as loader:
        assert loader.flush(WAIT_S)


def test_c6_loader_waits_for_a_store_that_is_down(tmp_path: Path) -> None:
    """During an outage nothing is lost or rejected, however many tries; afterwards everything is loaded once."""
    store, metrics = SwitchStore(), Metrics()
    store.is_down = True
    bodies = [make_payload(n) for n in range(1, 31)]
    until = time.monotonic() + OUTAGE_S
    with open_log(tmp_path) as log, run_loader(log, store, tmp_path, metrics) as loader:
        append(log, *bodies)
        while time.monotonic() < until:  # the store is down for so long, and clients go on
            bodies.append(make_payload(len(bodies) + 1))
            append(log, bodies[-1])
            threading.Event().wait(0.1)
        wait_until(lambda: store.attempts > 5 * limits.LOAD_DOUBT_TRIES)
        assert not loader.flush(0.01)
        store.is_down = False
        assert loader.flush(WAIT_S)
    assert store.payloads() == bodies
    assert metrics.value("rejected_records_total") == 0


class DyingStore(SwitchStore):
    """Stores the first batch, then fails and stays unavailable: a crash between the load and the cursor."""

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        if not self.loads:
            super().load(tenant, payloads, token)
        raise StoreError("connection reset")


def test_c1_loader_repeats_a_batch_under_the_same_token(tmp_path: Path) -> None:
    """After a stop between the store's accepting a batch and the cursor's move, the restart stores nothing twice."""
    dying, bodies = DyingStore(), [make_payload(n) for n in range(1, 11)]
    with open_log(tmp_path) as log:
        append(log, *bodies[:7])
        with run_loader(log, dying, tmp_path):
            wait_until(lambda: dying.loads)
            append(log, *bodies[7:])
    alive = SwitchStore()
    alive._tokens, alive.loads = dying._tokens, dying.loads
    with open_log(tmp_path) as log, run_loader(log, alive, tmp_path) as loader:
        assert loader.flush(WAIT_S)
    assert alive.payloads() == bodies


@pytest.mark.parametrize("refusal", [ValueError("bad row"), StoreError("Code: 27")], ids=["error", "store error"])
def test_c5_loader_sets_aside_what_the_store_refuses(tmp_path: Path, refusal: Exception) -> None:
    """Two poisoned records do not affect their neighbours, and are kept where a person can look at them."""
    store, metrics = SwitchStore(), Metrics()
    bodies = [make_payload(n) for n in range(1, 21)]
    store.refused, store.refusal = {bodies[0], bodies[9]}, refusal
    with open_log(tmp_path) as log:
        append(log, *bodies)
        with run_loader(log, store, tmp_path, metrics) as loader:
            assert loader.flush(WAIT_S)
    assert sorted(store.payloads()) == sorted(set(bodies) - store.refused)
    assert {path.read_bytes() for path in (tmp_path / "rejected").iterdir()} == store.refused
    assert metrics.value("rejected_records_total") == 2


def test_c5_loader_tells_a_lone_refusal_from_an_outage(tmp_path: Path) -> None:
    """A record that fails alone waits; as soon as others succeed, it is set aside."""
    store, metrics = SwitchStore(), Metrics()
    poisoned, good = make_payload(1), make_payload(2)
    store.refused, store.refusal = {poisoned}, StoreError("Code: 27")
    with open_log(tmp_path) as log, run_loader(log, store, tmp_path, metrics) as loader:
        append(log, poisoned)
        wait_until(lambda: store.attempts > 3 * limits.LOAD_DOUBT_TRIES)
        assert metrics.value("rejected_records_total") == 0
        append(log, good)
        assert loader.flush(WAIT_S)
    assert store.payloads() == [good]
    assert metrics.value("rejected_records_total") == 1


def test_loader_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog is loaded in batches, never all at once."""
    monkeypatch.setattr(limits, "LOAD_RECORDS_MAX", 7)
    store = SwitchStore()
    with open_log(tmp_path) as log:
        append(log, *[make_payload(n) for n in range(1, 101)])
        with run_loader(log, store, tmp_path) as loader:
            assert loader.flush(WAIT_S)
    assert max(len(payloads) for _, payloads, _ in store.loads) == 7
    assert len(store.payloads()) == 100


class GateStore(SwitchStore):
    """A store whose first load blocks until released."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()

    def load(self, tenant: str, payloads: Sequence[bytes], token: str) -> int:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        return super().load(tenant, payloads, token)


def test_loader_never_delays_an_acknowledgement(tmp_path: Path) -> None:
    """While the store hangs, the log still accepts records."""
    store = GateStore()
    with open_log(tmp_path) as log, run_loader(log, store, tmp_path) as loader:
        append(log, make_payload(1))
        assert store.entered.wait(WAIT_S)
        append(log, *[make_payload(n) for n in range(2, 50)])
        assert not store.loads
        store.gate.set()
        assert loader.flush(WAIT_S)
    assert len(store.payloads()) == 49
