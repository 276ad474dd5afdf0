"""Requests whose tools ask models, or leave something in the process's memory: alone, and in a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S
from support.suites import replay_suite
from support.units import ASKING, COMMAND, Server, path_of, prepare, serve

APP: Final = f"""{ASKING}
import random

from fastapi import FastAPI
from spanreplay import boundary

app = FastAPI()
CARTS = {{}}
PROMPT = "Be kind. "

@boundary("tool")
def buy(user, thing):
    CARTS.setdefault(user, []).append(f"{{thing}} {{random.random()}}")
    return "bought"

@boundary("tool")
async def research(question):
    return await ask(PROMPT + question)

@app.get("/buy/{{user}}/{{thing}}")
def shop(user: str, thing: str):
    return [buy(user, thing), CARTS[user]]

@app.get("/ask/{{question}}")
async def find(question: str):
    return await research(question)
"""
PATHS: Final = ("/buy/ann/apples", "/buy/ben/pears", "/ask/why", "/ask/when")


@pytest.fixture
def server(tmp_path: Path, provider: Provider) -> Server:
    """A server that has answered two requests of each kind."""
    with serve(prepare(tmp_path, provider, APP)) as server:
        for path in PATHS:
            httpx.get(server.url + path, timeout=TIMEOUT_S).raise_for_status()
        server.await_ends()
        server.stop()
    provider.stop()
    return server


def judge_all(server: Server, *options: str) -> dict[str, dict[str, Any]]:
    """The verdicts of a suite of all units, by path."""
    suite = replay_suite(server.workplace, *COMMAND, options=("--process", server.units()[0].run_id, *options))
    paths = {unit.run_id: path_of(unit) for unit in server.units()}
    return {paths[verdict["run_id"]]: verdict for verdict in suite.report["units"]}


def words(verdicts: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {path: verdicts[path]["verdict"] for path in PATHS}


def test_p12_p2_what_tools_left_in_memory_and_asked_of_models_is_judged_in_a_suite(server: Server) -> None:
    """Every request is as recorded with its tools run again.

    A changed prompt of a tool is a difference of the requests that use it.
    """
    found = judge_all(server)
    assert words(found) == dict.fromkeys(PATHS, "identical"), found
    assert [found[path]["counts"].get("rerun", 0) for path in PATHS] == [1, 1, 0, 0]
    assert set(words(judge_all(server, "--warm", "0")).values()) == {"diverged", "identical"}

    server.workplace.write("app.py", APP.replace("Be kind", "Be rude"))
    found = judge_all(server)
    assert words(found) == dict(zip(PATHS, ["identical"] * 2 + ["diverged"] * 2, strict=True)), found
    for path in PATHS[2:]:
        assert found[path]["divergences"][0]["kind"] == "changed_call"
        assert found[path]["divergences"][0]["boundary"].startswith("llm:")


def test_p12_p2_a_request_alone_has_what_its_tool_left_in_memory(server: Server) -> None:
    """One request of many is replayed as a person would who looks into it."""
    unit = next(each for each in server.units() if path_of(each) == PATHS[1])
    again = server.workplace.replay(*COMMAND, source=unit.run_id)
    assert again.verdict["verdict"] == "identical", again.stderr
    assert again.verdict["counts"]["rerun"] == 1
