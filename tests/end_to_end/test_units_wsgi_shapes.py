"""Everything that WSGI allows an application to do with a request is recorded without side effects, and replays."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Final

import httpx

from spanreplay.model.call import Recording
from support.ports import free_port
from support.replaying import TIMEOUT_S, Workplace
from support.units import await_true, path_of, response_of, serve_with

APP: Final = '''
import io, os, sys, threading
from urllib.parse import parse_qs
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, make_server
from wsgiref.validate import validator

KIND = [("Content-Type", "text/plain")]

class Parts:
    """Says how often it was closed."""

    def __init__(self, name, parts):
        self.name, self.parts = name, iter(parts)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.parts)

    def close(self):
        with open("closed.txt", "a") as file:
            file.write(self.name + "\\n")

def read_in_parts(environ, start):
    stream, left = environ["wsgi.input"], int(environ["CONTENT_LENGTH"])
    parts = []
    while left:
        parts.append(stream.read(min(left, 5)))
        left -= len(parts[-1])
    start("200 OK", KIND)
    return [b"|".join(parts)]

def read_lines(environ, start):
    start("200 OK", KIND)
    return [environ["wsgi.input"].readline(100), b"and no more"]

def read_nothing(environ, start):
    start("204 No Content", [])
    return []

def streams(environ, start):
    start("200 OK", KIND)
    return Parts("streams", (str(n).encode() for n in range(5)))

def writes(environ, start):
    write = start("200 OK", KIND)
    write(b"written, ")
    return [b"returned"]

def starts_late(environ, start):
    def parts():
        start("202 Accepted", KIND)
        yield b"late"
    return parts()

def starts_again(environ, start):
    start("200 OK", KIND)
    try:
        raise KeyError("no")
    except KeyError:
        start("500 Oops", KIND, sys.exc_info())
    return [b"again"]

def raises(environ, start):
    raise KeyError("no")

def raises_late(environ, start):
    start("200 OK", KIND)
    def parts():
        yield b"before"
        raise KeyError("late")
    return Parts("raises_late", parts())

def sends_file(environ, start):
    start("200 OK", KIND)
    file = open("sent.txt", "rb")
    file.read(2)
    return environ["wsgi.file_wrapper"](file)

def head(environ, start):
    start("200 OK", [*KIND, ("Content-Length", "10")])
    return [b""] if environ["REQUEST_METHOD"] == "HEAD" else [b"0123456789"]

def endless(environ, start):
    start("200 OK", KIND)
    def parts():
        while True:
            yield b"x" * 10_000
    return Parts("endless", parts())

def writes_on(environ, start):
    write = start("200 OK", KIND)
    while True:
        write(b"x" * 10_000)

def sees(environ, start):
    start("200 OK", KIND)
    names = ("SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "HTTP_X_ONE", "CONTENT_TYPE", "REMOTE_ADDR", "SERVER_PROTOCOL")
    secret = os.environ["APP_SECRET"]
    return [repr([(n, environ.get(n)) for n in names] + [environ.get("APP_SECRET") == secret]).encode()]

def work(environ, start):
    return globals()[environ["PATH_INFO"].split("/")[1]](environ, start)

app = validator(work)

class Handler(WSGIRequestHandler):
    """Gives a checked application to its server."""

    def handle(self):
        self.raw_requestline = self.rfile.readline(65537)
        if self.parse_request():
            handler = ServerHandler(self.rfile, self.wfile, sys.stderr, self.get_environ(), multithread=False)
            handler.request_handler = self
            handler.run(validator(self.server.get_app()))

if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), app, handler_class=Handler).serve_forever()
'''
REQUESTS: Final = (
    ("POST", "/read_in_parts", b"hello world"),
    ("POST", "/read_lines", b"one\ntwo\nthree"),
    ("POST", "/read_nothing", b"unread"),
    ("GET", "/streams", None),
    ("GET", "/writes", None),
    ("GET", "/starts_late", None),
    ("GET", "/starts_again", None),
    ("GET", "/raises", None),
    ("GET", "/sends_file", None),
    ("HEAD", "/head", None),
    ("GET", "/head", None),
    ("GET", "/sees/r%C3%A9%2Fa?a=1&b=%20", None),
)
SECRET: Final = "sk-live-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"


def _ask_all(port: int) -> dict[str, bytes]:
    answers = {}
    for method, path, content in REQUESTS:
        answer = httpx.request(
            method, f"http://127.0.0.1:{port}{path}", content=content, headers={"X-One": "1"}, timeout=TIMEOUT_S
        )
        answers[f"{method} {path}"] = b"%d " % answer.status_code + answer.content
    for leave in (b"endless", b"writes_on"):
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as leaving:
            leaving.sendall(b"GET /%s HTTP/1.0\r\n\r\n" % leave)
            assert leaving.recv(5) == b"HTTP/"
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as late:
        late.sendall(b"GET /raises_late HTTP/1.0\r\n\r\n")
        answers["GET /raises_late"] = b"".join(iter(lambda: late.recv(65536), b"")).rpartition(b"\r\n\r\n")[2]
    return answers


def _named(unit: Recording) -> str:
    return str(path_of(unit).split("/")[1])


def test_p2_p4_what_wsgi_allows_is_recorded_and_replays(tmp_path: Path) -> None:
    """Checked on both sides by wsgiref.validate, each answer equals an unrecorded server's, and each unit replays."""
    place = Workplace(tmp_path, {"APP_SECRET": SECRET})
    script = place.write("app.py", APP)
    place.write("sent.txt", "a file\n" * 3)
    port = free_port()
    with serve_with(place, port, str(script), str(port)) as server:
        answers = _ask_all(port)
        await_true(lambda: sum(u.completeness().is_complete for u in server.units()) == len(REQUESTS) + 3)
        server.process.terminate()
        _, said = server.process.communicate(timeout=TIMEOUT_S)
    assert "AssertionError" not in said
    assert (place.path / "closed.txt").read_text(encoding="utf-8").split() == ["streams", "endless", "raises_late"]
    (place.path / "closed.txt").unlink()
    assert answers == _answers_unrecorded(place, str(script))
    found = {_named(unit): unit for unit in server.units()}
    assert response_of(found["streams"])["body"] == {"text": "01234"}
    assert response_of(found["writes"])["body"] == {"text": "written, returned"}
    assert response_of(found["starts_again"])["status"] == 500
    assert response_of(found["raises"])["raised"] == response_of(found["raises_late"])["raised"] == "builtins.KeyError"
    assert response_of(found["sends_file"])["body"]["text"] == ("a file\n" * 3)[2:]
    assert [c.name for c in found["endless"].calls if c.kind == "http"] == ["request", "disconnect", "response"]
    assert found["endless"].root.outcome == found["writes_on"].root.outcome == "cancelled"
    assert [c.name for c in found["read_nothing"].calls] == ["request", "response"]
    bodies = {
        n: json.loads(u.calls[1].response)["value"] for n, u in found.items() if n.startswith(("read_in", "read_l"))
    }
    assert {n: (each["text"], each.get("is_complete", True)) for n, each in bodies.items()} == {
        "read_in_parts": ("hello world", True),
        "read_lines": ("one\n", False),
    }
    spool = b"".join(file.read_bytes() for file in (place.path / ".spanreplay" / "spool").iterdir())
    assert SECRET.encode() not in spool
    for name, unit in found.items():
        assert unit.completeness().is_complete, (name, unit.completeness().reasons)
    for name in ("read_lines", "raises_late", "sends_file", "endless", "writes_on", "sees"):
        replayed = place.replay(script, str(port), source=found[name].run_id)
        assert replayed.status == 0, (name, replayed.stderr)


def _answers_unrecorded(place: Workplace, script: str) -> dict[str, bytes]:
    port = free_port()
    plain = Workplace(place.path, {"APP_SECRET": SECRET, "OTEL_SDK_DISABLED": "true"})
    with serve_with(plain, port, script, str(port)) as server:
        return _ask_all(int(server.url.rpartition(":")[2]))
