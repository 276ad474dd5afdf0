"""The traceback of a tool's exception has the same text in a replay, in which the tool does not run."""

from __future__ import annotations

import asyncio
import random
import traceback

import pytest

import spanreplay
from spanreplay.runtime.calls import tracebacks
from support.in_process import recorded, replayed


def _break(key: str) -> int:
    return {"a": 1}[key] + len(
        key,
    )


def _fail(depth: int) -> int:
    return _break(f"k{random.SystemRandom().random()}") if depth == 0 else _fail(depth - 1)


@spanreplay.boundary("tool")
def fail(depth: int) -> int:
    """A tool that fails at a given depth, with another text each time."""
    return _fail(depth)


@spanreplay.boundary("tool")
async def afail(depth: int) -> int:
    """The same as a coroutine."""
    await asyncio.sleep(0)
    return _fail(depth)


async def _plain() -> str:
    try:
        fail(2)
    except KeyError:
        return traceback.format_exc()
    return ""


async def _coroutine() -> str:
    try:
        await afail(2)
    except KeyError:
        return traceback.format_exc()
    return ""


async def _while_handling() -> str:
    try:
        try:
            raise ValueError("outer")
        except ValueError:
            fail(1)
    except KeyError:
        return traceback.format_exc()
    return ""


async def _deep() -> str:
    try:
        fail(3 * tracebacks.FRAMES_MAX)
    except KeyError as exc:
        return str(len(traceback.extract_tb(exc.__traceback__)) > tracebacks.FRAMES_MAX)
    return ""


USES = {"plain": _plain, "coroutine": _coroutine, "while_handling": _while_handling, "deep": _deep}


@pytest.mark.parametrize("use", [u for u in USES if u != "deep"])
def test_s50_traceback_is_the_same_text_in_a_replay(use: str) -> None:
    """A traceback that an agent prints, or passes to a model, is the same."""
    seen: list[str] = []

    async def main() -> str:
        seen.append(await USES[use]())
        return seen[-1]

    recording = recorded(main, ())
    replay = replayed(main, recording, seams=())
    assert replay.verdict["verdict"] == "identical"
    assert replay.result == seen[0]
    assert "in _break" in seen[0]
    assert "k0." in seen[0]


def test_deep_stack_is_cut_in_the_middle() -> None:
    """The stack of a runaway recursion does not fill the recording."""
    recording = recorded(_deep, ())
    (call,) = recording.calls
    assert len(call.meta["stack"]) == tracebacks.FRAMES_MAX
    assert replayed(_deep, recording, seams=()).verdict["verdict"] == "identical"


@pytest.mark.parametrize(
    "frames", [None, "no list", [[1]], [["f", "n", "q", -5, 9, 9, 1]], [["f", "n", "q", 2**80, None, None, None]]]
)
def test_stack_of_another_shape_is_left_out(frames: object) -> None:
    """An unusable recorded stack only loses the stack, not the replay."""
    error = ValueError("x")
    tracebacks.restore(error, frames)
    assert error.args == ("x",)
