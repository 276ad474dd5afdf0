"""The shipper across processes: killed, restarted, forked, exiting, several at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spanreplay.recording.spool import ship_all
from spanreplay.recording.spool.directory import iter_spool_files
from spanreplay.recording.spool.frames import iter_frames
from spanreplay.recording.spool.target import target_of
from support import otlp_sink
from support.otlp_sink import OtlpSink
from support.spool_tools import calls, ids, leave, make_shipper, start_python

LONG_MS = 30_000


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    """A collector that accepts everything."""
    with otlp_sink.serve() as running:
        yield running


_KILLED_AGENT = """
import os, sys
from pathlib import Path
from spanreplay.recording.spool import Shipper, SpoolWriter
from spanreplay.recording.spool.target import target_of
from support.spool_tools import RUN, call
directory = Path(sys.argv[1])
shipper = Shipper(directory, target_of(sys.argv[2]), interval_ms=1)
writer = SpoolWriter(directory, RUN, to_ship=True)
for seq in range(1, 6):
    assert writer.append(call(seq=seq))
    shipper.notify()
    if len(sys.argv) > 3 and seq == 3:
        assert shipper.flush(30_000)
os.write(1, b"x")
os.read(0, 1)
"""


def test_s48_next_process_ships_what_a_killed_one_left(tmp_path: Path, sink: OtlpSink) -> None:
    """Spans that a killed process recorded while the collector was down are shipped by the next process."""
    unreachable = otlp_sink.reserve_port()
    process = start_python(_KILLED_AGENT, tmp_path, otlp_sink.endpoint_of(unreachable))
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    shipper = make_shipper(tmp_path, sink.endpoint)
    assert shipper.flush(LONG_MS)
    assert sink.span_ids() == [], "the writer lives: its file is not ours"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    assert shipper.shutdown(LONG_MS)
    assert sink.span_ids() == ids(1, 2, 3, 4, 5)
    assert list(iter_spool_files(tmp_path)) == []
    unreachable.close()


def test_restart_goes_on_at_the_acknowledged_offset(tmp_path: Path, sink: OtlpSink) -> None:
    """Spans that the killed process had delivered are not sent again."""
    process = start_python(_KILLED_AGENT, tmp_path, sink.endpoint, "flush")
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    assert set(ids(1, 2, 3)) <= set(sink.span_ids())
    assert ship_all(tmp_path, target_of(sink.endpoint)).error == ""
    assert sorted(set(sink.span_ids())) == ids(1, 2, 3, 4, 5)
    assert sink.span_ids()[:3] == ids(1, 2, 3)
    assert sink.span_ids().count(1001) == 1


def test_live_files_are_left_to_their_writers(tmp_path: Path, sink: OtlpSink) -> None:
    """ship_all counts files that are being written and says why they remain."""
    reserved = otlp_sink.reserve_port()
    process = start_python(_KILLED_AGENT, tmp_path, otlp_sink.endpoint_of(reserved))
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    report = ship_all(tmp_path, target_of(sink.endpoint))
    assert (report.live, report.payloads) == (1, 0)
    process.communicate(b"x", timeout=600)
    unreachable = ship_all(tmp_path, target_of(otlp_sink.endpoint_of(reserved)))
    assert (unreachable.remaining, unreachable.live) == (1, 0)
    assert unreachable.error.endswith("/v1/traces: ConnectionRefusedError")
    reserved.close()


_SHIP_ALL = """
import sys
from pathlib import Path
from spanreplay.recording.spool import ship_all
from spanreplay.recording.spool.target import target_of
sys.stdin.read(1)
report = ship_all(Path(sys.argv[1]), target_of(sys.argv[2]))
assert not report.error and not report.refused, report
"""


def test_several_processes_never_ship_the_same_file(tmp_path: Path, sink: OtlpSink) -> None:
    """Four processes at once deliver each span of forty files exactly once."""
    for n in range(40):
        leave(tmp_path, calls(*range(n * 10, n * 10 + 10)), f"0192f0{n:06x}70008000000000000000")
    processes = [start_python(_SHIP_ALL, tmp_path, sink.endpoint) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=600)
        assert process.returncode == 0
    assert sorted(sink.span_ids()) == ids(*range(400))
    assert list(iter_spool_files(tmp_path)) == []


_FORKING_AGENT = """
import os, sys
from pathlib import Path
from spanreplay.recording.spool import Shipper, SpoolWriter
from spanreplay.recording.spool.target import target_of
from support.spool_tools import RUN, call
directory = Path(sys.argv[1])
shipper = Shipper(directory, target_of(sys.argv[2]), interval_ms=1)
writer = SpoolWriter(directory, RUN, to_ship=True)
writer.append(call(seq=1))
shipper.notify()
assert shipper.flush(30_000)
children = []
for seq in range(2, 6):
    writer.append(call(seq=seq * 10))
    shipper.notify()
    pid = os.fork()
    if pid == 0:
        assert writer.append(call(seq=seq))
        shipper.notify()
        writer.close()
        os._exit(0 if shipper.shutdown(30_000) else 1)  # a closed file may be delivered by whoever is first
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
writer.close()
assert shipper.shutdown(30_000)
"""


def test_forked_children_ship_their_own(tmp_path: Path, sink: OtlpSink) -> None:
    """A parent and children forked while the shipper works deliver everything once and do not hang."""
    process = start_python(_FORKING_AGENT, tmp_path, sink.endpoint)
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert sorted(sink.span_ids()) == sorted(ids(1, 2, 3, 4, 5, 20, 30, 40, 50))
    assert list(iter_spool_files(tmp_path)) == []


_EXITING_AGENT = """
import atexit, sys
from pathlib import Path
from opentelemetry.sdk.trace import TracerProvider
from spanreplay.recording.spool import Shipper, SpoolSpanProcessor, SpoolWriter
from spanreplay.recording.spool.target import target_of
from support.spool_tools import RUN
directory = Path(sys.argv[1])
provider = TracerProvider()
shipper = Shipper(directory, target_of(sys.argv[2]))
provider.add_span_processor(SpoolSpanProcessor(SpoolWriter(directory, RUN, to_ship=True), shipper))
atexit.register(lambda: provider.get_tracer("t").start_span("the first span ends at exit").end())
"""


@pytest.mark.parametrize("is_up", [True, False], ids=["collector_up", "collector_dead"])
def test_agent_exits_cleanly_whatever_the_collector(is_up: bool, tmp_path: Path) -> None:
    """A span that ends during interpreter shutdown is delivered, or kept for the next process."""
    reserved = otlp_sink.reserve_port()
    endpoint = otlp_sink.endpoint_of(reserved)
    if not is_up:
        process = start_python(_EXITING_AGENT, tmp_path, endpoint)
        process.communicate(timeout=600)
        assert process.returncode == 0
        (path,) = iter_spool_files(tmp_path)
        assert len(list(iter_frames(path))) == 1
        reserved.close()
        return
    with otlp_sink.serve(reserved) as sink:
        process = start_python(_EXITING_AGENT, tmp_path, endpoint)
        process.communicate(timeout=600)
        assert process.returncode == 0
        assert len(sink.span_ids()) == 1
        assert list(iter_spool_files(tmp_path)) == []
