"""A server under hypercorn: each request is a separate run, and replays by itself with the provider stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import CHAT, await_true, find_own_number, path_of, prepare, response_of, serve

APP: Final = f"""{CHAT}
import asyncio

from fastapi.responses import StreamingResponse

@app.get("/hang")
async def hang():
    async def parts():
        yield "begun"
        await ask("hello")
        await asyncio.Event().wait()
    return StreamingResponse(parts(), media_type="text/plain")
"""
COMMAND: Final = ("-m", "hypercorn", "app:app")
AT: Final = "-b 127.0.0.1:{port}"


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


async def _ask_all(url: str, count: int, *, is_http_2: bool) -> list[str]:
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(
        timeout=TIMEOUT_S, limits=limits, http1=not is_http_2, http2=is_http_2, base_url=url
    ) as client:

        async def ask(number: int) -> str:
            headers = {"baggage": f"user.id=user-{number % 5},session.id=session-{number}"}
            answer = await client.post("/chat", json={"text": f"question-{number}"}, headers=headers)
            assert answer.status_code == 200
            return answer.text

        return await asyncio.gather(*map(ask, range(count)))


@pytest.mark.parametrize("is_http_2", [False, True], ids=["http/1.1", "http/2"])
@pytest.mark.sampled(1)
def test_p2_p4_requests_under_hypercorn_are_runs_that_replay_alone(
    is_http_2: bool, provider: Provider, place: Workplace
) -> None:
    """With two workers and many users, no run holds another request's values; a sample replays; a change is named."""
    count = 24
    with serve(place, "--workers", "2", command=COMMAND, at=AT) as server:
        answers = asyncio.run(_ask_all(server.url, count, is_http_2=is_http_2))
        server.stop()
    provider.stop()
    units = server.units()
    assert len(units) == count
    for unit in units:
        number = find_own_number(unit)
        assert unit.root.user_id == f"user-{number % 5}"
        assert json.loads(unit.calls[0].response)["value"]["http_version"] == ("2" if is_http_2 else "1.1")
        assert response_of(unit)["body"]["text"] == answers[number]
    assert len({unit.root.session_id for unit in units}) == count
    for unit in (units[0], units[-1]):
        replayed = place.replay(*COMMAND, "--workers", "2", "-b", "127.0.0.1:1", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"
    place.write("app.py", APP.replace('"reply": reply', '"reply": reply.upper()'))
    changed = place.replay(*COMMAND, "--workers", "2", "-b", "127.0.0.1:1", source=units[0].run_id)
    assert changed.status == 3, changed.stderr
    assert changed.causes() == [("changed_call", "http:response")]
    # A worker's own command line is multiprocessing's; the recorded one is the server's
    assert units[0].root.env["argv"][1:] == [*COMMAND[2:], "--workers", "2", *AT.format(port=server.port).split()]


def test_p5_ended_units_under_hypercorn_are_whole_when_its_worker_is_killed(
    provider: Provider, place: Workplace
) -> None:
    """After kill -9 of its processes, ended units replay; the one in flight says that it did not end."""
    place.write("app.py", APP + PID)
    with serve(place, command=COMMAND, at=AT) as server:
        worker = httpx.get(f"{server.url}/pid", timeout=TIMEOUT_S).json()
        httpx.post(f"{server.url}/chat", json={"text": "hello"}, timeout=TIMEOUT_S)
        server.await_ends()
        with httpx.stream("GET", f"{server.url}/hang", timeout=TIMEOUT_S) as hanging:
            texts = hanging.iter_text()
            assert next(texts) == "begun"
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                next(texts)  # it is gone: a living process would see its client or server vanish and end the unit
            server.process.kill()
            server.process.communicate(timeout=TIMEOUT_S)
    provider.stop()
    found = {path_of(unit): unit for unit in server.units()}
    assert found["/chat"].completeness().is_complete
    reasons = found["/hang"].completeness().reasons
    assert reasons == ("the run did not end: its process was killed or is still running",)
    replayed = place.replay(*COMMAND, source=found["/chat"].run_id)
    assert replayed.status == 0, replayed.stderr
    assert place.replay(*COMMAND, source=found["/hang"].run_id).status == 4


PID: Final = """
import os

@app.get("/pid")
def pid():
    return os.getpid()
"""


def test_p5_a_client_of_hypercorn_that_went_away_cancels_its_unit(provider: Provider, place: Workplace) -> None:
    """The unit is complete with outcome `cancelled`, and a replay disconnects at the same moment."""
    with serve(place, command=COMMAND, at=AT) as server:
        with httpx.stream("GET", f"{server.url}/hang", timeout=TIMEOUT_S) as hanging:
            assert next(hanging.iter_text()) == "begun"
        await_true(lambda: [unit.root.outcome for unit in server.units()] == ["cancelled"])
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr


WSGI: Final = """
from groq import Groq

def app(environ, start_response):
    text = environ["wsgi.input"].read().decode()
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    start_response("200 OK", [("content-type", "text/plain")])
    return [made.choices[0].message.content.encode()]
"""


def test_p2_a_wsgi_application_under_hypercorn_replays(provider: Provider, place: Workplace) -> None:
    """hypercorn wraps it like an ASGI application that works in threads."""
    place.write("app.py", WSGI)
    with serve(place, command=COMMAND, at=AT) as server:
        answer = httpx.post(f"{server.url}/path", content="hello", timeout=TIMEOUT_S)
        server.stop()
    provider.stop()
    (unit,) = server.units()
    assert response_of(unit)["body"]["text"] == answer.text
    replayed = place.replay(*COMMAND, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr
