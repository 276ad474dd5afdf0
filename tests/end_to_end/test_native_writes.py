"""Native code opens files directly; in a replay the kernel denies its writes, and the report says so.

These tests work beside the temporary folder, because that one stays writable.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from support.native import install_library, needs_landlock
from support.replaying import BIN, TIMEOUT_S, Replayed, Workplace

CALL = """
import os, sys
import spanreplay

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return f"answer to {question}"

answer = ask("hello")
"""
WRITES = CALL + "import native\nnative.write('out.bin', answer.encode())\nprint(ask('again'))\n"


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A directory beside the temporary folder, and a native library."""
    world = tmp_path / "world"
    temporary = tmp_path / "tmp"
    for folder in (world, temporary):
        folder.mkdir()
    return Workplace(world, {"TMPDIR": str(temporary), "PYTHONPATH": install_library(tmp_path)})


def assert_blocked(replayed: Replayed, code: str) -> None:
    """Assert that a blocked native write is the one cause, at this place in the agent's code."""
    assert replayed.status == 3, replayed.stderr
    assert replayed.causes() == [("effect_blocked", "file:native")], replayed.stderr
    cause = replayed.verdict["divergences"][0]
    assert cause["code"] == code
    assert "declare the function that writes it a boundary" in cause["hint"]
    assert replayed.verdict["sandbox"]["files"] == "kernel"


def line_of(agent: Path, text: str) -> int:
    """The number of the first line that contains a text."""
    return next(n for n, line in enumerate(agent.read_text().splitlines(), 1) if text in line)


LIBRARIES = {
    # library → how it writes a file that no seam redirects
    "pyarrow": "pyarrow.OSFile('out.bin', 'wb').write(text.encode())",
    "duckdb": "duckdb.sql(f\"COPY (SELECT '{text}') TO 'out.bin' (FORMAT csv, USE_TMP_FILE false)\")",
}
SAVES = """
import spanreplay
import {library}

@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question):
    return "answer to " + question

def save(text):
    {write}

save(ask("hello"))
print(ask("again"))
"""


@needs_landlock
@pytest.mark.parametrize("library", LIBRARIES)
def test_n14_a_file_of_native_code_stays_as_the_world_has_it(library: str, place: Workplace) -> None:
    """A file that a library would overwrite stays untouched, a new one isn't created; the report names the file."""
    pytest.importorskip(library, reason="it is installed with the other libraries that the tests use")
    agent = place.write("agent.py", SAVES.format(library=library, write=LIBRARIES[library]))
    place.record(agent)
    written = place.path / "out.bin"
    written.write_bytes(b"of today")
    replayed = place.replay(agent)
    assert written.read_bytes() == b"of today"
    assert_blocked(replayed, f"agent.py:{line_of(agent, 'out.bin')} save")
    message = replayed.verdict["divergences"][0]["message"]
    assert message.startswith("changing out.bin from native code was denied: no boundary covers it")
    assert "changing out.bin from native code" in replayed.stderr
    written.unlink()
    assert_blocked(place.replay(agent), f"agent.py:{line_of(agent, 'out.bin')} save")
    assert not written.exists()


@needs_landlock
def test_n14_native_code_in_a_live_call_writes_for_real(place: Workplace) -> None:
    """A plan with a live tool switches the kernel's block off, and a stubbed tool writes nothing at all."""
    source = (
        CALL.replace("    return", "    import native; native.write('out.bin', b'x')\n    return") + "print(answer)"
    )
    agent = place.write("agent.py", source)
    place.record(agent)
    written = place.path / "out.bin"
    written.unlink()
    stubbed = place.replay(agent)
    assert (stubbed.status, written.exists()) == (0, False), stubbed.stderr
    live = place.replay(agent, options=["--live", "tool:ask"])
    assert (live.status, written.read_bytes()) == (0, b"x"), live.stderr
    assert live.verdict["sandbox"] == {
        "files": "python",
        "network": "python",
        "why": "the plan lets calls go live",
    }


def test_n14_switched_off_native_code_writes_for_real(place: Workplace) -> None:
    """SPANREPLAY_SANDBOX=python switches the block off, and the verdict says so."""
    agent = place.write("agent.py", WRITES)
    place.record(agent)
    (place.path / "out.bin").unlink()
    replayed = place.replay(agent, SPANREPLAY_SANDBOX="python")
    assert replayed.status == 0, replayed.stderr
    assert (place.path / "out.bin").exists()
    assert replayed.verdict["sandbox"] == {
        "files": "python",
        "network": "python",
        "why": "SPANREPLAY_SANDBOX=python",
    }


HANDLED = (
    CALL
    + """
import native
try:
    native.write("out.bin", b"x")
except OSError:
    answer = ask("what now")
print(ask("again"))
"""
)
LEFT = (
    CALL
    + """
import native
try:
    native.remove(os.path.abspath("kept"))
except OSError as error:
    print(error.strerror)
    sys.exit(1)
print(ask("again"))
"""
)
THREAD = (
    CALL
    + """
import native, threading
thread = threading.Thread(target=native.write, args=("out.bin", b"x"))
thread.start()
thread.join()
print(ask("again" if os.path.exists("out.bin") else "nothing there"))
"""
)
WORKER = (
    CALL
    + """
import concurrent.futures, multiprocessing, native
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(native.write, os.path.abspath("out.bin"), b"x").result()
    print(ask("again"))
"""
)


@needs_landlock
@pytest.mark.parametrize("source", [HANDLED, LEFT, WORKER], ids=["handled", "left", "worker"])
def test_n14_the_cause_is_told_however_the_agent_goes_on(source: str, place: Workplace) -> None:
    """The agent handles the error and makes another call, exits by itself, or hands the work to a process."""
    kept, written = place.path / "kept", place.path / "out.bin"
    kept.write_text("kept", encoding="utf-8")
    agent = place.write("agent.py", source)
    place.record(agent)
    kept.write_text("kept", encoding="utf-8")
    written.unlink(missing_ok=True)
    replayed = place.replay(agent)
    assert (kept.read_text(), written.exists()) == ("kept", False)
    if source is WORKER:
        assert replayed.causes() == [("effect_blocked", "file:native")], replayed.stderr
    else:
        text = "native.write" if source is HANDLED else "native.remove"
        assert_blocked(replayed, f"agent.py:{line_of(agent, text)} <module>")


@needs_landlock
def test_n14_a_thread_that_was_denied_a_file_is_the_cause(place: Workplace) -> None:
    """A denied write that ends only a thread is reported too."""
    agent = place.write("agent.py", THREAD)
    place.record(agent)
    (place.path / "out.bin").unlink()
    replayed = place.replay(agent)
    assert not (place.path / "out.bin").exists()
    assert ("effect_blocked", "file:native") in replayed.causes(), replayed.stderr


ABSENT = (
    CALL
    + """
import pyarrow
os.makedirs("made/deep", exist_ok=True)
pyarrow.OSFile("made/deep/out.bin", "wb").close()
print(ask("again"))
"""
)


@needs_landlock
def test_n14_native_code_in_a_folder_of_the_overlay_is_the_cause(place: Workplace) -> None:
    """A folder created by the replay exists only in the overlay, where native code can't find it."""
    pytest.importorskip("pyarrow", reason="it comes with Phoenix")
    agent = place.write("agent.py", ABSENT)
    place.record(agent)
    shutil.rmtree(place.path / "made")
    replayed = place.replay(agent)
    assert_blocked(replayed, f"agent.py:{line_of(agent, 'OSFile')} <module>")
    message = replayed.verdict["divergences"][0]["message"]
    assert message.startswith("native code can't find out.bin: only Python code sees the files that a replay writes")


IN_A_STATEMENT = (
    CALL
    + """
import duckdb
with open("made.csv", "w") as made:
    made.write("number\\n5\\n")
print(duckdb.sql("select * from 'made.csv'").fetchall())
print(ask("again"))
"""
)


@needs_landlock
def test_a_file_that_a_statement_names_and_native_code_can_t_find_is_the_cause(place: Workplace) -> None:
    """DuckDB has its own error message for a missing file."""
    pytest.importorskip("duckdb")
    agent = place.write("agent.py", IN_A_STATEMENT)
    place.record(agent)
    (place.path / "made.csv").unlink()
    replayed = place.replay(agent)
    message = replayed.verdict["divergences"][0]["message"]
    assert message.startswith("native code can't find made.csv: only Python code sees the files that a replay writes")


OF_PYTHON = (
    CALL
    + """
os.makedirs("made/deep", exist_ok=True)
try:
    open("made/deep/nothing")
except FileNotFoundError:
    print(ask("what now"))
"""
)


@needs_landlock
def test_n14_a_missing_file_of_python_is_no_cause(place: Workplace) -> None:
    """Python's own functions raise the error, and a changed call elsewhere in the agent is the cause."""
    agent = place.write("agent.py", OF_PYTHON)
    place.record(agent)
    place.write("agent.py", OF_PYTHON.replace("what now", "what else"))
    assert place.replay(agent).causes() == [("changed_call", "tool:ask")]


ABORT = (
    CALL
    + """
import native
try:
    native.write("out.bin", b"x")
except OSError:
    os.abort()
"""
)


@needs_landlock
def test_native_code_that_aborts_is_told_what_may_be_the_reason(place: Workplace) -> None:
    """A library that ends the process because it may not write leaves no verdict; the error names the setting."""
    agent = place.write("agent.py", ABORT)
    place.record(agent)
    replayed = place.replay(agent)
    assert replayed.status == 1
    assert "SPANREPLAY_SANDBOX=python" in replayed.stderr


SERVED = """
import spanreplay

@spanreplay.boundary("tool", name="save", effect="write")
def save(path):
    raise PermissionError(13, "Permission denied", path)

def main():
    try:
        save("kept")
    except PermissionError:
        print("not saved")

main()
"""


@needs_landlock
def test_n14_a_recorded_denial_is_not_the_kernels(place: Workplace) -> None:
    """A recorded error about a file that could be written today is not blamed on the replay."""
    (place.path / "kept").write_text("kept", encoding="utf-8")
    agent = place.write("agent.py", SERVED)
    place.record(agent)
    assert place.replay(agent).status == 0
    place.write("agent.py", SERVED.replace("except PermissionError", "except ValueError"))
    replayed = place.replay(agent)
    assert replayed.status == 3
    assert [d["kind"] for d in replayed.verdict["divergences"] if d["kind"] == "effect_blocked"] == []


@needs_landlock
def test_n14_an_agent_that_always_fails_so_is_identical(place: Workplace) -> None:
    """An agent that ended with a recorded permission error ends with it again."""
    (place.path / "kept").write_text("kept", encoding="utf-8")
    agent = place.write("agent.py", SERVED.replace("except PermissionError", "except ValueError"))
    place.record(agent, status=1)
    replayed = place.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr


FREE = (
    CALL
    + """
import native, tempfile
cache = os.path.join(os.environ["XDG_CACHE_HOME"], "compiled")
native.write(cache, b"x")
native.write("/dev/shm/spanreplay-native-test", b"x")
native.remove("/dev/shm/spanreplay-native-test")
native.write(os.path.join(os.environ["TMPDIR"], "scratch"), b"x")
with open("/dev/stderr", "w") as again:
    again.write("reopened")
print(ask("again"))
"""
)


@needs_landlock
def test_n14_what_is_nobodys_file_can_be_written(place: Workplace) -> None:
    """Caches, temporary files, shared memory and the file behind a standard stream stay writable."""
    cache = place.path.parent / "cache"
    cache.mkdir()
    agent = place.write("agent.py", FREE)
    place.record(agent, XDG_CACHE_HOME=str(cache))
    (cache / "compiled").unlink()
    run = place.recordings()[-1].run_id
    log = place.path.parent / "log.txt"
    with log.open("w", encoding="utf-8") as stderr:
        done = subprocess.run(
            [str(BIN / "spanreplay"), "replay", run, "--", str(place.python), str(agent)],
            cwd=place.path,
            env={**place.environ, "XDG_CACHE_HOME": str(cache)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "answer to again\n"), log.read_text()
    assert (cache / "compiled").exists()


@needs_landlock
def test_n14_the_report_is_written_wherever_it_goes(place: Workplace) -> None:
    """Verdict, key and recording of a replay can go to folders that are otherwise not writable."""
    agent = place.write("agent.py", WRITES)
    key = place.path / "keys" / "redact.key"
    place.record(agent, SPANREPLAY_REDACT_KEY=str(key))
    (place.path / "out.bin").unlink()
    key.unlink()
    reports = place.path / "reports"
    reports.mkdir()
    environ = {
        "SPANREPLAY_MODE": "replay",
        "SPANREPLAY_REPLAY_SOURCE": place.recordings()[-1].run_id,
        "SPANREPLAY_REPLAY_REPORT": str(reports / "verdict.json"),
        "SPANREPLAY_REDACT_KEY": str(key),
    }
    process = place.spawn([str(place.python), str(agent)], **environ)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    verdict = json.loads((reports / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["divergences"][0]["boundary"] == "file:native", stderr
    assert key.stat().st_size > 0
    assert str(reports) not in verdict["sandbox"]["free"]
    assert not (place.path / "out.bin").exists()


@needs_landlock
def test_n14_python_says_nothing_of_code_that_it_can_not_keep(place: Workplace) -> None:
    """Failing to write bytecode beside the source is silent, and the replay is identical."""
    place.environ.pop("PYTHONDONTWRITEBYTECODE")
    place.write("helper.py", "WORD = 'helped'\n")
    agent = place.write("agent.py", CALL + "import helper\nprint(answer, helper.WORD)\n")
    place.record(agent, PYTHONDONTWRITEBYTECODE="1")
    replayed = place.replay(agent)
    assert replayed.status == 0, replayed.stderr
    assert "ermission" not in replayed.stderr
    assert not (place.path / "__pycache__").exists()


BLOCK = (
    CALL
    + """
import native, pathlib

def main():
    return ask("in a block")

with spanreplay.record() as recorded:
    main()
with spanreplay.replay(recorded.run_id) as replayed:
    main()
native.write("behind.bin", b"x")
print(replayed.verdict()["verdict"], "sandbox" in replayed.verdict())
"""
)


def test_n14_a_block_of_a_process_does_not_bind_what_follows(place: Workplace) -> None:
    """A replay inside a process doesn't use the kernel's block: afterwards files are written as usual."""
    agent = place.write("agent.py", BLOCK)
    done = subprocess.run(
        [str(place.python), str(agent)],
        cwd=place.path,
        env=place.environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (place.path / "behind.bin").exists(), done.stderr
    assert done.stdout.split() == ["identical", "False"], done.stderr
