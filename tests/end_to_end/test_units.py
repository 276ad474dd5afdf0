"""A server under uvicorn: each request is a separate run, and replays by itself with the provider stopped."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from spanreplay.recording.spool import SpoolCatalog
from support.otlp_sink import serve as deliver
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.spans import read_spans
from support.suites import insist_identical
from support.units import COMMAND, Server, await_true, ended_runs, listens, path_of, prepare, response_of, serve

APP: Final = """
import asyncio, time, uuid
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from groq import AsyncGroq, Groq
from opentelemetry import trace

STARTED, TAG = time.time(), uuid.uuid4().hex
client = AsyncGroq()

async def ask(text):
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content

@asynccontextmanager
async def lifespan(app):
    await asyncio.sleep(0.001)
    app.state.warm = await ask("warm up")
    yield {"from_start": TAG}

app = FastAPI(lifespan=lifespan)

@app.post("/chat")
async def chat(request: Request):
    text = (await request.json())["text"]
    first, second = await asyncio.gather(ask(text), ask(text + " again"))
    at = {"started": STARTED, "now": time.time(), "id": str(uuid.uuid4()), "tag": request.state.from_start}
    return {"reply": first, "second": second, "warm": app.state.warm, **at}

@app.get("/as/{user}")
async def named(user: str):
    with trace.get_tracer("app").start_as_current_span("work") as span:
        span.set_attribute("enduser.id", user)
        return {"reply": await ask("hello")}

@app.get("/sync/{text}")
def in_a_thread(text: str):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return {"reply": made.choices[0].message.content, "now": time.time()}

@app.get("/stream/{text}")
async def stream(text: str):
    async def parts():
        given = await client.chat.completions.create(
            model="gpt-x", messages=[{"role": "user", "content": text}], stream=True
        )
        async for chunk in given:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content
    return StreamingResponse(parts(), media_type="text/plain")
"""
PATHS: Final = ("/chat", "/sync/", "/stream/")


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


def test_p2_p4_a_request_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """Request, body, effects and response are one run; it replays without provider, port and key."""
    with serve(place) as server:
        answer = httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    (unit,) = server.units()
    boundaries = [call.boundary for call in unit.calls]
    asked = ["llm:openai.chat.completions"] * 2
    assert boundaries == ["http:request", "http:body", *asked, "http:response"]
    assert {call.lane.split("/")[0] for call in unit.calls} == {"unit"}
    assert unit.completeness().is_complete
    assert unit.root.app == "app:app"
    assert response_of(unit)["status"] == 200
    assert json.loads(response_of(unit)["body"]["text"])["reply"] == answer.json()["reply"]
    process = server.the_process()
    assert process.root.app == "uvicorn"
    assert [call.name for call in process.calls] == ["openai.chat.completions", "start"]
    assert unit.root.manifest["process"] == process.run_id
    laptop = Workplace(place.path)  # without the provider's address or a key
    replayed = laptop.replay(*COMMAND, "--port", "1", source=unit.run_id)  # a port that may not be opened
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["verdict"] == "identical"
    counts = replayed.verdict["counts"]
    assert counts["recorded"] == counts["served"] == counts["exact"] == len(unit.calls)
    assert counts["start"] == len(process.calls)
    assert f"✔ identical: {len(unit.calls)} calls, all as recorded" in replayed.stderr


def test_p4_a_call_of_the_start_is_named_as_one(provider: Provider, place: Workplace) -> None:
    """Calls of a unit count from 1, those of the start are named in words, and the hint shows the right run."""
    with serve(place) as server:
        httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    unit, process = server.units()[0], server.the_process()
    place.write("app.py", APP.replace("    at = {", "    await ask('warm up again')\n    at = {"))
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 3, replayed.stderr
    assert "nearest   call 1 of the start of its process (llm:openai.chat.completions)" in replayed.stderr
    assert "call -" not in replayed.stderr
    assert replayed.verdict["divergences"][0]["call"] == 5
    place.write("app.py", APP.replace("warm up", "warm down"))
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert "diverged at call 1 of the start of its process (llm:openai.chat.completions)" in replayed.stderr
    assert f"spanreplay show {process.run_id} --call 1" in replayed.stderr


def test_p4_a_changed_response_is_named(provider: Provider, place: Workplace) -> None:
    """An application that now sends another response diverges at its response."""
    with serve(place) as server:
        httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    place.write("app.py", APP.replace('"reply": first', '"reply": first.upper()'))
    replayed = place.replay(*COMMAND, source=server.units()[0].run_id)
    assert replayed.status == 3, replayed.stderr
    assert replayed.causes() == [("changed_call", "http:response")]
    assert replayed.verdict["divergences"][0]["diff"][0]["path"].startswith("arguments.body.text")


async def _ask_all(url: str, count: int) -> list[str]:
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=count)) as client:

        async def ask(number: int) -> str:
            text, path = f"question-{number}", PATHS[number % len(PATHS)]
            headers = {"baggage": f"user.id=user-{number % 5},session.id=session-{number}"}
            if path == "/chat":
                answer = await client.post(url + path, json={"text": text}, headers=headers)
            else:
                answer = await client.get(f"{url}{path}{text}", headers=headers)
            assert answer.status_code == 200
            return answer.text

        return await asyncio.gather(*map(ask, range(count)))


def test_p2_p6_many_requests_at_once_are_as_many_runs(provider: Provider, place: Workplace) -> None:
    """No call is in another request's run; each run names its user and session; a sample replays alone."""
    count = 30
    with serve(place) as server:
        answers = asyncio.run(_ask_all(server.url, count))
        server.stop()
    provider.stop()
    units = server.units()
    assert len(units) == count
    numbers = set()
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        number = int(unit.root.session_id.removeprefix("session-"))
        numbers.add(number)
        assert unit.root.user_id == f"user-{number % 5}"
        questions = [call.request for call in unit.calls if call.kind == "llm"]
        assert len(questions) == (2 if number % 3 == 0 else 1)
        assert {each for text in questions for each in re.findall(r"question-\d+", text)} == {f"question-{number}"}
        assert response_of(unit)["body"]["text"] == answers[number]
    assert numbers == set(range(count))
    assert [call.name for call in server.the_process().calls] == ["openai.chat.completions", "start"]
    sample = {path_of(unit).split("/")[1]: unit for unit in units}
    assert sorted(sample) == ["chat", "stream", "sync"]
    insist_identical(place, *COMMAND, units=list(sample.values()))


def test_p5_ended_units_are_whole_when_the_process_is_killed(provider: Provider, place: Workplace) -> None:
    """After kill -9, ended units are complete and replay; the one in flight says that it did not end."""
    place.write("app.py", APP + SLOW)
    with serve(place) as server:
        for number in range(3):
            httpx.get(f"{server.url}/sync/question-{number}", timeout=TIMEOUT_S)
        await_true(lambda: sum(unit.completeness().is_complete for unit in server.units()) == 3)
        with httpx.stream("GET", f"{server.url}/hang", timeout=TIMEOUT_S) as hanging:
            assert next(hanging.iter_text()) == "begun"
            server.process.kill()
            server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    *ended, open_unit = server.units()
    assert [path_of(unit) for unit in (*ended, open_unit)] == [f"/sync/question-{n}" for n in range(3)] + ["/hang"]
    assert all(unit.completeness().is_complete for unit in ended)
    assert open_unit.completeness().reasons == ("the run did not end: its process was killed or is still running",)
    replayed = place.replay(*COMMAND, source=ended[1].run_id)
    assert replayed.status == 0, replayed.stderr
    assert place.replay(*COMMAND, source=open_unit.run_id).status == 4


SLOW: Final = """
@app.get("/hang")
async def hang():
    async def parts():
        yield "begun"
        await ask("hello")
        await asyncio.Event().wait()
    return StreamingResponse(parts(), media_type="text/plain")

@app.get("/wait")
async def wait():
    await ask("hello")
    await asyncio.Event().wait()
"""


def test_p5_a_client_that_went_away_cancels_its_unit(provider: Provider, place: Workplace) -> None:
    """The unit is complete with outcome `cancelled`, and a replay disconnects at the same moment."""
    place.write("app.py", APP + SLOW)
    with serve(place) as server:
        with httpx.stream("GET", f"{server.url}/hang", timeout=TIMEOUT_S) as hanging:
            assert next(hanging.iter_text()) == "begun"
        await_true(lambda: [unit.root.outcome for unit in server.units()] == ["cancelled"])
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert "http:disconnect" in [call.boundary for call in unit.calls]
    assert response_of(unit)["is_complete"] is False
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


def test_p5_a_server_that_cancels_a_request_cancels_its_unit(provider: Provider, place: Workplace) -> None:
    """A server that stops waiting for a request cancels it, and the replay does so at the same moment."""
    place.write("app.py", APP + SLOW)
    with ThreadPoolExecutor(1) as pool, serve(place, UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN="1") as server:
        asking = pool.submit(httpx.get, f"{server.url}/wait", timeout=TIMEOUT_S)
        await_true(lambda: [c.kind for u in server.units() for c in u.calls if c.outcome == "ok"][1:] == ["llm"])
        server.stop()
        assert asking.result().status_code == 500
    provider.stop()
    (unit,) = server.units()
    assert unit.root.outcome == "cancelled"
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert "http:cancelled" in [call.boundary for call in unit.calls]
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


def test_p6_a_span_of_the_application_names_the_user(place: Workplace) -> None:
    """A user named by an instrumentor's span belongs to that request's run only."""
    with serve(place) as server:
        for user in ("ann", "bob"):
            httpx.get(f"{server.url}/as/{user}", timeout=TIMEOUT_S)
        server.stop()
    assert [unit.root.user_id for unit in server.units()] == ["ann", "bob"]
    assert server.the_process().root.user_id == ""
    spans = read_spans(place.path / ".spanreplay", "app")
    assert {run_id for run_id, found in spans.items() if found.scopes} == {unit.run_id for unit in server.units()}


SABOTAGE: Final = {
    "open": "factory.open_unit = broken",
    "request": "asgi.describe_scope = broken",
    "body": "asgi._Recorded._note_received = broken",
    "response": "asgi.Response.add = broken",
    "end": "asgi._Recorded.end = broken",
    "finish": "unit_run.UnitRun._manifest = broken",
    "spool": "factory.reads_and_files.attach_files = broken",
}


@pytest.mark.parametrize("part", SABOTAGE)
@pytest.mark.sampled(3)
def test_p2_an_error_of_ours_lets_the_request_through(part: str, place: Workplace) -> None:
    """Whatever part of the recording fails, the client gets the application's response."""
    broken = "from spanreplay.units import asgi, factory, unit_run\ndef broken(*args, **kwargs): raise ValueError\n"
    place.write("app.py", f"{APP}\n{broken}{SABOTAGE[part]}\n")
    with serve(place) as server:
        answer = httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.stop()
    assert answer.status_code == 200
    assert answer.json()["reply"].endswith("You asked: hello")


def test_p2_p4_a_unit_of_a_worker_replays_in_one_process(provider: Provider, place: Workplace) -> None:
    """Under `--workers 2` each worker has its own start; the recorded command replays without any worker."""
    with serve(place, "--workers", "2") as server:
        for number in range(4):
            httpx.get(f"{server.url}/sync/question-{number}", timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    units = server.units()
    assert [path_of(unit) for unit in units] == [f"/sync/question-{number}" for number in range(4)]
    assert all(unit.root.env["unit"]["root"].startswith("main/p:") for unit in units)
    replayed = place.replay(*COMMAND, "--workers", "2", source=units[-1].run_id)
    assert replayed.status == 0, replayed.stderr


def test_p2_units_are_delivered_while_their_process_lives(place: Workplace) -> None:
    """A collector gets the whole run of an ended request while the server continues to run."""
    with deliver() as sink, serve(place, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint) as server:
        for number in range(3):
            httpx.get(f"{server.url}/sync/question-{number}", timeout=TIMEOUT_S)
        await_true(lambda: len(ended_runs(sink)) == 3)


def _record_one(provider: Provider, place: Workplace) -> tuple[Recording, Recording]:
    """Return the unit of one request and its process; the provider is stopped."""
    with serve(place) as server:
        httpx.get(f"{server.url}/sync/hello", timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    (unit,) = server.units()
    return unit, server.the_process()


def test_p4_exported_files_replay_where_they_lie_together(
    provider: Provider, place: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The unit's file alone is incomplete and names the missing run; with the process's file beside it, it replays."""
    unit, process = _record_one(provider, place)
    elsewhere = Workplace(tmp_path_factory.mktemp("elsewhere"))
    elsewhere.write("app.py", APP)
    catalog = SpoolCatalog(place.path / ".spanreplay")
    (elsewhere.path / f"{unit.run_id}.replay").write_bytes(catalog.export(unit.run_id))
    alone = elsewhere.replay(*COMMAND, source=f"{unit.run_id}.replay")
    assert alone.status == 4, alone.stderr
    assert f"the start of its process, run {process.run_id}, is not here" in alone.stderr
    (elsewhere.path / f"{process.run_id}.replay").write_bytes(catalog.export(process.run_id))
    both = elsewhere.replay(*COMMAND, source=f"{unit.run_id}.replay")
    assert both.status == 0, both.stderr


def test_s62_p4_one_file_of_a_request_replays_on_a_laptop(
    provider: Provider, place: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Under any name, in any folder, without a variable: the file has the start of the process, with what that read."""
    unit, process = _record_one(provider, place)
    laptop = tmp_path_factory.mktemp("laptop")
    exported = place.run("export", unit.run_id, "-o", str(laptop / "incident.replay"))
    assert f"with the start of its process, {process.run_id}" in exported.stderr
    (laptop / "app.py").write_text(APP, encoding="utf-8")
    done = Workplace(laptop).replay(*COMMAND, source="incident.replay")
    assert done.status == 0, done.stderr
    assert json.loads(place.run("export", unit.run_id, "--json").stdout)["process"] == [process.run_id]
    for option, why in (("--anonymous", "nothing is hidden in it"), ("--jsonl", "JSON lines hold one run")):
        said = place.run("export", unit.run_id, option, "-o", "other").stderr
        assert f"the start of its process, run {process.run_id}, is not in the file: {why}" in said


def test_p2_a_wsgi_application_under_uvicorn_replays(provider: Provider, place: Workplace) -> None:
    """uvicorn wraps it into an ASGI application whose work is done in threads."""
    place.write("app.py", WSGI)
    with serve(place, "--interface", "wsgi") as server:
        answer = httpx.post(f"{server.url}/path", content="hello", timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert response_of(unit)["body"]["text"] == answer.text
    replayed = place.replay(*COMMAND, "--interface", "wsgi", source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


WSGI: Final = """
from groq import Groq

def app(environ, start_response):
    text = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    start_response("200 OK", [("content-type", "text/plain")])
    return [made.choices[0].message.content.encode()]
"""


def test_p2_p4_a_script_that_serves_replays(provider: Provider, place: Workplace) -> None:
    """With `uvicorn.run(app)` in a user's script, the runs have the script's name."""
    port = free_port()
    script = place.write("main.py", f"import uvicorn\nfrom app import app\nuvicorn.run(app, port={port})\n")
    process = place.spawn([str(place.python), str(script)])
    await_true(lambda: listens(port, process))
    server = Server(place, port, process)
    httpx.get(f"{server.url}/sync/hello", timeout=TIMEOUT_S)
    server.stop()
    provider.stop()
    (unit,) = server.units()
    assert unit.root.app == server.the_process().root.app == "main"
    replayed = place.replay(script, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


MAKES: Final = """
import pathlib, sqlite3

db = sqlite3.connect("state.sqlite3", check_same_thread=False)
db.execute("create table if not exists seen (text)")
made = [not pathlib.Path(name).exists() for name in ("cache", "cache/first.txt")]
pathlib.Path("cache").mkdir(exist_ok=True)
pathlib.Path("cache/first.txt").write_text("made by the start")

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"].endswith("shutdown"):
                return
    db.execute("insert into seen values (?)", (scope["path"],))
    db.commit()
    count = db.execute("select count(*) from seen").fetchone()[0]
    body = f"{made} {count} {pathlib.Path('cache/first.txt').read_text()}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})
"""


def test_p4_what_the_start_of_a_server_made_beside_its_code_is_not_there_in_a_replay(place: Workplace) -> None:
    """A database and a folder created while the application loaded are absent when its replay begins."""
    place.write("app.py", MAKES)
    with serve(place) as server:
        answer = httpx.get(f"{server.url}/one", timeout=TIMEOUT_S)
        server.stop()
    assert answer.text == "[True, True] 1 made by the start"
    (unit,) = server.units()
    before = {path.name: path.read_bytes() for path in place.path.rglob("*.sqlite3")}
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert {path.name: path.read_bytes() for path in place.path.rglob("*.sqlite3")} == before


COMPILES: Final = """
import sqlalchemy as sa
from fastapi import FastAPI

engine = sa.create_engine("sqlite:///shop.db")
tables = sa.MetaData()
orders = sa.Table("orders", tables, sa.Column("id", sa.Integer, primary_key=True), sa.Column("owner", sa.Text))
tables.create_all(engine)
app = FastAPI()

@app.get("/{owner}")
async def add(owner: str):
    with engine.begin() as connection:
        connection.execute(orders.insert().values(owner=owner))
        return connection.execute(sa.select(sa.func.count()).where(orders.c.owner == owner)).scalar()
"""


def test_p4_what_the_process_had_compiled_before_a_unit_is_compiled_in_its_replay(place: Workplace) -> None:
    """SQLAlchemy times the compilation: recorded in the first unit only, it happens in each unit's replay."""
    place.write("app.py", COMPILES)
    with serve(place) as server:
        for owner in ("ann", "bob"):
            assert httpx.get(f"{server.url}/{owner}", timeout=TIMEOUT_S).json() == 1
            server.await_ends()
        server.stop()
    (place.path / "shop.db").unlink()
    for unit in server.units():
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
