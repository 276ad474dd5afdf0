"""Sampled units: each is recorded whole or not at all, and the process counts those that are left out."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spanreplay.recording.sampling.rules import parse_rules
from support.otlp_sink import serve as deliver
from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.units import COMMAND, await_true, ended_runs, path_of, prepare, serve, trace_of
from support.workers import input_of

APP: Final = """
import asyncio, time

import httpx
from fastapi import FastAPI, Request, Response
from groq import AsyncGroq
from opentelemetry import trace
from starlette.middleware.base import BaseHTTPMiddleware
import spanreplay

client = AsyncGroq()
app = FastAPI()

async def ask(text):
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content

@spanreplay.boundary("tool")
def look_up(number):
    raise LookupError(number)

@app.get("/ok/{number}")
async def ok(number: int):
    return {"reply": await ask(f"question-{number}")}

@app.get("/raises/{number}")
async def raises(number: int):
    raise ValueError(await ask(f"question-{number}"))

@app.get("/fails/{number}")
async def fails(number: int):
    return Response(await ask(f"question-{number}"), status_code=503)

@app.get("/swallows/{number}")
async def swallows(number: int):
    try:
        look_up(number)
    except LookupError:
        return {"reply": await ask(f"question-{number}")}

@app.get("/missing/{number}")
async def missing(number: int):
    return Response(await ask(f"question-{number}"), status_code=404)

@app.get("/slow/{number}")
async def slow(number: int):
    reply = await ask(f"question-{number}")
    await asyncio.sleep(0.6)
    return {"reply": reply}

@spanreplay.boundary("tool")
def read_all(number):
    return "a b " * 2_400_000

@app.get("/large/{number}")
async def large(number: int):
    return {"reply": await ask(f"question-{number}"), "size": len(read_all(number) + read_all(number + 1))}

@app.get("/hang")
async def hang():
    await ask("hello")
    await asyncio.Event().wait()

@app.get("/relay/{number}")
async def relay(number: int, to: str):
    with trace.get_tracer("app").start_as_current_span("relay") as span:
        context = span.get_span_context()
        headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-01"}
        async with httpx.AsyncClient() as other:
            return (await other.get(f"{to}/ok/{number}", headers=headers, timeout=60)).json()
"""
WAYS: Final = ("ok", "raises", "fails", "swallows", "missing", "slow")
EACH: Final = 12


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


def header_of(number: int) -> dict[str, str]:
    """A different trace for each request; every bit of the ids varies."""
    trace_id = (number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128
    return {"traceparent": f"00-{trace_id:032x}-00f067aa0ba902b7-01"}


async def ask_all(url: str, paths: list[str], headers: Callable[[int], Mapping[str, str]] = header_of) -> list[int]:
    """Send all requests concurrently; return the status of each answer."""
    limits = httpx.Limits(max_connections=40, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        made = [client.get(f"{url}{path}", headers=headers(number)) for number, path in enumerate(paths)]
        return [answer.status_code for answer in await asyncio.gather(*made)]


def counts_of(manifest: Mapping[str, Any]) -> tuple[int, int, dict[str, int]]:
    """The number of units that a process has kept and left out, and the reasons for keeping."""
    units = manifest["units"]
    return units["kept"], units["left_out"], units["kept_for"]


def test_n3_p5_errors_and_slow_requests_are_kept_whole_and_the_rest_is_counted(
    provider: Provider, place: Workplace
) -> None:
    """40 at a time: exceptions, 5xx responses, failed tools and slow requests are kept whole; others leave nothing."""
    paths = [f"/{way}/{number}" for number in range(EACH) for way in WAYS]
    with serve(place, "--log-level", "critical", SPANREPLAY_SAMPLE="errors,call-errors,slow:500ms") as server:
        asyncio.run(ask_all(server.url, paths))
        server.stop()
    provider.stop()
    units = server.units()
    kept = [path_of(unit) for unit in units]
    # On a busy machine any request may be slow: it is kept for that reason, and says so
    sure = {path for path in paths if path.split("/")[1] not in ("ok", "missing")}
    assert sure <= set(kept)
    assert len(kept) == len(set(kept))
    reasons: dict[str, int] = {}
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        why = unit.root.manifest["sampled"]["kept_for"]
        way = path_of(unit).split("/")[1]
        expected = {"raises": "errors", "fails": "errors", "swallows": "call-errors"}.get(way, "slow")
        assert expected in why
        reasons |= {each: reasons.get(each, 0) + 1 for each in why}
    process = server.the_process()
    assert process.completeness().is_complete
    assert counts_of(process.root.manifest) == (len(kept), len(paths) - len(kept), reasons)
    show = [str(BIN / "spanreplay"), "show", process.run_id]
    shown = subprocess.run(show, cwd=place.path, env=place.environ, capture_output=True, text=True, check=True)
    assert f"{len(paths)} units ended, {len(kept)} kept" in shown.stdout
    for way in ("raises", "swallows"):
        unit = next(each for each in units if path_of(each).startswith(f"/{way}/"))
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_n3_p6_a_ratio_decides_by_the_callers_trace_in_every_process(provider: Provider, place: Workplace) -> None:
    """With two workers, a request is kept exactly if OpenTelemetry's sampler keeps its trace."""
    paths = [f"/ok/{number}" for number in range(60)]
    rules = parse_rules("0.3")
    expected = sorted(n for n in range(60) if rules.has_trace(int(header_of(n)["traceparent"].split("-")[1], 16)))
    assert 5 < len(expected) < 40
    with serve(place, "--workers", "2", SPANREPLAY_SAMPLE="0.3") as server:
        asyncio.run(ask_all(server.url, paths))
        await_true(lambda: len([u for u in server.units() if u.root.manifest]) >= len(expected))
        server.stop()
    provider.stop()
    units = server.units()
    assert sorted(int(path_of(unit).split("/")[2]) for unit in units) == expected
    assert all(unit.completeness().is_complete for unit in units)
    assert all(rules.has_trace(trace_of(unit)) for unit in units)
    assert counts_of(server.the_process().root.manifest) == (len(units), 60 - len(units), {"ratio": len(units)})
    replayed = place.replay(*COMMAND, "--workers", "2", source=units[0].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_n3_p6_services_that_call_each_other_keep_the_same_requests(provider: Provider, tmp_path: Path) -> None:
    """For a request without a trace, the first service starts and propagates one, which decides in both."""
    front, back = (tmp_path / name for name in ("front", "back"))
    for folder in (front, back):
        folder.mkdir()
    places = [prepare(folder, provider, APP) for folder in (front, back)]
    rules = {"SPANREPLAY_SAMPLE": "0.4"}
    with serve(places[1], **rules) as second, serve(places[0], **rules) as first:
        paths = [f"/relay/{number}?to={second.url}" for number in range(40)]
        assert set(asyncio.run(ask_all(first.url, paths, lambda number: {}))) == {200}
        first.stop()
        second.stop()
    asked = {int(path_of(unit).split("/")[2]) for unit in first.units()}
    assert {int(path_of(unit).split("/")[2]) for unit in second.units()} == asked
    assert 0 < len(asked) < 40


def test_n3_p6_users_of_the_list_are_kept_and_a_collector_gets_no_other(provider: Provider, place: Workplace) -> None:
    """All requests of users in SPANREPLAY_SAMPLE_KEEP_USERS are kept, whatever the rules; nothing else is sent."""
    paths = [f"/ok/{number}" for number in range(20)]
    with deliver() as sink:
        with serve(
            place,
            SPANREPLAY_SAMPLE="0",
            SPANREPLAY_SAMPLE_KEEP_USERS="user-1, user-3",
            SPANREPLAY_COLLECTOR=sink.endpoint,
        ) as server:
            asyncio.run(ask_all(server.url, paths, lambda number: {"baggage": f"user.id=user-{number % 5}"}))
            server.stop()
        spans = ended_runs(sink)
    assert len(spans) == 8 + 1  # and the process


def test_n3_p5_what_is_under_way_when_the_process_ends_is_kept(provider: Provider, place: Workplace) -> None:
    """A request cut off by the end of the process counts as an error, and says why it is incomplete."""
    with serve(place, "--timeout-graceful-shutdown", "1", SPANREPLAY_SAMPLE="errors") as server:
        httpx.get(f"{server.url}/ok/1", timeout=TIMEOUT_S)
        with socket.create_connection(("127.0.0.1", server.port)) as asking:
            asking.sendall(b"GET /hang HTTP/1.1\r\nHost: here\r\n\r\n")
            await_true(lambda: len(provider.requests) == 2)
            server.stop()
    (unit,) = server.units()
    assert path_of(unit) == "/hang"
    assert unit.root.manifest["sampled"]["kept_for"] == ["errors"]


def test_n3_a_unit_that_is_too_large_to_hold_is_kept(provider: Provider, place: Workplace) -> None:
    """A unit above the memory limit is written whole, and gives its size as the reason."""
    with serve(place, SPANREPLAY_SAMPLE="0") as server:
        asyncio.run(ask_all(server.url, ["/ok/1", "/large/2", "/ok/3"]))
        server.stop()
    (unit,) = server.units()
    assert path_of(unit) == "/large/2"
    assert unit.root.manifest["sampled"]["kept_for"] == ["size"]
    assert counts_of(server.the_process().root.manifest) == (1, 2, {"size": 1})


def test_n3_a_setting_that_can_not_be_used_is_said_and_everything_is_kept(provider: Provider, place: Workplace) -> None:
    """The server continues; standard error names the variable, the value and the allowed values, once."""
    with serve(place, SPANREPLAY_SAMPLE="erors") as server:
        asyncio.run(ask_all(server.url, ["/ok/1", "/ok/2"]))
        server.process.terminate()
        _, stderr = server.process.communicate(timeout=TIMEOUT_S)
    assert stderr.count("SPANREPLAY_SAMPLE='erors' can't be used") == 1
    assert "use always, or one or more of errors" in stderr
    assert len(server.units()) == 2
    assert "units" not in server.the_process().root.manifest


def test_n3_p5_forked_workers_count_in_the_process_that_forked_them(provider: Provider, tmp_path: Path) -> None:
    """gunicorn --preload: workers without calls of their own have no run; the master's run has their counts."""
    place = prepare(tmp_path, provider, FLASK)
    command = ("-m", "gunicorn", "app:app", "--preload", "--workers", "2", "--threads", "8")
    with serve(place, command=command, at="--bind 127.0.0.1:{port}", SPANREPLAY_SAMPLE="errors") as server:
        asyncio.run(ask_all(server.url, [f"/{way}/{number}" for number in range(20) for way in ("ok", "fails")]))
        server.stop()
    provider.stop()
    units = server.units()
    assert sorted(path_of(unit) for unit in units) == sorted(f"/fails/{number}" for number in range(20))
    assert all(unit.completeness().is_complete for unit in units)
    assert counts_of(server.the_process().root.manifest) == (20, 20, {"errors": 20})
    replayed = place.replay(*command, source=units[0].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr


FLASK: Final = """
from flask import Flask
from groq import Groq

app = Flask(__name__)

def ask(number):
    messages = [{"role": "user", "content": f"question-{number}"}]
    return Groq().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content

@app.get("/ok/<int:number>")
def ok(number):
    return {"reply": ask(number)}

@app.get("/fails/<int:number>")
def fails(number):
    return {"reply": ask(number)}, 500
"""

JOBS: Final = """
from groq import Groq
from redis import Redis
from rq import Queue

def queue():
    return Queue("jobs", connection=Redis(port=PORT))

def answer(number):
    messages = [{"role": "user", "content": f"question-{number}"}]
    made = Groq().chat.completions.create(model="gpt-x", messages=messages)
    if number % 3 == 0:
        raise ValueError(number)
    return made.choices[0].message.content
"""
WORKER: Final = """
import rq, shop
rq.Worker([shop.queue()], connection=shop.queue().connection).work(burst=True)
"""


def test_n3_p3_jobs_that_raise_are_kept_and_their_worker_counts_the_others(provider: Provider, tmp_path: Path) -> None:
    """RQ forks a process for each job: a job that is left out leaves no run at all, not even its process's."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production", "PYTHONPATH": "."})
    with a_redis(tmp_path) as port:
        place.write("shop.py", JOBS.replace("PORT", str(port)))
        place.write("worker.py", WORKER)
        publish = [str(place.python), "-c", "import shop; [shop.queue().enqueue(shop.answer, n) for n in range(9)]"]
        subprocess.run(publish, cwd=tmp_path, env=place.environ, check=True, timeout=TIMEOUT_S)
        place.record("worker.py", SPANREPLAY_SAMPLE="errors", SPANREPLAY_LEVEL="calls")
    found = place.recordings()
    units = [each for each in found if "unit" in each.root.env]
    assert sorted(input_of(unit)["args"][0] for unit in units) == [0, 3, 6]
    (process,) = [each for each in found if "unit" not in each.root.env]
    assert counts_of(process.root.manifest) == (3, 6, {"errors": 3})


SCRIPT: Final = """
import spanreplay
from groq import Groq

def ask(text):
    Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])

ask("first")
for number in range(3):
    with spanreplay.run(name="work", input=number):
        ask("in it")
"""


def test_n3_a_script_is_never_sampled(provider: Provider, tmp_path: Path) -> None:
    """A run that is not a unit is recorded, whatever the rules; units by hand inside it are not."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    place.write("script.py", SCRIPT)
    place.record("script.py", SPANREPLAY_SAMPLE="0")
    recording = place.recording()
    assert "llm:openai.chat.completions" in [call.boundary for call in recording.calls]
    assert counts_of(recording.root.manifest) == (0, 3, {})
