"""Deadlines that had not passed when their scopes were entered have not passed there in a replay."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import anyio
import anyio._backends._asyncio as on_asyncio
import anyio.lowlevel
import pytest
import trio

import spanreplay
from spanreplay.seams.concurrency import anyio as _anyio
from spanreplay.seams.concurrency import trio as _trio
from support.in_process import Seams, recorded, replayed

SEAMS: Seams = ((_trio.install, trio), (_anyio.install, on_asyncio))
DEADLINE_S = 60.0


@spanreplay.boundary("tool", name="ask")
def _ask() -> str:
    return "answer"


class _Nap:
    seconds = 0.001


async def _of_anyio() -> bool:
    scope = anyio.CancelScope(deadline=anyio.current_time() + DEADLINE_S)
    await anyio.sleep(_Nap.seconds)
    with scope:
        await anyio.lowlevel.checkpoint()
    return scope.cancelled_caught


async def _of_asyncio() -> bool:
    scope = asyncio.timeout_at(asyncio.get_running_loop().time() + DEADLINE_S)
    await asyncio.sleep(_Nap.seconds)
    try:
        async with scope:
            await asyncio.sleep(0)
    except TimeoutError:
        return True
    return False


async def _of_trio() -> bool:
    scope = trio.CancelScope(deadline=trio.current_time() + DEADLINE_S)
    await trio.sleep(_Nap.seconds)
    with scope:
        await trio.lowlevel.checkpoint()
    return scope.cancelled_caught


PROGRAMS: list[Any] = [
    pytest.param(lambda: asyncio.run(_of_anyio()), id="anyio"),
    pytest.param(
        lambda: asyncio.run(_of_asyncio()),
        id="asyncio",
        marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout_at came with Python 3.11"),
    ),
    pytest.param(lambda: trio.run(_of_trio), id="trio"),
]


@pytest.mark.parametrize("enter", PROGRAMS)
def test_n2_a_deadline_that_had_not_passed_has_not(enter: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope is entered behind its deadline on the replay's clock; it was not when recorded, so it is not now."""

    def program() -> bool:
        _ask()
        return enter()

    recording = recorded(program, SEAMS)
    monkeypatch.setattr(_Nap, "seconds", 2 * DEADLINE_S)
    outcome = replayed(program, recording, seams=SEAMS)
    assert (outcome.error, outcome.result) == (None, False)
