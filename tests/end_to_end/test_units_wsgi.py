"""WSGI servers: each request is a separate run, and replays by itself with the provider stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from spanreplay.recording.catalog import FORKED_FROM
from support.installing import install
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.sampling import IS_WHOLE
from support.suites import insist_identical
from support.units import Server, await_true, path_of, prepare, response_of, serve, trace_of

APP: Final = """
import hashlib, os, sqlite3, time, uuid
from concurrent.futures import ThreadPoolExecutor

from flask import Flask, Response, request
from groq import Groq

STARTED, TAG = time.time(), uuid.uuid4().hex

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

warm = ask("warm up")
app = Flask(__name__)

@app.post("/chat")
def chat():
    text = request.get_json()["text"]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, [text, text + " again"])
    at = {"started": STARTED, "now": time.time(), "id": str(uuid.uuid4()), "tag": TAG, "warm": warm}
    return {"reply": first, "second": second, **at}

@app.get("/stream/<text>")
def stream(text):
    def parts():
        for number in range(3):
            yield ask(f"{text} part {number}") + "\\n"
            time.sleep(0)
    return Response(parts(), mimetype="text/plain")

@app.get("/rows/<text>")
def rows(text):
    with sqlite3.connect(":memory:") as db:
        db.execute("create table t (answer)")
        db.execute("insert into t values (?)", (ask(text),))
        return {"rows": db.execute("select answer from t").fetchall()}

@app.post("/upload")
def upload():
    return hashlib.sha256(request.stream.read()).hexdigest()

@app.get("/raises/<text>")
def raises(text):
    raise KeyError(ask(text))

@app.get("/redirect/<text>")
def redirect(text):
    return "", 302, {"location": "/elsewhere", "x-tag": ask(text)}

@app.get("/pid")
def pid():
    return str(os.getpid())
"""
PATHS: Final = ("/chat", "/stream/", "/rows/", "/upload", "/raises/", "/redirect/")
SCRIPT: Final = """
import socketserver, sys
from wsgiref.simple_server import WSGIServer, make_server
from app import app

class Threaded(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128  # with 5, the kernel resets some of many connections while a busy machine accepts none

make_server("127.0.0.1", int(sys.argv[-1]), app, server_class=Threaded).serve_forever()
"""


@dataclass(frozen=True)
class Kind:
    """A server: its command, port arguments, its runs' name, and whether it reads a chunked body."""

    command: tuple[str, ...]
    at: str
    app: str
    takes_chunks: bool = True


_GUNICORN: Final = ("-m", "gunicorn", "app:app", "--workers", "2")
KINDS: Final = {
    "gunicorn-sync": Kind(_GUNICORN, "--bind 127.0.0.1:{port}", "app:app"),
    "gunicorn-threads": Kind((*_GUNICORN, "--threads", "4"), "--bind 127.0.0.1:{port}", "app:app"),
    "waitress": Kind(("-m", "waitress"), "--listen=127.0.0.1:{port} app:app", "app"),
    "flask": Kind(("-m", "flask", "run"), "--port {port}", "app"),
    "flask-debug": Kind(("-m", "flask", "run", "--debug"), "--port {port}", "app"),
    "wsgiref": Kind(("serve.py",), "{port}", "app", takes_chunks=False),
}
COUNT: Final = 24


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    workplace = prepare(tmp_path, provider, APP)
    workplace.write("serve.py", SCRIPT)
    return workplace


def _ask(url: str, number: int, *, takes_chunks: bool = True) -> str:
    path, text = PATHS[number % len(PATHS)], f"question-{number}"
    headers = {"baggage": f"user.id=user-{number % 5},session.id=session-{number}"}
    headers["traceparent"] = f"00-{number + 1:032x}-00f067aa0ba902b7-01"
    if path == "/chat":
        answer = httpx.post(url + path, json={"text": text}, headers=headers, timeout=TIMEOUT_S)
    elif path == "/upload":
        body = bytes(range(256)) * 500
        content = _cut(body) if takes_chunks else body
        answer = httpx.post(url + path, content=content, headers=headers, timeout=TIMEOUT_S)
    else:
        answer = httpx.get(url + path + text, headers=headers, timeout=TIMEOUT_S)
    assert answer.status_code == {"/raises/": 500, "/redirect/": 302}.get(path, 200)
    return answer.text


def _cut(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), 10_000):
        yield body[at : at + 10_000]


def _replay(place: Workplace, kind: Kind, unit: Recording) -> None:
    replayed = place.replay(*kind.command, *kind.at.format(port=1).split(), source=unit.run_id)
    assert replayed.verdict.get("verdict") == "identical", (path_of(unit), replayed.stderr)
    assert replayed.status == 0


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.sampled(3)
def test_p2_p4_p6_many_requests_at_once_are_as_many_runs(name: str, provider: Provider, place: Workplace) -> None:
    """No call is in another request's run; each run names its user and session; one of each kind replays alone."""
    kind = KINDS[name]
    with serve(place, command=kind.command, at=kind.at) as server:
        with ThreadPoolExecutor(COUNT) as pool:
            ask = partial(_ask, server.url, takes_chunks=kind.takes_chunks)
            answers = list(pool.map(ask, range(COUNT)))
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    assert len(units) == COUNT
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert unit.root.app == kind.app
        number = int(unit.root.session_id.removeprefix("session-"))
        assert unit.root.user_id == f"user-{number % 5}"
        assert trace_of(unit) == number + 1
        asked = {each for c in unit.calls if c.kind == "llm" for each in re.findall(r"question-\d+", c.request)}
        assert asked == (set() if path_of(unit) == "/upload" else {f"question-{number}"})
        if path_of(unit).split("/")[1] not in ("redirect", "raises"):  # no body; a page with a secret of the debugger
            assert response_of(unit)["body"]["text"] == answers[number]
        assert {call.lane.split("/")[0] for call in unit.calls} == {"unit"}
    of_path = dict(sorted({path_of(each).split("/")[1]: each for each in units}.items()))
    _replay(place, kind, of_path[list(of_path)[list(KINDS).index(name)]])  # a different path for each server
    if name == "flask-debug":
        del of_path["raises"]  # the page of the debugger shows the addresses of frames in memory
    if IS_WHOLE or name == "gunicorn-sync":
        words = (*kind.command, *kind.at.format(port=1).split())
        insist_identical(place, *words, units=list(of_path.values()))


def test_p4_a_changed_response_of_a_wsgi_application_is_named(provider: Provider, place: Workplace) -> None:
    """An application that now sends another response diverges at its response."""
    kind = KINDS["gunicorn-sync"]
    with serve(place, command=kind.command, at=kind.at) as server:
        httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.await_ends()
        server.stop()
    provider.stop()
    place.write("app.py", APP.replace('"reply": first', '"reply": first.upper()'))
    replayed = place.replay(*kind.command, source=server.units()[0].run_id)
    assert replayed.status == 3, replayed.stderr
    assert replayed.causes() == [("changed_call", "http:response")]


def test_p4_p5_workers_that_are_forked_after_the_load_share_its_start(provider: Provider, place: Workplace) -> None:
    """The application's work before the fork belongs to every unit, and is replayed with it."""
    kind = KINDS["gunicorn-sync"]
    with serve(place, "--preload", command=kind.command, at=kind.at) as server:
        _ask(server.url, 0)
        _ask(server.url, 1)
        server.await_ends()
        server.stop()
    provider.stop()
    loaded = next(each for each in place.recordings() if any("warm up" in call.request for call in each.calls))
    units = server.units()
    assert len(units) == 2
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert unit.root.env["unit"]["process"] == loaded.run_id
    replayed = place.replay(*kind.command, "--preload", "--bind", "127.0.0.1:1", source=units[0].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


HOOKS: Final = """
def post_fork(server, worker):
    from app import ask
    ask("started")
"""


def test_p5_a_worker_that_acts_before_its_first_request_says_so(provider: Provider, place: Workplace) -> None:
    """The worker's own work can't be part of a replayable start: its units are incomplete."""
    kind = KINDS["gunicorn-sync"]
    place.write("gunicorn.conf.py", HOOKS)
    with serve(place, "--preload", command=kind.command, at=kind.at) as server:
        _ask(server.url, 0)
        server.await_ends()
        server.stop()
    (unit,) = server.units()
    assert unit.completeness().reasons == (
        "a worker's process made calls or read clock or random values before its first unit: they are not replayed",
    )


FORKS: Final = """
import os
import spanreplay
from app import ask

@spanreplay.run(name="triage")
def triage(ticket):
    return ask(ticket)

ask("before")
if os.fork() == 0:
    triage("in the child")
else:
    os.wait()
"""


def test_p5_a_unit_of_a_fork_that_shares_no_start_says_so(provider: Provider, place: Workplace) -> None:
    """A program that forks after making calls has a start that is missing in its child's run."""
    script = place.write("forks.py", FORKS)
    place.record(script)
    (unit,) = [each for each in place.recordings() if "unit" in each.root.env]
    (reason,) = unit.completeness().reasons
    parent = next(each for each in place.recordings() if any("before" in call.request for call in each.calls))
    assert reason.startswith(f"what the program did before this process was forked is in run {parent.run_id} ")
    assert FORKED_FROM not in unit.root.env


INSTALLED: Final = """
import time, uuid
from flask import Flask

app = Flask(__name__)

@app.get("/ask/<text>")
def answer(text):
    return {"id": str(uuid.uuid4()), "at": time.time()}
"""


@pytest.mark.parametrize("name", ["gunicorn-sync", "gunicorn-threads", "waitress"])
def test_p1_p2_an_installed_application_replays(name: str, provider: Provider, tmp_path: Path) -> None:
    """Clock and random reads of a package belong to its request, in any thread of its server."""
    site = tmp_path / "venv" / "site-packages"
    install(site, "farwell", {"farwell.py": INSTALLED}, requires=["flask"])
    place = Workplace(tmp_path, {**provider.environ(), "PYTHONPATH": str(site)})
    kind = KINDS[name]
    command = tuple(word for word in kind.command if word != "app:app")
    at = f"{kind.at.removesuffix('app:app')} farwell:app"
    with serve(place, command=command, at=at) as server:
        httpx.get(f"{server.url}/ask/x", timeout=TIMEOUT_S)
        server.await_ends()
        server.stop()
    (unit,) = server.units()
    replayed = place.replay(*command, *at.format(port=1).split(), source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


DJANGO: Final = """
from django.conf import settings

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="none", INSTALLED_APPS=["django.contrib.sessions"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "kept.sqlite3"}},
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
)

from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.middleware.csrf import get_token
from django.urls import path

def answer(request):
    request.session["seen"] = True
    return JsonResponse({"token": get_token(request)})

urlpatterns = [path("ask/", answer)]
app = get_wsgi_application()

from django.core.management import call_command
call_command("migrate", verbosity=0)
"""
SESSIONS: Final = """
from flask import Flask, session

app = Flask(__name__)
app.secret_key = "none"

@app.get("/ask/")
def answer():
    session.permanent = True
    session["seen"] = True
    return {"answer": 7}
"""


@pytest.mark.parametrize(("source", "database"), [(DJANGO, True), (SESSIONS, False)], ids=["django", "flask"])
def test_p2_p4_what_a_framework_does_for_a_request_is_the_request_s(
    source: str, database: bool, provider: Provider, tmp_path: Path
) -> None:
    """Database rows, drawn tokens and cookie dates of a framework come from the recording."""
    place = prepare(tmp_path, provider, source)
    kind = Kind(("-m", "gunicorn", "app:app"), "--bind 127.0.0.1:{port}", "app:app")
    with serve(place, command=kind.command, at=kind.at) as server:
        answer = httpx.get(f"{server.url}/ask/", timeout=TIMEOUT_S)
        server.await_ends()
        server.stop()
    assert "expires=" in answer.headers["set-cookie"].lower()
    (unit,) = server.units()
    assert any(call.kind == "db" or "sql" in call.boundary for call in unit.calls) is database
    (tmp_path / "kept.sqlite3").unlink(missing_ok=True)
    _replay(place, kind, unit)


TICKER: Final = """
import threading, uuid

def _flush():
    uuid.uuid4()

def tick():
    thread = threading.Thread(target=_flush)
    thread.start()
    thread.join()
"""
TICKS: Final = """
from flask import Flask
import ticker

app = Flask(__name__)

@app.get("/tick")
def tick():
    ticker.tick()
    return "ticked"
"""


@pytest.mark.parametrize("name", ["gunicorn-sync", "waitress"])
def test_p2_a_thread_that_a_library_starts_in_a_request_is_the_library_s(
    name: str, provider: Provider, tmp_path: Path
) -> None:
    """The thread's own reads are not recorded as the request's."""
    site = tmp_path / "venv" / "site-packages"
    install(site, "ticker", {"ticker.py": TICKER})
    place = Workplace(tmp_path, {**provider.environ(), "PYTHONPATH": str(site)})
    place.write("app.py", TICKS)
    kind = KINDS[name]
    with serve(place, command=kind.command, at=kind.at) as server:
        assert httpx.get(f"{server.url}/tick", timeout=TIMEOUT_S).text == "ticked"
        server.await_ends()
        server.stop()
    (unit,) = server.units()
    assert unit.root.manifest["reads"] == {"count": 0}


def test_p5_ended_units_are_whole_when_a_worker_is_killed(provider: Provider, place: Workplace) -> None:
    """After kill -9 of its worker, an ended unit is complete and replays; the server starts another worker."""
    kind = KINDS["gunicorn-sync"]
    with serve(place, command=kind.command, at=kind.at) as server:
        _ask(server.url, 0)
        worker = int(httpx.get(f"{server.url}/pid", timeout=TIMEOUT_S).text)
        await_true(lambda: all(unit.completeness().is_complete for unit in server.units()))
        os.kill(worker, signal.SIGKILL)
        await_true(lambda: not _runs(worker))
        assert httpx.get(f"{server.url}/pid", timeout=TIMEOUT_S).text != str(worker)
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    assert all(unit.completeness().is_complete for unit in units)
    for unit in [next(each for each in units if path_of(each) == path) for path in ("/chat", "/pid")][:1]:
        _replay(place, kind, unit)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False  # its parent has reaped it
    return True


def _leave_early(server: Server, path: str) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        client.recv(100)


ENDLESS: Final = """
@app.get("/endless")
def endless():
    def parts():
        while True:
            yield "x" * 100_000
    return Response(parts(), mimetype="text/plain")
"""


def test_p5_a_client_that_went_away_cancels_its_unit(place: Workplace) -> None:
    """The run says so, and a replay takes as many parts of the response as the server took."""
    place.write("app.py", APP + ENDLESS)
    kind = KINDS["gunicorn-sync"]
    with serve(place, command=kind.command, at=kind.at) as server:
        _leave_early(server, "/endless")
        await_true(lambda: any(unit.root.manifest for unit in server.units()))
        server.stop()
    (unit,) = server.units()
    assert str(unit.root.outcome) == "cancelled"
    assert [call.boundary for call in unit.calls] == ["http:request", "http:disconnect", "http:response"]
    _replay(place, kind, unit)


STRICT: Final = """
import spanreplay
from wsgiref.validate import validator

@spanreplay.boundary("llm", effect="read")
def ask(text):
    return text.upper()

def inner(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    write = start_response("200 OK", [("Content-Type", "text/plain")])
    write(b"written ")
    for name in ("closed", "length"):
        yield ask(name).encode()
    yield body

app = validator(inner)
"""


def test_p2_what_passes_between_server_and_application_is_as_wsgi_says(provider: Provider, place: Workplace) -> None:
    """The standard library's validator runs on both sides of the recorder."""
    place.write("app.py", STRICT)
    script = SCRIPT.replace("app, server_class", "Outside(app), server_class").replace(
        "class Threaded", "from wsgiref.validate import validator\nclass Threaded"
    )
    outside = "from spanreplay.units import wsgi\ndef Outside(app):\n    return validator(wsgi.WsgiUnits(app, 'app'))\n"
    place.write("serve.py", script.replace("make_server(", f"{outside}make_server(", 1))
    kind = KINDS["wsgiref"]
    with serve(place, command=kind.command, at=kind.at) as server:
        answer = httpx.post(server.url, content=b" and read", timeout=TIMEOUT_S)
        server.await_ends()
        server.stop()
    assert (answer.status_code, answer.text) == (200, "written CLOSEDLENGTH and read")
    (unit,) = server.units()
    assert json.loads(unit.calls[1].response)["value"]["text"] == " and read"
    assert response_of(unit)["body"]["text"] == answer.text
    assert server.process.returncode == -signal.SIGTERM
