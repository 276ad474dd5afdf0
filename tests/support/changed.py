"""Replays an agent with one change in this process, and returns the verdict."""

from __future__ import annotations

import gc
import linecache
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spanreplay import ReplayMiss, record, replay


def load(source: str, folder: Path, name: str = "agent.py", **given: Any) -> Callable[[], Any]:
    """Write a source into `folder` as an agent's file and return its function `agent`."""
    path = folder / name
    space: dict[str, Any] = {"__name__": "agent", "__file__": str(path), **given}
    linecache.checkcache(str(path))
    exec(compile(source, str(path), "exec"), space)  # noqa: S102 -- the test's own agent
    agent: Callable[[], Any] = space["agent"]
    return agent


def record_agent(agent: Callable[[], Any]) -> str:
    """Record an agent and return the run's id."""
    with record() as recorded:
        agent()
    return recorded.run_id


def replay_agent(run_id: str, agent: Callable[[], Any]) -> dict[str, Any]:
    """Replay an agent and return the verdict, which includes its exception."""
    raised, before = "", Path.cwd()
    with replay(run_id) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # an agent stopped by a replay leaves its files open
        try:
            agent()
        except ReplayMiss:
            pass
        except Exception as exc:  # noqa: BLE001 -- it is reported with the verdict
            raised = repr(exc)
        gc.collect()
    os.chdir(before)
    return {**session.verdict(), "raised": raised}


def named(verdict: dict[str, Any]) -> set[str]:
    """Return every path and boundary that a verdict names."""
    listed = [*verdict["divergences"], *verdict.get("ignored_diffs", [])]
    paths = {diff["path"] for each in listed for diff in each.get("diff", [])}
    return paths | {each["boundary"] for each in listed}
