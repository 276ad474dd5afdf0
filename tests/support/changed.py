"""An agent with one thing changed, replayed in this process: what the verdict says of it."""

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
    """The function `agent` of a source, as a file of an agent's in `folder`."""
    path = folder / name
    space: dict[str, Any] = {"__name__": "agent", "__file__": str(path), **given}
    linecache.checkcache(str(path))
    exec(compile(source, str(path), "exec"), space)  # noqa: S102 -- an agent of the test's own
    agent: Callable[[], Any] = space["agent"]
    return agent


def record_agent(agent: Callable[[], Any]) -> str:
    """The id of a recording of an agent."""
    with record() as recorded:
        agent()
    return recorded.run_id


def replay_agent(run_id: str, agent: Callable[[], Any]) -> dict[str, Any]:
    """The verdict on an agent; what it raises is a part of that."""
    raised, before = "", Path.cwd()
    with replay(run_id) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # an agent that a replay stops leaves its files open
        try:
            agent()
        except ReplayMiss:
            pass
        except Exception as exc:  # noqa: BLE001 -- it is told with the verdict
            raised = repr(exc)
        gc.collect()
    os.chdir(before)
    return {**session.verdict(), "raised": raised}


def named(verdict: dict[str, Any]) -> set[str]:
    """Every path and boundary that a verdict names."""
    listed = [*verdict["divergences"], *verdict.get("ignored_diffs", [])]
    paths = {diff["path"] for each in listed for diff in each.get("diff", [])}
    return paths | {each["boundary"] for each in listed}
