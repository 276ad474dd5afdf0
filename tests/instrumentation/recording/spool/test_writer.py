"""The writer: every acknowledged payload can be read back, and no failure of ours affects the agent."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.recording.spool.directory import ack_path, iter_spool_files
from spanreplay.recording.spool.frames import MAGIC, iter_frames
from spanreplay.recording.spool.writer import SpoolWriter, open_files
from support.spool_tools import RUN


def _read_all(directory: Path) -> list[bytes]:
    return [payload for path in iter_spool_files(directory) for payload in iter_frames(path)]


def _run_python(code: str, *args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@settings(max_examples=40, deadline=None)
@given(payloads=st.lists(st.binary(min_size=1, max_size=5000), min_size=1, max_size=10))
def test_appended_payloads_are_read_back(payloads: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any payloads come back in order, across as many files as the segments need."""
    directory = tmp_path_factory.mktemp("data")
    writer = SpoolWriter(directory, RUN, segment_bytes_max=6000)
    assert all(writer.append(p) for p in payloads)
    writer.close()
    assert sorted(_read_all(directory)) == sorted(payloads)
    assert (writer.appended, writer.dropped) == (len(payloads), 0)


def test_nothing_is_created_before_the_first_append(tmp_path: Path) -> None:
    """A writer that never writes creates no file."""
    writer = SpoolWriter(tmp_path / ".spanreplay", RUN)
    writer.close()
    assert not (tmp_path / ".spanreplay").exists()


def test_directory_is_private_and_hidden_from_git(tmp_path: Path) -> None:
    """Directories are 0700, files 0600, and a .gitignore keeps recordings out of commits."""
    directory = tmp_path / ".spanreplay"
    writer = SpoolWriter(directory, RUN, to_ship=True)
    assert writer.append(b"\x0a")
    assert writer.path is not None
    assert [p.stat().st_mode & 0o777 for p in (directory, directory / "spool")] == [0o700, 0o700]
    files = [p for p in directory.rglob("*") if p.is_file()]
    assert {p.stat().st_mode & 0o777 for p in files} == {0o600}
    assert (directory / ".gitignore").read_text() == "*\n"
    assert ack_path(writer.path).read_text() == "0"
    writer.close()


def test_directory_of_the_user_is_not_hidden_from_git(tmp_path: Path) -> None:
    """If SPANREPLAY_DIR is an existing directory, only the spool in it is ignored."""
    writer = SpoolWriter(tmp_path, RUN)
    assert writer.append(b"\x0a")
    writer.close()
    assert not (tmp_path / ".gitignore").exists()
    assert (tmp_path / "spool" / ".gitignore").read_text() == "*\n"


def test_file_is_locked_while_its_writer_lives(tmp_path: Path) -> None:
    """The flock is held from the first moment until close."""
    writer = SpoolWriter(tmp_path, RUN)
    writer.append(b"\x0a")
    path = writer.path
    assert path is not None
    assert open_files(tmp_path) == [path]
    with path.open("rb") as stream:
        with pytest.raises(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        writer.close()
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert open_files(tmp_path) == []


def test_threads_append_whole_frames(tmp_path: Path) -> None:
    """Eight threads that write at once neither lose nor mix frames."""
    writer = SpoolWriter(tmp_path, RUN)

    def work(thread: int) -> None:
        for n in range(200):
            assert writer.append(f"\n{thread}:{n}:".encode() + b"x" * (n * 11))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    read = [tuple(map(int, p[1:].split(b":")[:2])) for p in _read_all(tmp_path)]
    assert sorted(read) == [(t, n) for t in range(8) for n in range(200)]
    for thread_index in range(8):
        assert [n for t, n in read if t == thread_index] == list(range(200))


_KILLED = """
import os, sys, threading
from pathlib import Path
from spanreplay.recording.spool.writer import SpoolWriter
writer = SpoolWriter(Path(sys.argv[1]), sys.argv[2])
size = int(sys.argv[3])
def work(thread):
    n = 0
    while True:
        assert writer.append(b"\\n%d:%d:" % (thread, n) + b"x" * size)
        os.write(1, b"%d:%d\\n" % (thread, n))
        n += 1
for thread in range(2):
    threading.Thread(target=work, args=(thread,)).start()
"""


@pytest.mark.parametrize("seed", range(12))
def test_s48_kill_9_loses_no_acknowledged_append(seed: int, tmp_path: Path) -> None:
    """After SIGKILL at a random point every append that had returned is read back, in order."""
    chance = random.Random(seed)
    process = _run_python(_KILLED, tmp_path, RUN, chance.choice([10, 3_000, 400_000]))
    assert process.stdout is not None
    acknowledged = b""
    wanted = chance.randrange(1, 400)
    while acknowledged.count(b"\n") < wanted:
        acknowledged += os.read(process.stdout.fileno(), 512)
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate(timeout=600)
    acknowledged += rest
    lines = acknowledged[: acknowledged.rfind(b"\n")].split(b"\n")
    read = {b":".join(p[1:].split(b":")[:2]) for p in _read_all(tmp_path)}
    assert set(lines) <= read


_DISK_FULL = """
import resource, sys
from pathlib import Path
from spanreplay.recording.spool.writer import SpoolWriter
writer = SpoolWriter(Path(sys.argv[1]), sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
results = [writer.append(b"\\n%d:" % n + b"x" * 7_000) for n in range(20)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
results += [writer.append(b"\\nlast")]
print(sum(results), writer.dropped)
"""


def test_full_disk_is_counted_and_leaves_no_torn_frame(tmp_path: Path) -> None:
    """If the file cannot grow, appends are dropped and counted; once there is room again, writing resumes."""
    process = _run_python(_DISK_FULL, tmp_path, RUN)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert out.split() == [b"8", b"13"]
    assert err.count(b"spans are not recorded") == 1
    payloads = _read_all(tmp_path)
    assert len(payloads) == 8
    assert payloads[-1] == b"\nlast"


def test_read_only_directory_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the directory can't be made, recording is lost, which is reported once and never raises."""
    (tmp_path / "data").write_text("a file where the directory should be")
    writer = SpoolWriter(tmp_path / "data", RUN)
    assert [writer.append(b"\x0a") for _ in range(3)] == [False, False, False]
    assert writer.dropped == 3
    assert [r.levelname for r in caplog.records] == ["ERROR"]


def test_a_failure_of_many_units_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server writes a file for each request: a directory that can't be written to doesn't fill its log, too."""
    blocked = tmp_path / "no directory"
    blocked.write_text("")
    for _ in range(20):
        writer = SpoolWriter(blocked, RUN)
        assert not writer.append(b"x")
        assert writer.dropped == 1
    assert len(caplog.records) == 1


def test_removed_directory_is_counted_and_made_again(tmp_path: Path) -> None:
    """If the directory is removed, its content is counted as lost, and recording continues in a new one."""
    directory = tmp_path / ".spanreplay"
    writer = SpoolWriter(directory, RUN)
    writer.append(b"\nlost")
    writer.append(b"\nlost too")
    shutil.rmtree(directory)
    assert writer.append(b"\nkept")
    writer.close()
    assert writer.dropped == 2
    assert _read_all(directory) == [b"\nkept"]


@pytest.mark.parametrize("size", [0, 64 * 1024 * 1024 + 1], ids=["empty", "above_the_limit"])
def test_unusable_payload_is_counted(size: int, tmp_path: Path) -> None:
    """A payload that no reader would accept is dropped and counted."""
    writer = SpoolWriter(tmp_path, RUN)
    assert not writer.append(bytes(size))
    assert writer.dropped == 1


def test_spool_never_grows_beyond_its_limit(tmp_path: Path) -> None:
    """Payloads that exceed the directory's limit are dropped and counted, whoever filled it."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "other.spool").write_bytes(MAGIC + bytes(9_000))
    writer = SpoolWriter(tmp_path, RUN, bytes_max=20_000)
    results = [writer.append(b"\n" + bytes(3_000)) for _ in range(6)]
    writer.close()
    assert results == [True, True, True, False, False, False]
    assert writer.dropped == 3


@pytest.mark.parametrize("fsync", ["never", "interval", "always"])
def test_fsync_settings_record_alike(fsync: str, tmp_path: Path) -> None:
    """Each fsync setting writes the same frames."""
    writer = SpoolWriter(tmp_path, RUN, fsync=fsync)
    assert writer.append(b"\none")
    assert writer.append(b"\ntwo")
    writer.sync()
    writer.close()
    assert _read_all(tmp_path) == [b"\none", b"\ntwo"]


def test_append_after_close_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """A span that ends during shutdown is still recorded."""
    writer = SpoolWriter(tmp_path, RUN)
    writer.append(b"\none")
    writer.close()
    writer.close()
    assert writer.append(b"\ntwo")
    writer.close()
    assert sorted(_read_all(tmp_path)) == [b"\none", b"\ntwo"]
    assert len(list(iter_spool_files(tmp_path))) == 2


_FORK = """
import fcntl, os, sys, threading
from pathlib import Path
from spanreplay.recording.spool.writer import SpoolWriter
writer = SpoolWriter(Path(sys.argv[1]), sys.argv[2], fsync="interval")
writer.append(b"\\nparent")
path = writer.path
stop = threading.Event()
def busy():
    while not stop.is_set():
        writer.append(b"\\nbusy")
thread = threading.Thread(target=busy)
thread.start()
children = []
for n in range(20):
    pid = os.fork()
    if pid == 0:
        assert writer.append(b"\\nchild%d" % n) and writer.path != path and writer.dropped == 0
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
read_end, write_end = os.pipe()
ready_end, started_end = os.pipe()
if os.fork() == 0:  # an idle child outlives the parent's writer and must not hold its lock
    os.close(write_end)
    os.write(started_end, b"x")
    os.read(read_end, 1)
    os._exit(0)
os.read(ready_end, 1)
stop.set()
thread.join()
writer.close()
with path.open("rb") as stream:
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.write(write_end, b"x")
os.wait()
"""


@pytest.mark.filterwarnings("ignore:This process")
def test_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """Children forked while another thread appends do not hang, mix files or keep the parent's lock."""
    process = _run_python(_FORK, tmp_path, RUN)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    payloads = _read_all(tmp_path)
    assert {p for p in payloads if p.startswith(b"\nchild")} == {b"\nchild%d" % n for n in range(20)}
    assert len(list(iter_spool_files(tmp_path))) == 21


@pytest.mark.parametrize("run_id", ["", "../../etc/passwd", RUN.upper(), RUN + "0"])
def test_run_id_must_be_one(run_id: str, tmp_path: Path) -> None:
    """A run id cannot lead out of the directory."""
    with pytest.raises(ValueError, match="not a run id"):
        SpoolWriter(tmp_path, run_id)


_INTERRUPTED = """
import signal, sys
from pathlib import Path
from spanreplay.recording.spool.writer import SpoolWriter
writer = SpoolWriter(Path(sys.argv[1]), sys.argv[2], fsync=sys.argv[3], segment_bytes_max=20_000)
nested = 0
def handler(signum, frame):
    global nested
    nested += 1
    assert writer.append(b"\\nnested:%d" % nested)
    if nested % 10 == 0:
        writer.close()
    if nested < 200:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
outer = 0
while nested < 200:  # the handler counts
    assert writer.append(b"\\nouter:%d" % outer + b"x" * 500)
    outer += 1
writer.close()
assert writer.appended == outer + nested and writer.dropped == 0
print(outer, nested)
"""


@pytest.mark.parametrize("fsync", ["never", "interval"])
def test_signal_handler_may_record_and_close(fsync: str, tmp_path: Path) -> None:
    """A handler that ends spans or shuts down in the middle of an append neither hangs nor loses a frame."""
    process = _run_python(_INTERRUPTED, tmp_path, RUN, fsync)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    outer, nested = map(int, out.split())
    read = [p.rstrip(b"x") for p in _read_all(tmp_path)]
    expected = {b"\nouter:%d" % n for n in range(outer)} | {b"\nnested:%d" % n for n in range(1, nested + 1)}
    assert len(read) == outer + nested
    assert set(read) == expected
