"""ASGI applications under gunicorn with uvicorn's worker: each request is a run, named by the application."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.recording.spool import SpoolCatalog
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.suites import insist_identical
from support.units import ASKING, CHAT, FLASK, await_true, find_own_number, prepare, response_of, serve

COUNT: Final = 16
TAKES_OVER: Final = """
import socket

from gunicorn.workers.sync import SyncWorker


class Worker(SyncWorker):
    def init_process(self):
        self.sockets = [socket.socket(s.FAMILY, socket.SOCK_STREAM, fileno=s.sock.detach()) for s in self.sockets]
        super().init_process()
"""
WORKERS: Final = ("uvicorn_worker.UvicornWorker", "uvicorn.workers.UvicornWorker")


async def _ask_all(url: str) -> list[str]:
    async with httpx.AsyncClient(timeout=TIMEOUT_S, base_url=url) as client:

        async def ask(number: int) -> str:
            headers = {"baggage": f"session.id=session-{number}"}
            answer = await client.post("/chat", json={"text": f"question-{number}"}, headers=headers)
            assert answer.status_code == 200
            return answer.text

        return await asyncio.gather(*map(ask, range(COUNT)))


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.sampled(1)
def test_p2_p4_requests_under_uvicorns_worker_of_gunicorn_are_runs_that_replay_alone(
    worker: str, provider: Provider, tmp_path: Path
) -> None:
    """With two workers: runs have the application's name and no other request's values, and a change is named."""
    place: Workplace = prepare(tmp_path, provider, CHAT)
    command = ("-m", "gunicorn", "app:app", "-k", worker, "--workers", "2")
    with serve(place, command=command, at="--bind 127.0.0.1:{port}") as server:
        answers = asyncio.run(_ask_all(server.url))
        await_true(lambda: {unit.root.outcome for unit in server.units()} == {"ok"})
        server.stop()
    provider.stop()
    units = server.units()
    assert len(units) == COUNT
    for unit in units:
        number = find_own_number(unit)
        assert json.loads(response_of(unit)["body"]["text"]) == json.loads(answers[number])
    replayed = place.replay(*command, "--bind", "127.0.0.1:1", source=units[-1].run_id)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"
    place.write("app.py", CHAT.replace('"reply": reply', '"reply": reply.upper()'))
    changed = place.replay(*command, source=units[0].run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes() == [("changed_call", "http:response")]


def test_a_worker_that_takes_its_sockets_over_replays(provider: Provider, tmp_path: Path) -> None:
    """Like gevent's worker, it creates new socket objects from gunicorn's."""
    app = f'{FLASK}\n@app.get("/chat")\ndef chat():\n    return {{"reply": ask("hello")}}\n'
    place: Workplace = prepare(tmp_path, provider, app)
    place.write("taking.py", TAKES_OVER)
    command = ("-m", "gunicorn", "app:app", "-k", "taking.Worker")
    with serve(place, command=command, at="--bind 127.0.0.1:{port}") as server:
        assert httpx.get(f"{server.url}/chat", timeout=TIMEOUT_S).status_code == 200
        server.stop()
    (unit,) = server.units()
    replayed = place.replay(*command, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


EMBEDDED: Final = """
import os, random, sys, time

import gunicorn.app.base
import httpx

class Standalone(gunicorn.app.base.BaseApplication):
    def __init__(self, application, options):
        self.application, self.options = application, options
        super().__init__()

    def load_config(self):
        for name, value in self.options.items():
            self.cfg.set(name, value)

    def load(self):
        return self.application

if __name__ == "__main__":
    PORT, WORKER = sys.argv[1:]
    models = httpx.get(os.environ["OPENAI_BASE_URL"] + "/models").status_code
    CONFIG = f"{models} {random.random()} {time.time()} {os.path.exists('none.toml')}"
    import app
    app.CONFIG = CONFIG
    Standalone(app.app, {"bind": f"127.0.0.1:{PORT}", "workers": 2, "worker_class": WORKER}).run()
"""
KINDS: Final = {
    "sync": f"""{FLASK}
@app.get("/ask/<text>")
def answer(text):
    return {{"config": CONFIG, "answer": ask(text), "at": time.time(), "since": STARTED}}

STARTED = time.time()
""",
    "uvicorn_worker.UvicornWorker": f"""{ASKING}
from contextlib import asynccontextmanager
from fastapi import FastAPI

@asynccontextmanager
async def lifespan(app):
    app.state.first = (await ask("first"), uuid.uuid4())
    yield

app = FastAPI(lifespan=lifespan)

@app.get("/ask/{{text}}")
async def answer(text):
    return {{"config": CONFIG, "answer": await ask(text), "at": time.time(), "since": app.state.first}}
""",
}


@pytest.mark.parametrize("worker", KINDS)
def test_p2_p4_requests_to_a_program_that_runs_gunicorn_itself_replay_alone(
    worker: str, provider: Provider, tmp_path: Path
) -> None:
    """The program asks a server, draws values and loads its application, then forks workers, which start something."""
    place = prepare(tmp_path, provider, KINDS[worker])
    place.write("main.py", EMBEDDED)
    with serve(place, command=("main.py",), at=f"{{port}} {worker}") as server:
        for text in ("plums", "figs", "nuts"):
            assert httpx.get(f"{server.url}/ask/{text}", timeout=TIMEOUT_S).status_code == 200
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    assert [unit.completeness().reasons for unit in units] == [()] * 3
    words = ("main.py", str(server.port), worker)
    insist_identical(place, *words, units=units, options=("--warm", "0"))

    replayed = place.replay(*words, source=units[0].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr

    alone = tmp_path / "alone"
    alone.mkdir()
    origin = units[0].root.env["unit"]["origin"]
    file = alone / f"{units[0].run_id}.replay"
    assert place.run("export", units[0].run_id, "-o", str(file)).returncode == 0
    away = place.replay(*words, source=str(file), SPANREPLAY_DIR=str(alone))
    assert away.verdict["verdict"] == "identical", away.stderr
    catalog = SpoolCatalog(place.path / ".spanreplay")
    for run_id in (units[0].run_id, units[0].root.env["unit"]["process"]):
        (alone / f"{run_id}.replay").write_bytes(catalog.export(run_id))
    catalog.close()
    lost = place.replay(*words, source=str(file), SPANREPLAY_DIR=str(alone))
    assert lost.verdict["verdict"] == "incomplete", lost.stderr
    assert f"the start of its process, run {origin}, is not here" in lost.stderr

    place.write("main.py", EMBEDDED.replace("{models} {random", "{models}, {random"))
    changed = place.replay(*words, source=units[0].run_id)
    assert changed.causes()[0] == ("changed_call", "http:response"), changed.stderr
