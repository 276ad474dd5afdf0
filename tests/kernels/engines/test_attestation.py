"""Statements of an engine's processes, and the header that a server makes of them: none unless all is in order."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spanreplay_kernels import probe
from spanreplay_kernels.engines import attestation
from spanreplay_kernels.engines.attestation import Attestation, Header, read_line, started_of, write
from spanreplay_kernels.proof import fingerprint


def _stated(**changed: Any) -> Attestation:
    """A statement of this process, alone."""
    pid = os.getpid()
    whole = Attestation(
        line="kernels=1; plan=2", system_fingerprint="fp-2-0", engaged={"product": 3, "paged_attention": 1}, plan="2",
        versions={"vllm": "0.33.0"}, rank=0, processes=1, pid=pid, started=started_of(pid),
    )  # fmt: skip
    return replace(whole, **changed)


def _answer() -> list[tuple[bytes, bytes]]:
    """The headers of an application's response, with the middleware."""
    sent: list[MutableMapping[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"hello"})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(Header(application)({"type": "http"}, receive, send))
    assert sent[1]["body"] == b"hello"
    headers: list[tuple[bytes, bytes]] = sent[0]["headers"]
    return headers


def test_s13_a_response_has_the_line_that_its_processes_state(plugin_state: Path) -> None:
    """The header is sent once both of two processes have stated the same line, and not before."""
    assert _answer() == [(b"content-type", b"text/plain")]
    write(_stated(processes=2))
    assert _answer() == [(b"content-type", b"text/plain")]
    write(_stated(processes=2, rank=1))
    assert _answer() == [(b"content-type", b"text/plain"), (b"x-spanreplay-determinism", b"kernels=1; plan=2")]
    assert attestation.HEADER == fingerprint.HEADER == probe.HEADER


def _another_line() -> None:
    write(_stated(processes=2))
    write(_stated(processes=2, rank=1, line="kernels=1; plan=3"))


def _a_dead_process() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    started = started_of(gone.pid)
    gone.wait()
    write(_stated(pid=gone.pid, started=started))


def _a_later_process_of_the_same_id() -> None:
    write(_stated(started="1"))


def _garbage() -> None:
    path = write(_stated())
    path.write_text("{", encoding="utf-8")


def _nothing_has_run() -> None:
    write(_stated(engaged={}))


def _others_may_write() -> None:
    write(_stated()).parent.chmod(0o777)


def _one_rank_too_many() -> None:
    write(_stated())
    write(_stated(rank=1, processes=1))


UNPROVEN: dict[str, Callable[[], None]] = {
    "two processes that differ": _another_line,
    "a process that has ended": _a_dead_process,
    "another process of the same id": _a_later_process_of_the_same_id,
    "a file that is none": _garbage,
    "no operation of ours has run": _nothing_has_run,
    "a folder that others may write to": _others_may_write,
    "a rank that should not be": _one_rank_too_many,
}


@pytest.mark.parametrize("case", UNPROVEN)
def test_s13_no_line_where_something_is_not_in_order(case: str, plugin_state: Path) -> None:
    """Whatever is wrong with the statements, the response is sent, without the header."""
    write(_stated())
    assert read_line() == "kernels=1; plan=2"
    UNPROVEN[case]()
    assert read_line() == ""
    assert _answer() == [(b"content-type", b"text/plain")]


def test_k12_a_folder_of_somebody_else_is_not_written_to(plugin_state: Path) -> None:
    """A folder that others may write to could hold forged statements, so the process does not start."""
    plugin_state.mkdir(mode=0o700)
    plugin_state.chmod(0o777)
    with pytest.raises(PermissionError, match="writable to others"):
        write(_stated())


def test_k12_a_process_that_ends_takes_its_statement_along(tmp_path: Path, python: str) -> None:
    """Neither file nor folder is left behind, and only the user can read the file."""
    code = (
        "import os, stat, pathlib\n"
        "from spanreplay_kernels.engines import attestation as a\n"
        "a.announce(); folder = pathlib.Path(os.environ[a.FOLDER]); assert not folder.exists()\n"
        "pid = os.getpid()\n"
        "path = a.write(a.Attestation('l', 'f', {'product': 1}, 'p', {}, 0, 1, pid, a.started_of(pid)))\n"
        "assert a.read_line() == 'l'\n"
        "if (child := os.fork()) == 0: raise SystemExit\n"
        "os.waitpid(child, 0); assert a.read_line() == 'l'\n"
        "print(oct(path.stat().st_mode & 0o777), oct(folder.stat().st_mode & 0o777), folder)\n"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([python, "-c", code], env=environ, capture_output=True, text=True, check=True)
    file_mode, folder_mode, folder = done.stdout.split()
    assert (file_mode, folder_mode) == ("0o600", "0o700")
    assert Path(folder).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_s13_a_pod_is_ready_once_its_processes_have_stated_a_line(
    plugin_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real server with the middleware, asked by a pod's probe: no statement, no header, no readiness."""
    uvicorn = pytest.importorskip("uvicorn")
    fastapi = pytest.importorskip("fastapi")
    app = fastapi.FastAPI()
    app.add_middleware(Header)  # as vLLM and SGLang do

    @app.post("/v1/completions")
    def complete() -> dict[str, Any]:
        return {"choices": [{"text": "three"}]}

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()  # the socket listens already: a request waits until the server accepts it
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        assert probe.main(["ready", f"--url={url}", "--model=m", "--header"]) == 1
        assert "the kernels are not at work" in capsys.readouterr().err
        write(_stated())
        assert probe.main(["ready", f"--url={url}", "--model=m", "--header", "--expect=kernels=1; plan=2"]) == 0
        assert probe.main(["ready", f"--url={url}", "--model=m", "--header", "--expect=kernels=1; plan=3"]) == 1
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def test_k12_the_first_process_names_the_folder(plugin_state: Path) -> None:
    """A process that was started by another one keeps the folder name that it was given."""
    attestation.announce()
    assert os.environ[attestation.FOLDER] == str(plugin_state)


def test_k12_a_setting_that_is_no_json_is_refused() -> None:
    """The text of an object may contain an address, so that equal processes would state different lines."""
    from spanreplay_kernels.engines._statement import _Stated
    from spanreplay_kernels.errors import UnsupportedInput

    assert _Stated({"top_p": 0.5}).to_json_string(use_diff=True) == '{"top_p": 0.5}'
    with pytest.raises(UnsupportedInput, match="not JSON serializable"):
        _Stated({"top_p": object()}).to_json_string(use_diff=True)
