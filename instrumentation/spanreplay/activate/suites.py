"""Starts an application once for a suite of units, and continues in one fork per unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.activate.sessions import make_session
from spanreplay.model import config, guard
from spanreplay.model.levels import FULL
from spanreplay.recording.source import load_source
from spanreplay.replayer.resolve.extension import extend
from spanreplay.replayer.resolve.recorded_reads import ReadFeed
from spanreplay.runtime.order.lock_order import MEMBER as LOCK_ORDER
from spanreplay.runtime.order.worker_book import MEMBER as WORKERS
from spanreplay.units.stated import find_unit
from spanreplay.units.suite import APART, Apart, Forks

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.replayer.sandbox.world import World
    from spanreplay.runtime.run import Run

__all__ = ["Division", "Order", "read_order"]


@dataclass(frozen=True)
class Order:
    """The suite a process has to replay: files of units, how many at a time, and the timeout of each."""

    units: Sequence[str]
    jobs: int
    timeout_s: float
    earlier: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """File of a unit → run ids of its warm-up units, in order."""


def read_order() -> Order | None:
    """Read the suite that the settings name; None if there is none. Raises: OSError, ValueError if unreadable."""
    path = config.read_setting("SPANREPLAY_REPLAY_SUITE")
    return Order(**json.loads(Path(path).read_text(encoding="utf-8"))) if path else None


class Installed(Protocol):
    """The parts of an `Installation` that a division needs."""

    run: Run | None
    session: Session | None
    world: World | None
    is_dividing: bool

    def become_unit(self, session: Session, run: Run, send_verdict: Callable[[str], object]) -> None:
        """Continue as the replay of one unit."""

    def finish_start(self) -> None:
        """End the run of a process that has made only its start."""


class Division:
    """Divides a started process into forks, one per unit of its suite."""

    def __init__(self, installed: Installed, order: Order, folders: Mapping[str, str]) -> None:
        """`folders`: the agent's current folders."""
        self._installed = installed
        self._folders = folders
        self._order = order

    def divide(self, why_not: str = "") -> None:
        """Replay each unit in a fork of this process, unless `why_not` states an obstacle; returns only in forks."""
        order = self._order
        why = why_not or self._find_obstacle()
        with self._dividing():
            forks = Forks(order.units, order.jobs, order.timeout_s, self._become, self._tell, self._clean)
            why = why or forks.find_obstacle()
            if not why and forks.divide():
                return
        if why:
            self._tell({APART: why})
        self._installed.finish_start()

    @contextmanager
    def _dividing(self) -> Iterator[None]:
        self._installed.is_dividing = True
        try:
            yield
        finally:
            self._installed.is_dividing = False

    def _find_obstacle(self) -> str:
        run, world = self._installed.run, self._installed.world
        if run is None or world is None:
            raise AssertionError("only a replay divides itself")
        if run.process_group is not None:
            return "the application has started other processes"
        return world.find_shared()

    def _become(self, unit: str, send: Callable[[str], object]) -> None:
        """Continue as the replay of a unit, in a newly forked process. Raises: SpanreplayError, Apart."""
        installed = self._installed
        session, run, world = installed.session, installed.run, installed.world
        if session is None or run is None or world is None:
            raise AssertionError("only a replay divides itself")
        recording = load_source(unit)
        longer = make_session(recording, unit, session.plan, self._folders, self._order.earlier.get(unit, ()))
        stated = longer.recording.root.manifest
        if stated.get(LOCK_ORDER) or (stated.get(WORKERS) and run.level is FULL):
            raise Apart("its recording holds an order of threads, which begins with the process")
        start = find_unit(recording.root.env)
        extend(session, longer, run, 0 if start is None else start.clock)
        installed.become_unit(session, run, send)
        if isinstance(run.reads, ReadFeed):
            run.reads.extend(run.start_ns)
        world.move(run)

    def _tell(self, line: Mapping[str, Any]) -> None:
        with Path(config.read_setting("SPANREPLAY_REPLAY_REPORT")).open("a", encoding="utf-8") as report:
            report.write(json.dumps(line) + "\n")

    def _clean(self, pid: int) -> None:
        if self._installed.world is not None:
            guard.guarded("the files of a unit", self._installed.world.forget_fork, pid)
