"""`record` and `replay` as blocks in one process undo everything that they install."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import builtins
import datetime as dt
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import spanreplay
from spanreplay import Plan, ReplayMiss, record, replay
from spanreplay.model.errors import ConfigError, RunNotFound, Suspended
from spanreplay.runtime.run import active_run
from support.provider import Provider


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@spanreplay.boundary("tool", name="ask", effect="read")
def ask(question: str) -> str:
    """A tool that answers differently each time."""
    return f"{question}: {random.SystemRandom().getrandbits(48):x}"


@spanreplay.boundary("tool", name="ask_later", effect="read")
async def ask_later(question: str) -> str:
    """The same tool as a coroutine, after a pause."""
    await asyncio.sleep(0.001)
    return f"{question}: {random.SystemRandom().getrandbits(48):x}"


def _patched() -> list[Any]:
    owners: list[tuple[Any, str]] = [
        (httpx.Client, "send"),
        (httpx.AsyncClient, "send"),
        (threading.Thread, "start"),
        (threading.Condition, "wait"),
        (asyncio.base_events.BaseEventLoop, "create_task"),
        (asyncio.base_events.BaseEventLoop, "run_forever"),
        (asyncio, "as_completed"),
        (subprocess, "Popen"),
        (time, "time"),
        (time, "sleep"),
        (dt.datetime, "now"),
        (random, "random"),
        (os, "urandom"),
        (os, "_exit"),
        (sys, "exit"),
        (builtins, "input"),
    ]
    return [vars(owner)[name] for owner, name in owners]


def test_api_block_replays_what_was_recorded(folder: Path) -> None:
    """The second block gets the first one's answers and random numbers, whatever they are."""
    with record(name="agent") as recorded:
        first = [ask("a"), ask("b"), random.random()]
    with replay(recorded.save(folder / "run.replay")) as session:
        again = [ask("a"), ask("b"), random.random()]
    assert again == first
    assert (session.served, session.divergences) == (2, ())
    verdict = session.verdict()
    assert (verdict["verdict"], verdict["app"], verdict["run_id"]) == ("identical", "agent", recorded.run_id)


def test_api_blocks_follow_each_other_and_restore_by_identity(folder: Path) -> None:
    """Three pairs of blocks run in one process; after each, every patched attribute is the original again."""
    before = _patched()
    for number in range(3):
        with record() as recorded:
            first = asyncio.run(ask_later(f"question {number}"))
        assert [a is b for a, b in zip(before, _patched(), strict=True)] == [True] * len(before)
        with replay(recorded.run_id) as session:
            assert asyncio.run(ask_later(f"question {number}")) == first
        assert session.verdict()["verdict"] == "identical"
        assert [a is b for a, b in zip(before, _patched(), strict=True)] == [True] * len(before)
    assert active_run() is None


def test_api_restores_when_the_block_raises(folder: Path) -> None:
    """The block's own exception is raised unchanged, and nothing stays patched."""
    before = _patched()
    failure = ValueError("the agent's own")

    def agent() -> None:
        ask("a")
        raise failure

    with pytest.raises(ValueError, match="the agent's own") as caught, record() as recorded:
        agent()
    assert caught.value is failure
    with pytest.raises(ValueError, match="the agent's own"), replay(recorded.run_id) as session:
        agent()
    assert session.verdict()["verdict"] == "identical"
    assert [a is b for a, b in zip(before, _patched(), strict=True)] == [True] * len(before)


def test_api_changed_call_passes_out_as_replay_miss(folder: Path) -> None:
    """A call that the recording does not answer ends the block, and the verdict names it."""
    with record() as recorded:
        ask("a")
    with pytest.raises(ReplayMiss), replay(recorded.run_id) as session:
        ask("b")
    verdict = session.verdict()
    assert verdict["verdict"] == "diverged"
    assert [d["kind"] for d in verdict["divergences"]] == ["changed_call"]
    assert [d.kind for d in session.divergences] == ["changed_call"]


def test_api_unplayed_call_is_in_the_verdict(folder: Path) -> None:
    """A recorded call that is not made is a divergence."""
    with record() as recorded:
        ask("a")
        ask("b")
    with replay(recorded.run_id) as session:
        ask("a")
    assert [d["kind"] for d in session.verdict()["divergences"]] == ["missing_call"]


def test_api_plan_lets_a_call_run_live(folder: Path) -> None:
    """A boundary that the plan names runs live, and the verdict counts it."""
    with record() as recorded:
        first = ask("a")
    with replay(recorded.run_id, plan=Plan(live=("tool",))) as session:
        assert ask("a") != first
    assert session.verdict()["counts"]["live"] == 1


def test_api_plan_overrides_limits_and_ends(folder: Path) -> None:
    """A chained plan serves another value, raises an exception, and ends the replay before a given call."""
    with record() as recorded:
        ask("a")
        ask("b")
    plan = Plan().override("tool:ask[1]", value="mine").override("tool:ask[2]", error=TimeoutError("late"))
    with replay(recorded.run_id, plan=plan) as session:
        assert ask("a") == "mine"
        with pytest.raises(TimeoutError, match="late"):
            ask("b")
    assert [d.cause.partition(":")[0] for d in session.divergences] == ["set by the plan"] * 2
    with pytest.raises(ReplayMiss, match="stopped before call"), replay(recorded.run_id, plan=Plan().to(2)) as ended:
        [ask(question) for question in "ab"]
    assert ended.verdict()["verdict"] == "incomplete"
    with pytest.raises(ConfigError, match="no such call"), replay(recorded.run_id, plan=Plan().set("llm[1].x = 1")):
        pass


def test_n3_api_strict_refuses_an_incomplete_recording(folder: Path) -> None:
    """A strict plan refuses an incomplete recording before it starts, and lists the hole."""
    with record() as recorded:
        spanreplay.boundary("tool", name="opaque")(object)()
    with pytest.raises(ConfigError, match="unserializable"), replay(recorded.run_id, plan=Plan().strict()):
        pass
    with pytest.raises(ReplayMiss), replay(recorded.run_id):
        spanreplay.boundary("tool", name="opaque")(object)()


def test_s67_api_block_is_left_where_a_human_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no terminal can answer, the block is left with Suspended, and its run states the pending question."""
    monkeypatch.setenv("SPANREPLAY_HUMAN", "suspend")
    reached = []

    def agent() -> None:
        ask("a")
        spanreplay.human.input("Go on? ")
        reached.append("behind")

    with pytest.raises(Suspended, match="waits for an answer to 'Go on"), record() as recorded:
        agent()
    with pytest.raises(ReplayMiss), replay(recorded.run_id) as session:
        agent()
    assert reached == []
    assert "waits for an answer to 'Go on? '" in session.verdict()["reasons"][0]


def test_s67_human_input_is_the_built_in_where_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a run it asks as `input()` does, until the answer is one of the choices."""
    answers = iter(["eve", "ann"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(answers))
    assert spanreplay.human.input("Name? ", choices=("ann", "bob")) == "ann"
    answers = iter(["bob"])
    assert asyncio.run(spanreplay.human.ainput("Name? ")) == "bob"


def test_s67_answers_of_coroutines_replay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ainput` is a recorded call, so its replay asks nobody."""
    monkeypatch.setattr(builtins, "input", lambda prompt: "ann")
    with record() as recorded:
        assert asyncio.run(spanreplay.human.ainput("Name? ")) == "ann"
    monkeypatch.setattr(builtins, "input", lambda prompt: pytest.fail("nobody is asked"))
    with replay(recorded.run_id) as session:
        assert asyncio.run(spanreplay.human.ainput("Name? ")) == "ann"
    assert session.verdict()["verdict"] == "identical"


def test_api_network_is_denied_inside_only(folder: Path) -> None:
    """A socket that no boundary covers is denied inside the block and allowed after it."""
    with record() as recorded:
        ask("a")
    with Provider() as provider, socket.socket() as probe:
        with pytest.raises(ReplayMiss, match=f"127.0.0.1:{provider.port}"), replay(recorded.run_id) as session:
            probe.connect(("127.0.0.1", provider.port))
        kinds = [d["kind"] for d in session.verdict()["divergences"]]
        assert kinds == ["effect_blocked", "missing_call"]
        probe.connect(("127.0.0.1", provider.port))


@pytest.mark.parametrize("inner", [record, lambda: replay("run.replay")], ids=["record", "replay"])
def test_api_nested_block_is_refused(folder: Path, inner: Any) -> None:
    """A block inside a block raises a ConfigError that says so, and the outer one goes on."""
    with record() as recorded:
        ask("a")
        with pytest.raises(ConfigError, match="another block"), inner():
            pass
        ask("b")
    with replay(recorded.run_id) as session, pytest.raises(ReplayMiss):
        ask("no")
    assert session.verdict()["counts"]["recorded"] == 2


def test_api_concurrent_block_is_refused(folder: Path) -> None:
    """A block in another thread is refused while one is active."""
    found: list[BaseException] = []

    def second() -> None:
        try:
            with record():
                pass
        except ConfigError as exc:
            found.append(exc)

    with record():
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(10)
    assert [type(e) for e in found] == [ConfigError]


def test_api_source_that_is_not_there_leaves_nothing_behind(folder: Path) -> None:
    """A replay that can't begin says why and leaves nothing patched, and the next block works."""
    before = _patched()
    with pytest.raises(RunNotFound), replay("nowhere.replay"):
        pass
    assert [a is b for a, b in zip(before, _patched(), strict=True)] == [True] * len(before)
    with record() as recorded:
        ask("a")
    assert recorded.path is not None
    assert recorded.path.is_file()


def test_api_replay_writes_nothing(folder: Path) -> None:
    """A replay leaves the directory unchanged: no spool, no key."""
    with record(directory=folder / "there") as recorded:
        ask("a")
    saved = recorded.save(folder / "run.replay")
    (folder / ".spanreplay" / "redact.key").unlink()
    before = sorted(p.relative_to(folder) for p in folder.rglob("*"))
    with replay(saved) as session:
        ask("a")
    assert session.verdict()["verdict"] == "identical"
    assert sorted(p.relative_to(folder) for p in folder.rglob("*")) == before


def test_api_nothing_recorded_cannot_be_saved(folder: Path) -> None:
    """A block without calls has no recording, and saving it says so."""
    with record() as recorded:
        pass
    assert recorded.path is None
    with pytest.raises(ConfigError, match="nothing was recorded"):
        recorded.save(folder / "run.replay")
    with pytest.raises(ConfigError, match="once"), recorded:
        pass


@pytest.mark.parametrize("first", ["", "import time_machine\n"], ids=["alone", "beside time-machine"])
def test_api_clock_is_replayed_too(folder: Path, python: str, first: str) -> None:
    """The clock is recorded and replayed, also where time-machine is imported, and is restored afterwards."""
    script = folder / "agent.py"
    script.write_text(
        f"{first}import sys, time, spanreplay\n"
        "finders, clock = list(sys.meta_path), time.time\n"
        "for _ in range(3):\n"
        "    with spanreplay.record() as recorded:\n"
        "        first = time.time()\n"
        "        spanreplay.boundary('tool')(len)('x')\n"
        "    with spanreplay.replay(recorded.run_id) as session:\n"
        "        assert time.time() == first\n"
        "        spanreplay.boundary('tool')(len)('x')\n"
        "    assert session.verdict()['verdict'] == 'identical', session.verdict()\n"
        "    assert time.time is clock\n"
        "assert len(sys.meta_path) <= len(finders) + 1, sys.meta_path\n"
    )
    subprocess.run([python, str(script)], check=True, cwd=folder)


def test_api_verdict_before_the_block_is_an_error() -> None:
    """Asking for a verdict too early is a ConfigError, not an empty verdict."""
    with pytest.raises(ConfigError, match="before the replay"):
        replay("run.replay").verdict()


def test_api_names_stay_functions_beside_submodules() -> None:
    """`spanreplay.record` is the function: no module has the name of a public function."""
    import spanreplay.replayer.resolve.session as session
    import spanreplay.runtime.run as run_module

    assert spanreplay.record is record
    assert spanreplay.replay is replay
    assert (session.Session.__module__, run_module.Run.__module__) == (session.__name__, run_module.__name__)
    assert {"record", "replay", "run"}.isdisjoint(vars(spanreplay))
