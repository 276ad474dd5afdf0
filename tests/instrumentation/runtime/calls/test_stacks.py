"""The traceback of a tool's exception has the same text in a replay, in which the tool does not run."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
import threading
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


@spanreplay.boundary("tool")
def fail_from(depth: int) -> int:
    """A tool that turns one failure into another, while it handles a third."""
    try:
        return _fail(depth)
    except KeyError as exc:
        try:
            return _fail(0)
        except KeyError:
            raise RuntimeError("no key") from exc


@spanreplay.boundary("tool")
def fail_with_lock() -> int:
    """A tool whose exceptions hold something that has no codec."""
    try:
        raise ValueError("held", threading.Lock())
    except ValueError:
        return _fail(0)


@spanreplay.boundary("tool")
async def fail_together() -> None:
    """A tool that raises a group of exceptions."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_fail_later("a"))
        group.create_task(_fail_later("b"))


@spanreplay.boundary("tool")
async def wait() -> None:
    """A tool that is cancelled."""
    await _sleep()


async def _sleep() -> None:
    await asyncio.sleep(60)


async def _fail_later(text: str) -> None:
    await asyncio.sleep(0)
    try:
        _fail(0)
    except KeyError:
        raise ValueError(text) from None


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


async def _caused() -> str:
    try:
        try:
            raise ValueError("outer")
        except ValueError:
            fail_from(1)
    except RuntimeError as exc:
        return traceback.format_exc() + str(exc.__cause__)
    return ""


async def _unencodable() -> str:
    try:
        fail_with_lock()
    except KeyError:
        return traceback.format_exc()
    return ""


async def _group() -> str:
    try:
        await fail_together()
    except Exception:  # noqa: BLE001 -- Python 3.10 has no groups
        return traceback.format_exc()
    return ""


async def _timeout() -> str:
    try:
        await asyncio.wait_for(wait(), 0.1)
    except asyncio.TimeoutError:
        return traceback.format_exc()
    return ""


async def _deep() -> str:
    try:
        fail(3 * tracebacks.FRAMES_MAX)
    except KeyError as exc:
        return str(len(traceback.extract_tb(exc.__traceback__)) > tracebacks.FRAMES_MAX)
    return ""


USES = {
    "plain": _plain,
    "coroutine": _coroutine,
    "while_handling": _while_handling,
    "caused": _caused,
    "unencodable": _unencodable,
    "group": _group,
    "timeout": _timeout,
}
BEHIND = {
    "caused": "direct cause",
    "unencodable": "('held', <unlocked",
    "group": "(2 sub-exceptions)",
    "timeout": "_sleep",
}
"""What a text contains that is about the exceptions behind the raised one."""


@pytest.mark.parametrize("use", USES)
def test_s50_traceback_is_the_same_text_in_a_replay(use: str) -> None:
    """A traceback that an agent prints, or passes to a model, is the same."""
    seen: list[str] = []

    async def main() -> str:
        seen.append(await USES[use]())
        return seen[-1]

    if use == "group" and sys.version_info < (3, 11):
        pytest.skip("it came with Python 3.11")
    recording = recorded(main, ())
    replay = replayed(main, recording, seams=())
    assert replay.verdict["verdict"] == "identical"
    assert replay.result == seen[0]
    assert BEHIND.get(use, "in _break") in seen[0]


def test_old_recording_of_a_tool_keeps_the_cause() -> None:
    """The exception of a recording without the exceptions behind it has the cause that its codec kept."""

    async def main() -> str:
        with pytest.raises(RuntimeError) as caught:
            fail_from(1)
        return repr(caught.value.__cause__)

    recording = recorded(main, ())
    (call,) = recording.calls
    meta = dict(call.meta)
    assert meta.pop("chain")
    old = dataclasses.replace(recording, calls=(dataclasses.replace(call, meta=meta),))
    replay = replayed(main, old, seams=())
    assert replay.kinds() == []
    assert str(replay.result).startswith("KeyError('k0.")


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


@spanreplay.boundary("tool")
def fail_behind_another() -> int:
    """A tool that turns the failure of another tool into its own."""
    try:
        return fail(1)
    except KeyError as exc:
        raise RuntimeError("the other one failed") from exc


def test_s61_an_exception_behind_another_shows_none_of_our_frames() -> None:
    """Whoever reads the traceback looks for the agent's code; it is the same in a replay."""
    found: list[set[str]] = []
    told: list[str] = []

    async def program() -> None:
        try:
            fail_behind_another()
        except RuntimeError as exc:
            told.append(traceback.format_exc())
            cause = exc.__cause__
            found.append(
                set() if cause is None else {each.filename for each in traceback.extract_tb(cause.__traceback__)}
            )

    recording = recorded(program, ())
    assert replayed(program, recording, seams=()).verdict["verdict"] == "identical"
    assert found == [{__file__}, {__file__}]
    assert told[0] == told[1]
