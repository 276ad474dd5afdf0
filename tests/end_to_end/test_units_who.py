"""The run of a request is found by its user, session and time, whoever names them."""

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
from support.units import path_of, prepare, serve

APP: Final = """
from fastapi import FastAPI
from openai import OpenAI
from openinference.instrumentation import using_session, using_user

app = FastAPI()

def ask(text):
    made = OpenAI().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
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
    """What `spanreplay ls --json` shows."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), "ls", "--json", *options],
        cwd=place.path, env=place.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_p6_openinference_names_user_and_session_of_a_request(place: Workplace) -> None:
    """What an application states with OpenInference's `using_user` is its request's, and no other request's."""
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
    """`ls --user u-17 --around TIME` names the one run of that user's request, and none at another time."""
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
