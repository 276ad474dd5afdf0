"""A connection that requests share: the one that opens it is recorded whole, every later one that uses it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx
import pytest

from support.certificates import make_certificates
from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.tcp_server import keeping
from support.units import ASKING, COMMAND, FLASK, path_of, prepare, serve

ASYNC: Final = f"""{ASKING}
import asyncio, os
from fastapi import FastAPI

app, kept = FastAPI(), []

@app.get("/count/{{text}}")
async def count(text: str):
    if not kept:
        kept.append(await asyncio.open_connection("127.0.0.1", int(os.environ["PORT"])))
    reader, writer = kept[0]
    writer.write(f"{{text}}\\n".encode())
    return {{"said": await ask((await asyncio.wait_for(reader.readline(), 600)).decode())}}

@app.get("/other/{{text}}")
async def other(text: str):
    return {{"said": await ask(text)}}
"""
IN_THREADS: Final = f"""{FLASK}
import os, socket

kept = []

@app.get("/count/<text>")
def count(text):
    if not kept:
        kept.append(socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))))
    kept[0].sendall(f"{{text}}\\n".encode())
    return {{"said": ask(kept[0].makefile().readline())}}

@app.get("/other/<text>")
def other(text):
    return {{"said": ask(text)}}
"""
ENCRYPTED: Final = IN_THREADS.replace("import os, socket", "import os, socket, ssl").replace(
    'socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))',
    'ssl.create_default_context(cafile=os.environ["CA"]).wrap_socket('
    'socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))), server_hostname="localhost")',
)
AT_START: Final = IN_THREADS.replace(
    "kept = []", 'kept = [socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))]'
)
SERVERS: Final = {
    "uvicorn on asyncio": (ASYNC, (*COMMAND, "--loop", "asyncio"), "--port {port}"),
    "uvicorn on uvloop": (ASYNC, (*COMMAND, "--loop", "uvloop"), "--port {port}"),
    "waitress": (IN_THREADS, ("-m", "waitress"), "--listen 127.0.0.1:{port} app:app"),
    "waitress, encrypted": (ENCRYPTED, ("-m", "waitress"), "--listen 127.0.0.1:{port} app:app"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_p4_a_request_that_uses_a_kept_connection_is_incomplete(name: str, provider: Provider, tmp_path: Path) -> None:
    """The request that opened it replays; the replay of a later one is incomplete. None asks the server."""
    program, command, at = SERVERS[name]
    place = prepare(tmp_path, provider, program)
    certificates = make_certificates(tmp_path / "certificates")
    environ = {"CA": str(certificates.ca)}
    with keeping(certificates if program is ENCRYPTED else None) as (port, lines):
        environ["PORT"] = str(port)
        with serve(place, command=command, at=at, **environ) as server:
            for path in ("count/a", "other/b", "count/c"):
                assert httpx.get(f"{server.url}/{path}", timeout=TIMEOUT_S).status_code == 200
            server.await_ends()
            server.stop()
        units = {path_of(unit): unit for unit in server.units()}
        assert units["/other/b"].completeness().is_complete
        assert units["/count/a"].completeness().is_complete
        (reason,) = units["/count/c"].completeness().reasons
        assert reason.endswith(f" count used a connection to 127.0.0.1:{port} that is not recorded")
        words = (*command, *at.format(port=server.port).split())
        first = place.replay(*words, source=units["/count/a"].run_id, **environ)
        assert (first.status, first.verdict["verdict"]) == (0, "identical"), first.stderr
        replayed = place.replay(*words, source=units["/count/c"].run_id, **environ)
        assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
        assert lines == [b"a\n", b"c\n"]


def test_p4_requests_that_share_a_connection_of_the_start_replay(provider: Provider, tmp_path: Path) -> None:
    """Each request records its own use of it, and each replays by itself."""
    place = prepare(tmp_path, provider, AT_START)
    at = SERVERS["waitress"][2]
    with keeping() as (port, lines), serve(place, command=("-m", "waitress"), at=at, PORT=str(port)) as server:
        said = [httpx.get(f"{server.url}/count/{text}", timeout=TIMEOUT_S).text for text in "abc"]
        server.await_ends()
        server.stop()
    assert lines == [b"a\n", b"b\n", b"c\n"]
    units = {path_of(unit): unit for unit in server.units()}
    words = ("-m", "waitress", *at.format(port=server.port).split())
    for text in "abc":
        unit = units[f"/count/{text}"]
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*words, source=unit.run_id, PORT=str(port))
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), (said, replayed.stderr)
    app = place.path / "app.py"
    app.write_text(app.read_text().replace('f"{text}\\n".encode()', 'f"{text}!\\n".encode()'))
    changed = place.replay(*words, source=units["/count/b"].run_id, PORT=str(port))
    assert (changed.status, changed.causes()) == (3, [("changed_call", "tool:socket.sendall")]), changed.stderr
