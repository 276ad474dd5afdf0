"""The append log keeps what was acknowledged, whatever happens to the process or the disk."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.model.errors import ConfigError
from spanreplay_collector.log.segment import list_segments, segment_path
from spanreplay_collector.log.segment_log import LogUnavailable, Position, Record, SegmentLog
from spanreplay_collector.metrics import Metrics
from support.collector import wait_until

LOADER: Mapping[str, int | None] = {"loader": None}


@contextmanager
def open_log(directory: Path, cursors: Mapping[str, int | None] = LOADER, **options: Any) -> Iterator[SegmentLog]:
    log = SegmentLog(directory, cursors=cursors, **options)
    try:
        yield log
    finally:
        log.close()


def append(log: SegmentLog, *payloads: bytes, tenant: str = "t") -> None:
    async def run() -> None:
        await asyncio.gather(*(log.append(tenant, payload) for payload in payloads))

    asyncio.run(run())


def append_singly(log: SegmentLog, *payloads: bytes) -> None:
    for payload in payloads:
        append(log, payload)


def read_all(log: SegmentLog, start: Position | None = None) -> list[Record]:
    position = start or Position(0, 0)
    records: list[Record] = []
    while True:
        batch = log.read(position, bytes_max=1 << 20, records_max=100)
        if not batch.records and batch.next == position:
            return records
        records += batch.records
        position = batch.next


def read_payloads(log: SegmentLog) -> list[bytes]:
    return [record.payload for record in read_all(log)]


def test_log_reads_back_in_order(tmp_path: Path) -> None:
    """Records come back with tenant and bytes, in the order of their acknowledgement, also after reopening."""
    payloads = [bytes([n]) * n for n in range(1, 40)]
    with open_log(tmp_path) as log:
        for number, payload in enumerate(payloads):
            append(log, payload, tenant=f"tenant-{number % 3}-ü")
        first = read_all(log)
    assert [r.payload for r in first] == payloads
    assert [r.tenant for r in first] == [f"tenant-{n % 3}-ü" for n in range(39)]
    with open_log(tmp_path) as log:
        assert read_all(log) == first


def test_log_shares_one_sync_among_waiting_requests(tmp_path: Path) -> None:
    """Requests that wait at the same time are committed together."""
    metrics = Metrics()
    with open_log(tmp_path, metrics=metrics) as log:
        append(log, *[b"x" * 100] * 500)
        assert len(read_payloads(log)) == 500
    assert metrics.value("log_groups_total") < 100


def test_log_cuts_a_torn_tail_wherever_it_was_torn(tmp_path: Path) -> None:
    """A crash in the middle of a write loses that record only, at whichever byte it happens."""
    original = tmp_path / "original"
    with open_log(original) as log:
        append_singly(log, b"first" * 3, b"second", b"third--")
    segment = list_segments(original)[0]
    whole = segment_path(original, segment).read_bytes()
    with open_log(original) as log:
        third_starts = read_all(log)[2].start.offset
    for cut in range(third_starts, len(whole)):
        torn = tmp_path / "torn"
        shutil.rmtree(torn, ignore_errors=True)
        shutil.copytree(original, torn)
        segment_path(torn, segment).write_bytes(whole[:cut])
        with open_log(torn) as log:
            append(log, b"fourth")
            assert read_payloads(log) == [b"first" * 3, b"second", b"fourth"]


def test_log_skips_a_damaged_record_and_says_so(tmp_path: Path) -> None:
    """A flipped byte costs the record that contains it, is counted, and never stops the readers."""
    with open_log(tmp_path) as log:
        append_singly(log, b"first", b"second", b"third")
        damaged = read_all(log)[1]
    path = segment_path(tmp_path, damaged.start.segment)
    content = bytearray(path.read_bytes())
    content[damaged.end.offset - 1] ^= 1
    path.write_bytes(content)
    metrics = Metrics()
    with open_log(tmp_path, metrics=metrics) as log:
        assert read_payloads(log) == [b"first", b"third"]
    assert metrics.value("log_damaged_records_total") == 1


def test_log_deletes_a_segment_when_every_cursor_has_passed(tmp_path: Path) -> None:
    """A segment is kept for its slowest reader; a reader that is gone for good no longer counts."""
    with open_log(tmp_path, {"loader": None, "phoenix": None}, segment_bytes=100) as log:
        append_singly(log, *[b"x" * 150] * 6)
        assert len(list_segments(tmp_path)) == 6
        log.advance(log.cursor("loader"), log.end)
        assert len(list_segments(tmp_path)) == 6
        log.advance(log.cursor("phoenix"), read_all(log)[3].end)
        assert len(list_segments(tmp_path)) == 2
    with open_log(tmp_path, LOADER) as log:
        assert list_segments(tmp_path) == []
        assert read_payloads(log) == []


def test_log_moves_a_lossy_cursor_on(tmp_path: Path) -> None:
    """A reader with a lag limit never holds back more than that, and the bytes that it misses are counted."""
    metrics = Metrics()
    cursors = {"loader": None, "phoenix": 1000}
    with open_log(tmp_path, cursors, segment_bytes=200, metrics=metrics) as log:
        append_singly(log, *[b"x" * 250] * 20)
        log.advance(log.cursor("loader"), log.end)
        assert log.bytes_on_disk <= 1000
        kept = read_all(log, log.position_of(log.cursor("phoenix")))
        assert 0 < len(kept) < 20
        assert log.read(Position(1, 0), bytes_max=1, records_max=1).records[0] == kept[0]
    assert metrics.value("phoenix_dropped_bytes_total") >= (20 - len(kept)) * 250


def test_log_cursor_survives_and_repeats_the_planned_batch(tmp_path: Path) -> None:
    """After a crash between plan and advance the same bounds are read again, even if records were added since."""
    with open_log(tmp_path) as log:
        append_singly(log, b"one", b"two")
        cursor = log.cursor("loader")
        batch = log.read(Position(0, 0), bytes_max=1 << 20, records_max=9)
        log.plan(cursor, batch)
        append(log, b"three")
    with open_log(tmp_path) as log:
        cursor = log.cursor("loader")
        again = log.read(cursor.position, bytes_max=1 << 20, records_max=9, until=cursor.planned)
        assert again.records == batch.records
        log.advance(cursor, again.next)
        rest = log.read(cursor.position, bytes_max=1 << 20, records_max=9)
        assert [r.payload for r in rest.records] == [b"three"]


def test_log_closes_an_idle_segment_so_that_it_can_go(tmp_path: Path) -> None:
    """A segment that everybody has read is deleted without waiting for the next request."""
    with open_log(tmp_path, segment_age_s=0.05) as log:
        append(log, b"one")
        log.advance(log.cursor("loader"), log.end)
        wait_until(lambda: list_segments(tmp_path) == [])
        assert log.bytes_on_disk == 0
        append(log, b"two")
        assert read_payloads(log) == [b"two"]


def test_log_identity_changes_only_when_nothing_is_left(tmp_path: Path) -> None:
    """Tokens are stable while records wait, and are never reused for different records."""
    with open_log(tmp_path) as log:
        append(log, b"one")
        first = log.identity
    with open_log(tmp_path) as log:
        assert log.identity == first
        log.advance(log.cursor("loader"), log.end)
    shutil.rmtree(tmp_path / "cursors")
    with open_log(tmp_path) as log:
        assert log.identity != first


def test_log_belongs_to_one_process(tmp_path: Path) -> None:
    """A second collector on the same directory is refused with the reason; once the first is closed it may start."""
    with open_log(tmp_path), pytest.raises(ConfigError, match="another collector is using"):
        SegmentLog(tmp_path, cursors=LOADER)
    with open_log(tmp_path):
        pass


def test_c6_log_survives_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """A write that fails half-way is reported as failed and leaves no trace; the next one works."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_log(tmp_path) as log:
        append(log, b"before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            with pytest.raises(LogUnavailable, match="cannot write the log"):
                append(log, b"x" * (2 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        append(log, b"after")
        assert read_payloads(log) == [b"before", b"after"]
    with open_log(tmp_path) as log:
        assert read_payloads(log) == [b"before", b"after"]


def test_c6_log_has_no_room_beyond_its_limit(tmp_path: Path) -> None:
    """The log says that it has no room before its limit is crossed, and has room again after the reader advanced."""
    with open_log(tmp_path, bytes_max=5000, segment_bytes=1000) as log:
        append_singly(log, *[b"x" * 990] * 4)
        assert log.has_room(500)
        assert not log.has_room(2000)
        log.advance(log.cursor("loader"), log.end)
        assert log.has_room(2000)


def test_log_refuses_after_close(tmp_path: Path) -> None:
    """No append is acknowledged after the writer has stopped."""
    with open_log(tmp_path) as log:
        append(log, b"one")
    with pytest.raises(LogUnavailable, match="stopping"):
        append(log, b"two")


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.lists(st.binary(max_size=300), max_size=5), max_size=8),
    segment_bytes=st.integers(min_value=10, max_value=700),
    batch_bytes=st.integers(min_value=1, max_value=900),
)
def test_log_batches_cover_everything_once(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[bytes]], segment_bytes: int, batch_bytes: int
) -> None:
    """For any sizes of records, segments and batches, each record comes once, in order; each batch has one segment."""
    directory = tmp_path_factory.mktemp("log")
    with open_log(directory, segment_bytes=segment_bytes) as log:
        for group in groups:
            append(log, *group)
        cursor = log.cursor("loader")
        seen: list[bytes] = []
        while batch := log.read(log.position_of(cursor), bytes_max=batch_bytes, records_max=3).records:
            assert len({record.start.segment for record in batch}) == 1
            seen += [record.payload for record in batch]
            log.advance(cursor, batch[-1].end)
        assert seen == [payload for group in groups for payload in group]
