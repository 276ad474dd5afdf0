"""Agents that write the number of their process somewhere: a replay is another process, and makes the same requests."""

from __future__ import annotations

from typing import Final

import pytest

from support.provider import Provider
from support.replaying import CONTAINER, Workplace
from support.suites import insist_identical
from support.units import COMMAND, prepare, serve

AGENT: Final = """
import logging, os, pathlib, subprocess, sys

import openai
import spanreplay

logging.basicConfig(stream=sys.stdout, format="%(process)d %(message)s")

@spanreplay.boundary("tool", name="register", effect="write")
def register(worker, names):
    return len(names)

me = os.getpid()
lock = pathlib.Path(f"run.{me}.lock")
lock.write_text(f'{{"pid": {me}}}')
print(register(me, [lock.name, f"pid {me}"]))
print(subprocess.run(["cat", lock.name], capture_output=True, text=True).stdout)
logging.warning("locked as %s", lock)
with openai.OpenAI(default_headers={"x-worker": str(me)}) as client:
    asked = [{"role": "user", "content": f"worker {me} asks"}]
    client.chat.completions.create(model="gpt-x", messages=asked)
    client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "only its header says it"}])
lock.rename("run.lock")
pathlib.Path(f"left.{me}").touch()
os.kill(me, 0)
"""


@pytest.mark.parametrize("within", [(), CONTAINER], ids=["here", "container"])
def test_p10_the_number_of_its_process_makes_no_run_another_one(
    within: tuple[str, ...], provider: Provider, workplace: Workplace
) -> None:
    """In arguments, prompts, headers, names and texts of files, and output; another number is a change.

    In a container the process has a small number, which often means something else.
    """
    workplace.environ.update(provider.environ())
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent)
    provider.stop()
    workplace.within = within
    replayed = workplace.replay(agent)
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    for before, after in (("register(me,", "register(me + 1,"), ("worker {me} asks", "worker {me + 1} asks")):
        workplace.write("agent.py", AGENT.replace(before, after))
        changed = workplace.replay(agent)
        assert (changed.status, changed.verdict["verdict"]) == (3, "diverged"), changed.stderr
    workplace.write("agent.py", AGENT.replace('"left.{me}"', '"left.{me + 1}"'))
    assert workplace.replay(agent).status == 3


APP: Final = """
import os

from fastapi import FastAPI
from groq import AsyncGroq

app, started = FastAPI(), os.getpid()

@app.get("/ask")
async def ask():
    async with AsyncGroq() as client:
        asked = [{"role": "user", "content": f"worker {os.getpid()} of {started}"}]
        answer = await client.chat.completions.create(model="gpt-x", messages=asked)
    return {"pid": os.getpid(), "reply": answer.choices[0].message.content}
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_p10_p4_units_say_the_number_of_the_process_that_served_them(
    workers: str, provider: Provider, workplace: Workplace
) -> None:
    """Replayed alone, and in a fork of a started application, whose number its start has kept."""
    import httpx

    place = prepare(workplace.path, provider, APP)
    with serve(place, "--workers", workers) as server:
        for _ in range(2):
            assert httpx.get(f"{server.url}/ask", timeout=60).status_code == 200
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    replayed = place.replay(*COMMAND, source=units[0].run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    insist_identical(place, *COMMAND, units=units)
