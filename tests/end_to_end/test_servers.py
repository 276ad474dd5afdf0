"""Processes that serve: workers forked after load are recorded, and SIGTERM ends a run without other effects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.recording.catalog import FORKED_FROM
from support.otlp_sink import serve
from support.ports import free_port
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.units import ended_runs

GUNICORN: Final = ("gunicorn", "--no-control-socket")
WSGI: Final = """
import os
from groq import Groq

def app(environ, start_response):
    messages = [{"role": "user", "content": environ["PATH_INFO"]}]
    Groq().chat.completions.create(model="gpt-x", messages=messages)
    body = str(os.getpid()).encode()
    start_response("200 OK", [("content-length", str(len(body)))])
    return [body]
"""
ASGI: Final = """
import os
from groq import AsyncGroq

async def app(scope, receive, send):
    assert scope["type"] == "http"
    messages = [{"role": "user", "content": scope["path"]}]
    await AsyncGroq().chat.completions.create(model="gpt-x", messages=messages)
    body = str(os.getpid()).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
ASK: Final = """
import os, signal, sys, time
from groq import Groq

def ask(text):
    messages = [{"role": "user", "content": text}]
    return Groq().chat.completions.create(model="gpt-x", messages=messages)

print(signal.getsignal(signal.SIGTERM))
"""
WAIT: Final = """
ask("hi")
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
PROGRAMS: Final = {
    "default": WAIT,
    "restored": """
before = signal.signal(signal.SIGTERM, lambda *_: None)
print(before, signal.signal(signal.SIGTERM, before) is before, signal.getsignal(signal.SIGTERM))
"""
    + WAIT,
    "held_back": """
ask("hi")
print("ready", flush=True)
sys.stdout.write("never flushed")
while True:
    time.sleep(0.05)
""",
    "own_exit": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))" + WAIT,
    "own_and_again": """
def leave(number, frame):
    os.write(1, b"leaving\\n")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)
signal.signal(signal.SIGTERM, leave)
"""
    + WAIT,
}
"""Ways in which a program handles SIGTERM."""


@pytest.fixture
def workplace(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory for a server or a program that is stopped from outside."""
    return Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_SUMMARY": "always"})


def ask(port: int, path: str, process: subprocess.Popen[str]) -> int:
    """The id of the process that answers; wait until the server listens."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return int(httpx.get(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S).text)
        except httpx.TransportError:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Send SIGTERM; return the status and output."""
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, stdout, stderr


@pytest.mark.slow
def test_p5_each_worker_of_gunicorn_is_a_run(workplace: Workplace) -> None:
    """`gunicorn -w 2`: both workers' calls are recorded and shipped, their runs end, and each process says so."""
    workplace.write("app.py", WSGI)
    port = free_port()
    with serve() as sink:
        command = [*GUNICORN, "-w", "2", "-b", f"127.0.0.1:{port}", "app:app"]
        server = workplace.spawn(command, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint)
        first = ask(port, "/a", server)
        os.kill(first, signal.SIGSTOP)  # so that the other worker has to answer
        second = ask(port, "/b", server)
        os.kill(first, signal.SIGCONT)
        assert first != second
        status, _, stderr = end(server)
        shipped = ended_runs(sink)
    assert status == 0
    assert len(shipped) == 4  # two processes, and one request of each
    for worker in (first, second):
        assert f"server process {worker}, whose 1 request is a run of its own" in stderr
    assert (
        f"no call was recorded in process {server.pid}; the 2 processes that it forked have runs of their own" in stderr
    )


@pytest.mark.slow
def test_p5_each_worker_that_is_recycled_leaves_a_whole_run(workplace: Workplace) -> None:
    """`gunicorn --max-requests 1`: each worker ends after its request, with its own complete run."""
    workplace.write("app.py", WSGI)
    port = free_port()
    command = [*GUNICORN, "-w", "1", "--max-requests", "1", "-b", f"127.0.0.1:{port}", "app:app"]
    server = workplace.spawn(command)
    workers = [ask(port, path, server) for path in ("/a", "/b", "/c")]
    assert end(server)[0] == 0
    assert len(set(workers)) == 3
    runs = [run for run in workplace.recordings() if "unit" in run.root.env]
    theirs = {run.run_id for run in runs} | {run.root.env["unit"]["process"] for run in runs}
    whole = {run.run_id for run in workplace.recordings() if run.completeness().is_complete}
    assert theirs <= whole  # gunicorn's next worker may miss the signal: it was forked a moment ago
    assert len(theirs) == 6
    assert [len(run.calls) for run in runs] == [3, 3, 3]
    assert [path for path in ("/a", "/b", "/c") if any(path in run.calls[1].request for run in runs)] == [
        "/a",
        "/b",
        "/c",
    ]


@pytest.mark.slow
def test_p5_requests_of_workers_forked_after_the_load_share_its_start(workplace: Workplace) -> None:
    """`gunicorn --preload`: calls made while the application loads are in one run, each worker's calls in its own."""
    workplace.write("app.py", WSGI + '\napp({"PATH_INFO": "/loaded"}, lambda *_: None)\n')
    port = free_port()
    command = [*GUNICORN, "-w", "2", "--preload", "-b", f"127.0.0.1:{port}", "app:app"]
    server = workplace.spawn(command)
    first = ask(port, "/a", server)
    os.kill(first, signal.SIGSTOP)
    second = ask(port, "/b", server)
    os.kill(first, signal.SIGCONT)
    assert end(server)[0] == 0
    assert len({first, second, server.pid}) == 3
    asked = {
        path: run
        for run in workplace.recordings()
        for path in ("/loaded", "/a", "/b")
        if any(path in call.request for call in run.calls if call.kind == "llm")
    }
    assert [len(asked[path].calls) for path in ("/loaded", "/a", "/b")] == [2, 3, 3]
    for path in ("/a", "/b"):
        assert asked[path].completeness().is_complete, asked[path].completeness().reasons
        assert asked[path].root.env["unit"]["process"] == asked["/loaded"].run_id


@pytest.mark.slow
def test_p5_runs_of_workers_are_whole_and_say_where_they_come_from(workplace: Workplace) -> None:
    """Without a collector, the complete runs of both workers are here, each with its own call and the same origin."""
    workplace.write("app.py", WSGI)
    port = free_port()
    server = workplace.spawn([*GUNICORN, "-w", "2", "-b", f"127.0.0.1:{port}", "app:app"])
    first = ask(port, "/a", server)
    os.kill(first, signal.SIGSTOP)
    ask(port, "/b", server)
    os.kill(first, signal.SIGCONT)
    assert end(server)[0] == 0
    assert all(run.completeness().is_complete for run in workplace.recordings())
    runs = [run for run in workplace.recordings() if "unit" in run.root.env]
    assert [len(run.calls) for run in runs] == [3, 3]
    workers = [run for run in workplace.recordings() if "unit" not in run.root.env]
    assert {run.root.manifest["process"] for run in runs} == {run.run_id for run in workers}
    assert len({run.root.env[FORKED_FROM] for run in workers}) == 1
    assert sorted("/a" in run.calls[1].request for run in runs) == [False, True]


@pytest.mark.slow
def test_p5_uvicorn_ends_as_without_us_and_its_run_says_how(workplace: Workplace) -> None:
    """uvicorn re-raises SIGTERM after its shutdown and dies of it; its run has a manifest that says SIGTERM."""
    workplace.write("app.py", ASGI)
    ends = []
    for mode in ("off", "record"):
        port = free_port()
        server = workplace.spawn(["uvicorn", "app:app", "--port", str(port)], SPANREPLAY_MODE=mode)
        ask(port, "/a", server)
        status, _, stderr = end(server)
        ends.append(status)
    assert ends == [-signal.SIGTERM] * 2
    assert f"server process {server.pid}, whose 1 request is a run of its own: recorded 1 call" in stderr
    recording, unit = workplace.recordings()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert recording.root.manifest["ended_by"] == "SIGTERM"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(3)
def test_p5_sigterm_is_what_it_is_without_us(name: str, workplace: Workplace) -> None:
    """Status and output are the same, with default disposition or handler; the run ends with a manifest."""
    agent = workplace.write("agent.py", ASK + PROGRAMS[name])
    ends = []
    for mode in ("off", "record"):
        process = workplace.spawn([str(workplace.python), str(agent)], SPANREPLAY_MODE=mode)
        assert process.stdout is not None
        before: list[str] = []
        while not before or before[-1] != "ready\n":
            before.append(process.stdout.readline())
            assert before[-1], process.communicate()[1]
        status, stdout, _ = end(process)
        ends.append((status, "".join(before) + stdout))
    assert ends[0] == ends[1]
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    manifest = recording.root.manifest
    by_signal = name != "own_exit"
    assert (manifest.get("ended_by"), manifest["exit"]) == (("SIGTERM", 143) if by_signal else (None, 7))
    said = subprocess.run(
        [str(BIN / "spanreplay"), "show", recording.run_id],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    ).stdout
    assert ("ended by SIGTERM" in said) is by_signal


HOLDING: Final = """
import os, signal, threading
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.termination import Termination

held = threading.Lock()

def finish():
    with held:
        os.write(1, b"finished\\n")

Termination(finish).install(Patches())
exec(compile('''
def ours():
    with held:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(3):
            pass
''', "/site-packages/spanreplay.py", "exec"))
ours()
os.write(1, b"the agent went on\\n")
"""


def test_p5_run_ends_though_the_main_thread_held_its_lock(tmp_path: Path) -> None:
    """A signal inside our own code lets that code finish and ends the run; the agent doesn't continue."""
    agent = tmp_path / "agent.py"
    agent.write_text(HOLDING)
    done = subprocess.run([sys.executable, str(agent)], check=False, timeout=TIMEOUT_S, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"finished\n")


STUCK: Final = """
import os, signal, threading
from spanreplay.model import config
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.termination import Termination

config.END_BY_SIGNAL_MAX_MS = 50
held = threading.Lock()
Termination(held.acquire).install(Patches())
with held:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
"""


def test_p5_process_dies_of_sigterm_whatever_its_run_waits_for() -> None:
    """If the run can't end because the main thread holds its lock, the process dies anyway."""
    done = subprocess.run([sys.executable, "-c", STUCK], check=False, timeout=TIMEOUT_S)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["gunicorn", "-w", "2", "app:app"], "gunicorn is a server: each HTTP request is a run of its own"),
        (["python", "-m", "uvicorn", "app:app"], "uvicorn is a server: each HTTP request is a run of its own"),
        (["python", "-m", "awslambdaric", "app.handler"], "awslambdaric is a worker: each job is a run of its own"),
    ],
    ids=["gunicorn", "uvicorn", "awslambdaric"],
)
def test_p5_doctor_says_what_is_recorded_of_a_server(command: list[str], said: str, workplace: Workplace) -> None:
    """It says so without starting the server, which would not end."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), "doctor", "--json", "--", *command],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    found = {(each["level"], each["subject"]): each["message"] for each in json.loads(done.stdout)}
    assert found["ok", "recording"].startswith(said)
    assert found["off", "agent"].startswith("not started")
