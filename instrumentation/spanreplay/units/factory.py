"""Creates the runs of units: the resources that a process shares with them, and the list of open runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import attributes as names
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Outcome
from spanreplay.recording.catalog import FORKED_FROM
from spanreplay.recording.sampling.governor import Governor, Watch, read_limits
from spanreplay.recording.sampling.held import HeldWriter
from spanreplay.recording.sampling.own_cpu import measured
from spanreplay.recording.sampling.rules import read_rules
from spanreplay.recording.sampling.tally import Tally
from spanreplay.recording.spool.directory import spool_directory, usage_of
from spanreplay.runtime.caller.running import RUN, entered, is_off, set_serving
from spanreplay.runtime.context_variables import set_variable
from spanreplay.runtime.lanes import inside_call, inside_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine import reads_and_files
from spanreplay.units import start
from spanreplay.units.sampled import Sampled, settle
from spanreplay.units.stated import READS, UNIT, WORKER, Start
from spanreplay.units.unit_run import OffRun, UnitRun, look_at_code

if TYPE_CHECKING:
    from types import TracebackType

    from spanreplay.recording.spool.shipper import Shipper
    from spanreplay.recording.spool.writer import SpoolWriter
    from spanreplay.redact.engine import Redactor

__all__ = [
    "Process",
    "begin_units",
    "divide",
    "end_start",
    "inside_unit",
    "is_suite",
    "name_units",
    "offer",
    "offer_in_member",
    "offered",
    "open_unit",
    "outside_units",
    "share_start",
    "unrecorded",
]

_ENDED: Final = "the process ended while this unit was under way"
_BEFORE_FORK: Final = "what the program did before this process was forked is in run {} and can't be replayed with it"


@dataclass
class Process:
    """The state that a process shares with its units, each of which is its own run."""

    run: Run
    resource: Any
    data_dir: Path
    build_redactor: Callable[[], Redactor]
    shipper: Shipper | None = None
    finish: Callable[[int], object] | None = None
    """In a replay: ends the process with an exit status."""
    divide: Callable[[str], object] | None = None
    """In the replay of a suite: returns only in forks of this process, one per unit; never in this process.

    If its argument is a reason not to fork, it reports the reason and ends the process.
    """
    start: Start | None = None
    forked_from: Run | None = None
    """The run of the parent process, as it was at the fork."""
    forks_workers: bool = False
    """Whether this process forks workers of a server that a replay runs in the process of the program."""
    app: str = ""
    """The server's name for its application, used if the unit has no name."""
    count: int = 0
    """How many units have begun."""
    open_runs: dict[str, UnitRun] = field(default_factory=dict)
    number: int = 0
    """The number of this process among those of its run, if it is a pool's; 0 if not."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    redactor: Redactor | None = None

    def __post_init__(self) -> None:
        rules = read_rules()
        self.governor = Governor(read_limits())
        self._watch = Watch(self.governor, lambda: usage_of(spool_directory(self.data_dir)))
        self.run.tally = Tally(rules, self.governor) if self.run.resolver.keeps else None
        self.run.before_end = partial(end_units, self)

    def find_passed(self) -> str:
        """Return the exceeded limit that prevents recording a new unit; '' if there is none."""
        guard.guarded("the limits of the recorder", self._watch.look)
        return self.governor.passed


_process: Process | None = None
_forked_start: Start | None = None
"""In a forked process: the parent's start, if the parent had begun no units itself."""
_forked_from: Process | None = None
"""In a forked process: the parent's `Process`."""


def offer(process: Process | None) -> None:
    """Record each unit of this process as its own run from now on; None turns this off."""
    global _process
    _process = process
    if process is None:
        set_serving(False)
    if process is not None and _forked_start is not None:
        process.start = _forked_start


def begin_units() -> None:
    """End the start of this process: from now on it, or the processes it forks, work on units."""
    process = _process
    if process is None or process.run.is_ended or not process.run.resolver.keeps:
        return
    set_serving(True)
    with process.lock:
        if process.start is None:
            process.start = end_start(process.run)
            # Done before forking, because it takes tens of milliseconds: forked processes inherit the result
            guard.guarded("the files of the code", look_at_code, process.run.run_id)


def offered() -> Process | None:
    """Return the process given to `offer`."""
    return _process


def _forked() -> None:
    """Reset a forked child: it works for no unit, and other code decides whether it gets its own run."""
    global _forked_start, _forked_from
    process = _forked_from = _process
    _forked_start = process.start if process is not None and not process.count else None
    if process is not None:  # the parent ends and counts these units
        process.run.tally = process.run.before_end = None
    offer(None)
    set_serving(process is not None and process.start is not None)
    set_variable(RUN, None)


os.register_at_fork(after_in_child=_forked)


def offer_in_member() -> None:
    """Offer units in a worker forked by `multiprocessing`, whose calls belong to the run of the first process."""
    before = _forked_from
    if _process is None and before is not None and before.run.has_joined:
        offer(Process(before.run, before.resource, before.data_dir, before.build_redactor, before.shipper))


def share_start(begun: Start | None) -> None:
    """In a pool's process: let its units continue from the start of the program that made the pool."""
    offer_in_member()
    process = _process
    if process is None or begun is None or process.start is not None:
        return
    with process.lock:
        process.start = start.look_at_forked(begun, process.run)
        group = process.run.process_group
        process.number = 0 if group is None else group.number


def divide(why_not: str = "") -> None:
    """End the start of a replayed process; when replaying a suite, continue in one fork per unit.

    `why_not`: the reason why each unit needs its own process, if it does.
    """
    process = _process
    if process is not None and process.divide is not None:
        process.divide(why_not)


def is_suite() -> bool:
    """Whether this process replays a suite of units, of whatever kind."""
    return _process is not None and _process.divide is not None


def end_start(run: Run) -> Start:
    """End the start of a process, because its first unit begins. Raises: ReplayMiss."""
    return start.end_start(run)


def name_units(app: str) -> None:
    """Set the name for units that have none of their own, taken from the server's application."""
    if _process is not None:
        _process.app = app


@measured
def open_unit(name: str = "", user: str = "", session: str = "") -> UnitRun | None:
    """Open a run for a unit of this process; None if recording is off, or inside another unit.

    `name` is the unit's name; a setting that names the agent takes precedence.
    """
    process = _process
    if process is None or process.run.is_ended or not process.run.resolver.keeps:
        return None
    if isinstance(active_run(), UnitRun) or is_off():
        return None
    with process.lock:
        if process.start is None:
            process.start = _add_origin(end_start(process.run), process.forked_from)
        elif not process.count and process.start.process != process.run.run_id:
            process.start = start.look_at_forked(process.start, process.run)
        if process.redactor is None:
            process.redactor = process.build_redactor()
        before, process.count = process.count, process.count + 1
    app = config.read_stated_name() or name or process.app or process.run.app
    passed = process.find_passed()
    if passed and process.run.tally is not None:
        process.run.tally.count_not_recorded(passed)
        return _make_off(process, process.start, before, app)
    run = _make_run(process, process.start, before, app, user, session)
    process.open_runs[run.run_id] = run
    return run


def _add_origin(begun: Start, forked_from: Run | None) -> Start:
    """Name the parent of a forked process in its start, if the parent had acted before the fork.

    Only the fork of a server's worker can be replayed: then that is part of what the replay needs, else a hole.
    """
    if forked_from is None or not start.has_acted(forked_from):
        return begun
    if _forked_from is not None and _forked_from.forks_workers:
        return replace(begun, origin=forked_from.run_id)
    return replace(begun, holes=(*begun.holes, _BEFORE_FORK.format(forked_from.run_id)))


def _make_run(process: Process, begun: Start, before: int, app: str, user: str, session: str) -> UnitRun:
    from opentelemetry.sdk.resources import Resource

    from spanreplay.recording.spool.processor import SpoolSpanProcessor
    from spanreplay.redact.processor import RedactingSpanProcessor
    from spanreplay.runtime.emit import Emitter
    from spanreplay.seams.telemetry.other_spans import OtherSpans

    if process.redactor is None:
        raise AssertionError("a unit needs a redactor")
    run_id, redactor = ids.new_run_id(), process.redactor.run()
    redactor.adopt(process.run.redactor)  # secrets found while the process started are secrets in its units too
    resource = Resource({names.RUN_ID: run_id, names.APP: app, names.PROJECT: app})
    writer = _make_writer(process, run_id)
    recorded = RedactingSpanProcessor(redactor, [SpoolSpanProcessor(writer, process.shipper)], run_resource=resource)
    run = UnitRun(
        begun,
        max(process.run.tick(), begun.clock),  # a forked process restarts its clock
        before,
        app=app,
        run_id=run_id,
        emitter=Emitter([recorded], process.resource.merge(resource)),
        redactor=redactor,
        user_id=user or config.read_setting("SPANREPLAY_USER_ID"),
        session_id=session or config.read_setting("SPANREPLAY_SESSION_ID"),
        environment=process.run.environment,
        level=process.run.level,
    )
    if process.run.tally is not None:
        run.sampled = Sampled(run, process.run.tally, writer) if isinstance(writer, HeldWriter) else None
    if begun.process != process.run.run_id:
        run.environment[UNIT][WORKER] = process.run.run_id
    elif process.number:
        run.environment[UNIT][WORKER] = process.number
    if process.run.reads is not None and (pending := process.run.reads.describe_pending()):
        run.environment[UNIT][READS] = pending
    recorded.listener = run.who.look_at_span
    run.others = None if process.run.others is None else OtherSpans(run, recorded.on_end)
    reads_and_files.attach_reads(run)
    reads_and_files.attach_files(run)
    for before_unit in filter(None, (process.run, process.forked_from)):
        guard.guarded("what a start has made", _begin_without, run, before_unit)

    def end(ended: UnitRun) -> None:
        process.open_runs.pop(ended.run_id, None)
        guard.guarded("the spool of a unit", writer.close)

    run.on_end = end
    return run


def _begin_without(run: UnitRun, before: Run) -> None:
    """Note as absent the files that the process's start made: they don't exist when a replay of the unit begins."""
    state = run.written.state if run.written is not None else None
    if before.written is not None and state is not None:
        for path in before.written.list_made():
            state.note_absent(path)


def _make_off(process: Process, begun: Start, before: int, app: str) -> UnitRun:
    """Return the placeholder run of a unit that is not recorded."""
    from spanreplay.runtime.emit import Emitter

    emitter = Emitter([], process.resource)
    return OffRun(begun, begun.clock, before, app=app, emitter=emitter, redactor=process.run.redactor)


def _make_writer(process: Process, run_id: str) -> SpoolWriter:
    from spanreplay.recording.spool import SpoolWriter

    options: dict[str, Any] = {
        "fsync": config.read_setting("SPANREPLAY_FSYNC"),
        "bytes_max": config.SPOOL_BYTES_MAX,
        "to_ship": process.shipper is not None,
    }
    if process.run.tally is None or process.run.tally.rules.is_always:
        return SpoolWriter(process.data_dir, run_id, **options)
    kept = _nothing if process.shipper is None else process.shipper.notify
    return HeldWriter(process.data_dir, run_id, kept=kept, **options)


def _nothing() -> None:
    """No-op: there is no shipper to notify."""


def end_units(process: Process) -> None:
    """End units that are still open when their process ends, and settle the count of kept units."""
    if not process.run.resolver.keeps:
        return
    for run in list(process.open_runs.values()):
        run.hole(_ENDED)
        run.note_failure()
        guard.guarded("the end of a unit", run.finish, Outcome.CANCELLED)
    if process.run.tally is not None:
        settle(process.run.tally, process.data_dir, process.run, str(process.run.environment.get(FORKED_FROM, "")))


@contextlib.contextmanager
def outside_units() -> Iterator[None]:
    """A block for a worker's own work during a unit: its calls belong to the run of the process."""
    process = _process
    if process is None or process.run.is_ended:
        yield
        return
    with entered(process.run), inside_lane(process.run.root_lane), inside_call(None):
        yield


@contextlib.contextmanager
def unrecorded(*, is_from_start: bool = False) -> Iterator[None]:
    """A block in which nothing is recorded: a worker asks its database for work, as often as time passes.

    With `is_from_start` also before the first unit has begun.
    """
    process = _process
    begun = None if process is None else process.start
    if process is not None and begun is None and is_from_start:
        begun = Start(process.run.run_id, 0, 0)
    if process is None or process.run.is_ended or begun is None:
        yield
        return
    with entered(_make_off(process, begun, process.count, process.run.app)):
        yield


class inside_unit:  # noqa: N801 -- reads as a statement: `with inside_unit(run):`
    """A block for a unit's work: everything it calls and starts belongs to the unit's run.

    The context of a job may be a copy of one inside a call of another unit, which has scheduled it.
    """

    __slots__ = ("_call", "_entered", "_lane")

    def __init__(self, run: UnitRun) -> None:
        self._entered = entered(run)
        self._lane = inside_lane(run.root_lane)
        self._call = inside_call(None)

    def __enter__(self) -> None:
        self._entered.__enter__()
        self._lane.__enter__()
        self._call.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call.__exit__(kind, exc, traceback)
        self._lane.__exit__(kind, exc, traceback)
        guard.guarded("the end of a unit", self._entered.__exit__, kind, exc, traceback)
