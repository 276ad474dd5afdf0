"""The size of a spool directory: known without holding up whoever writes there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from spanreplay.model.own_threads import wait_until
from spanreplay.recording.spool import directory
from spanreplay.recording.spool.directory import Usage
from spanreplay.recording.spool.limits import USAGE_RESCAN_BYTES

WAIT_S: Final = 60


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[int]]:
    """Every measurement counts as a long one, and waits for this event; the threads that measured."""
    go_on, threads = threading.Event(), list[int]()
    real: Callable[..., Any] = os.scandir

    def scandir(path: Any) -> Any:
        threads.append(threading.get_ident())
        assert go_on.wait(WAIT_S)
        return real(path)

    monkeypatch.setattr(directory, "USAGE_SCAN_MS_MAX", -1)
    monkeypatch.setattr("spanreplay.recording.spool.directory.os.scandir", scandir)
    return go_on, threads


def test_p2_a_directory_of_many_files_is_measured_aside(
    tmp_path: Path, held: tuple[threading.Event, list[int]]
) -> None:
    """A request that writes goes on meanwhile; what others have written counts as soon as it is known."""
    go_on, threads = held
    (tmp_path / "others.spool").write_bytes(b"x" * 1000)
    usage = Usage(tmp_path)
    assert usage.take(10, 500)
    assert usage.take(USAGE_RESCAN_BYTES, 2 * USAGE_RESCAN_BYTES)
    go_on.set()
    assert wait_until(lambda: usage.known_bytes == 1000, WAIT_S)
    assert not usage.take(10, 500)
    assert usage.take(10, 2000)
    assert threading.get_ident() not in threads


def test_p2_a_full_directory_is_measured_by_one_thread(
    tmp_path: Path, held: tuple[threading.Event, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests find it full; room that was made is found again."""
    go_on, threads = held
    full = tmp_path / "full.spool"
    full.write_bytes(b"x" * 1000)
    usage = Usage(tmp_path)
    go_on.set()
    assert usage.measure() == 1000
    go_on.clear()
    threads.clear()
    monkeypatch.setattr(directory, "USAGE_RESCAN_MS", -1)
    assert not any(usage.take(10, 500) for _ in range(50))
    full.unlink()
    go_on.set()
    assert wait_until(lambda: usage.take(10, 500), WAIT_S)
    assert len(set(threads) - {threading.get_ident()}) >= 1
    assert threading.get_ident() not in threads
