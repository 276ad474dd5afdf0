"""Concurrent requests that share work: the call of one serves the others too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.suites import replay_suite
from support.units import ASKING, COMMAND, path_of, prepare, serve

TEXTS: Final = ("amber", "birch", "cedar")
# The first request waits until all are there, and asks for all of them.
LEADER: Final = f"""{ASKING}
import asyncio

from fastapi import FastAPI

app, waiting, full = FastAPI(), [], asyncio.Event()

@app.post("/ask/{{text}}")
async def answer(text: str):
    reply = asyncio.get_running_loop().create_future()
    waiting.append((text, reply))
    if len(waiting) == {len(TEXTS)}:
        full.set()
    if waiting[0][1] is reply:
        await WAIT
        said = await ask("Answer each: " + "; ".join(each for each, _ in waiting))
        for each, asked in waiting:
            asked.set_result(each + said)
    return await reply
"""
# One job at a time: the end of one starts the next one, whichever request queued it.
JOBS: Final = f"""{ASKING}
import asyncio

from fastapi import FastAPI

app, jobs, brought, said = FastAPI(), [], [], []
full, done = asyncio.Event(), asyncio.Event()

def start():
    if jobs:
        asyncio.create_task(jobs[0]).add_done_callback(lambda _: (jobs.pop(0), start()))

async def work(text, reply):
    await WAIT
    said.append(await ask("Answer " + text))
    reply.set_result(said[-1])
    if len(said) == len(brought):
        done.set()

@app.post("/ask/{{text}}")
async def answer(text: str):
    reply = asyncio.get_running_loop().create_future()
    brought.append(text)
    jobs.append(work(text, reply))
    if len(brought) == {len(TEXTS)}:
        full.set()
    if len(jobs) == 1:
        start()
    answered = await reply
    await done.wait()
    return answered
"""
SHAPES: Final = {"one call for all": LEADER, "a job starts the next": JOBS}


def _program(shape: str, *, is_alone: bool = False) -> str:
    """The program; in a replay of one request it doesn't wait for the others."""
    return SHAPES[shape].replace("WAIT", "asyncio.sleep(0)" if is_alone else "full.wait()")


def _record(provider: Provider, place: Workplace) -> list[Recording]:
    with serve(place) as server:
        with ThreadPoolExecutor(len(TEXTS)) as pool:
            asked = [pool.submit(httpx.post, f"{server.url}/ask/{text}", timeout=TIMEOUT_S) for text in TEXTS]
            assert all(each.result().status_code == 200 for each in asked)
        server.await_ends()
        server.stop()
    provider.stop()
    return server.units()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.sampled(1)
def test_p2_p4_a_unit_that_shared_its_work_is_incomplete(shape: str, provider: Provider, tmp_path: Path) -> None:
    """Alone it asks for nobody else, or for itself instead of another: this is no change of the program."""
    place = prepare(tmp_path, provider, _program(shape))
    units = _record(provider, place)
    asking = [unit for unit in units if any(call.kind == "llm" for call in unit.calls)]
    assert len(asking) == 1, "one has the calls of all"
    place.write("app.py", _program(shape, is_alone=True))
    for unit in units:
        replayed = place.replay(*COMMAND, source=unit.run_id)
        assert replayed.status == 4, f"{path_of(unit)}: {replayed.stderr}"
        (reason,) = replayed.verdict["reasons"]
        assert "which its process served at the same time" in reason or "an earlier unit had started" in reason
    suite = replay_suite(place, *COMMAND, options=("--app", "app:app"))
    assert suite.status == 4, suite.stderr
    assert suite.report["counts"]["incomplete"] == len(TEXTS)


def test_p4_a_change_is_a_divergence_although_work_was_shared(provider: Provider, tmp_path: Path) -> None:
    """A difference in words that came from no other request is a change of the program."""
    place = prepare(tmp_path, provider, _program("one call for all"))
    units = _record(provider, place)
    (asking,) = [unit for unit in units if any(call.kind == "llm" for call in unit.calls)]
    changed = _program("one call for all", is_alone=True).replace('model="gpt-x"', 'model="gpt-y"')
    place.write("app.py", changed.replace("for each, _ in waiting", f"for each in {_texts(asking)!r}"))
    replayed = place.replay(*COMMAND, source=asking.run_id)
    assert replayed.causes()[0] == ("changed_call", "llm:openai.chat.completions"), replayed.stderr


def _texts(unit: Recording) -> list[str]:
    """The texts in the unit's call, in its order."""
    (call,) = [call for call in unit.calls if call.kind == "llm"]
    return sorted(TEXTS, key=call.request.index)
