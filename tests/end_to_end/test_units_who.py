"""The run of a request is found by its user, session and time, however they were named."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.units import COMMAND, path_of, prepare, serve

APP: Final = """
from fastapi import FastAPI
from groq import Groq
from openinference.instrumentation import using_session, using_user

app = FastAPI()

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

@app.get("/plain/{text}")
def plain(text: str):
    return {"reply": ask(text)}

@app.get("/as/{user}/{session}")
def named(user: str, session: str):
    with using_user(user), using_session(session):
        return {"reply": ask("hello")}
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with the application."""
    return prepare(tmp_path, provider, APP)


def listed(place: Workplace, *options: str) -> list[dict[str, Any]]:
    """The output of `spanreplay ls --json`."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), "ls", "--json", *options],
        cwd=place.path, env=place.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_p6_openinference_names_user_and_session_of_a_request(place: Workplace) -> None:
    """Values that an application sets with OpenInference's `using_user` belong only to its request."""
    with serve(place) as server:
        for number in (1, 2):
            httpx.get(f"{server.url}/as/u-{number}/s-{number}", timeout=TIMEOUT_S).raise_for_status()
        httpx.get(f"{server.url}/plain/hello", timeout=TIMEOUT_S).raise_for_status()
        server.stop()
    who = {path_of(unit): (unit.root.user_id, unit.root.session_id) for unit in server.units()}
    assert who == {"/as/u-1/s-1": ("u-1", "s-1"), "/as/u-2/s-2": ("u-2", "s-2"), "/plain/hello": ("", "")}
    (found,) = listed(place, "--session", "s-2")
    assert found["user_id"] == "u-2"


def test_p6_ls_finds_a_request_by_its_user_and_time(place: Workplace) -> None:
    """`ls --user u-17 --around TIME` lists the one run of that user's request, and none at another time."""
    with serve(place) as server:
        for number in (16, 17, 18):
            headers = {"baggage": f"user.id=u-{number}"}
            httpx.get(f"{server.url}/plain/of-{number}", headers=headers, timeout=TIMEOUT_S).raise_for_status()
        server.stop()
    (unit,) = [unit for unit in server.units() if path_of(unit) == "/plain/of-17"]
    started = datetime.fromtimestamp(unit.root.start_ns / 1e9).isoformat(timespec="minutes")
    (found,) = listed(place, "--user", "u-17", "--around", started)
    assert found["run_id"] == unit.run_id
    assert listed(place, "--user", "u-17", "--around", "2020-01-01T09:04") == []


WHO: Final = """
import time
from pathlib import Path

def who(request):
    if "raise" in request["path"]:
        raise ValueError("nobody")
    Path("asked.txt").write_text(f"{time.time()}")
    token = request["headers"].get("x-token", "")
    return {"user": token.partition("/")[0], "session": token.partition("/")[2]} if token else None
"""
HEADERS: Final = {
    "SPANREPLAY_USER_HEADER": "X-User-Id, x-forwarded-user, authorization",
    "SPANREPLAY_SESSION_HEADER": "x-session",
}


def test_p6_headers_and_a_callback_name_user_and_session_of_a_request(place: Workplace) -> None:
    """Settings name the headers and the callback; the callback's reads are not part of the request's run."""
    place.write("who.py", WHO)
    asked: dict[str, dict[str, str]] = {
        "/plain/first": {"x-user-id": "u-1", "x-forwarded-user": "u-9", "x-session": "s-1", "baggage": "user.id=u-8"},
        "/plain/second": {"x-forwarded-user": "u-2"},
        "/plain/token": {"x-token": "u-3/s-3", "x-user-id": "u-9"},
        "/plain/raise": {"x-token": "u-9", "baggage": "user.id=u-4,session.id=s-4"},
        "/plain/nobody": {"authorization": "Bearer 0123456789abcdef"},
    }
    with serve(place, **HEADERS, SPANREPLAY_WHO="who:who") as server:
        for path, headers in asked.items():
            httpx.get(f"{server.url}{path}", headers=headers, timeout=TIMEOUT_S).raise_for_status()
        server.stop()
    units = {path_of(unit): unit for unit in server.units()}
    assert {path: (unit.root.user_id, unit.root.session_id) for path, unit in units.items()} == {
        "/plain/first": ("u-1", "s-1"),
        "/plain/second": ("u-2", ""),
        "/plain/token": ("u-3", "s-3"),
        "/plain/raise": ("u-4", "s-4"),
        "/plain/nobody": ("", ""),
    }
    assert [found["run_id"] for found in listed(place, "--user", "u-3")] == [units["/plain/token"].run_id]
    assert all(unit.completeness().is_complete for unit in units.values())
    (place.path / "asked.txt").unlink()
    replayed = place.replay(*COMMAND, source=units["/plain/token"].run_id, **HEADERS, SPANREPLAY_WHO="who:who")
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert not (place.path / "asked.txt").exists()
