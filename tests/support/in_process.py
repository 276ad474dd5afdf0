"""Record and replay functions in this process, through the real encoder, without files."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from spanreplay.model import attributes as names
from spanreplay.model.call import Recording
from spanreplay.model.errors import ReplayMiss
from spanreplay.recording.otlp.otlp import build_recording
from spanreplay.recording.spool.processor import encode_span
from spanreplay.redact import Redactor
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.resolve.session import Session
from spanreplay.replayer.schedule import step_clock, threads
from spanreplay.replayer.verdict import build_verdict
from spanreplay.runtime.caller.running import entered
from spanreplay.runtime.emit import Emitter
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.run import Run, active_run, root_lane_of_active_run
from spanreplay.seams.concurrency import asyncio_timers, lanes_of_work, thread_polls, thread_waits
from spanreplay.seams.concurrency.carried import carried
from spanreplay.seams.machine import reads_and_files

KEY: Final = b"k" * 32
Installer = Callable[[ModuleType, Patches], None]
Seams = tuple[tuple[Installer, ModuleType], ...]
"""Seams to install besides the lanes: a seam's `install` and the module it patches."""


class MemoryProcessor(SpanProcessor):
    """Keeps every span as the bytes that a spool would store."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep one span."""
        self.payloads.append(encode_span(span))

    def recording(self, run_id: str) -> Recording:
        """Return a run's recording so far."""
        return build_recording(map(ExportTraceServiceRequest.FromString, self.payloads), run_id)


@dataclass
class Replayed:
    """A replay in this process: its result, session and run; `error` is the exception that escaped."""

    session: Session
    run: Run
    result: Any = None
    error: BaseException | None = None
    memory: MemoryProcessor = field(default_factory=MemoryProcessor)

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict, without output and exit status."""
        return build_verdict(self.session, self.run, stdout={}, exit_status=None, ended_ns=self.run.start_ns)

    def kinds(self) -> list[str]:
        """Return the kinds of its divergences, in order."""
        return [d["kind"] for d in self.verdict["divergences"]]


def make_run(memory: SpanProcessor, session: Session | None = None, **options: Any) -> Run:
    """Make a run whose spans go to the given processor, usually in memory."""
    run_id = options.pop("run_id", "")
    key = options.pop("key", KEY)
    emitter = Emitter([memory], Resource({names.APP: "test"}))
    return Run(
        app="test",
        run_id=run_id,
        emitter=emitter,
        redactor=Redactor(key, "b").run(),
        session=session,
        **options,
    )


@contextmanager
def inside(run: Run, seams: Seams = ()) -> Iterator[Run]:
    """Run a block within a run, with lanes and seams patched; everything is restored afterwards."""
    patches = Patches()
    lanes_of_work.install(patches, root_lane_of_active_run, carried)
    asyncio_timers.install(patches)
    try:
        for install, module in seams:
            install(module, patches)
        if run.session is not None:
            threads.install(run.session.gate, patches)
            step_clock.install(run.session.gate, patches)
        thread_waits.install(patches)
        thread_polls.install(patches)
        with entered(run):
            yield run
    finally:
        patches.undo()


def call(function: Callable[[], Any]) -> Any:
    """Call a function, or run a coroutine function to its end."""
    return asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()


def recorded(function: Callable[[], Any], seams: Seams = (), *, with_reads: bool = False, **options: Any) -> Recording:
    """Record one call of a function, which must not raise; on request with its clock reads and threads."""
    memory = MemoryProcessor()
    run = make_run(memory, **options)
    if with_reads:
        reads_and_files.attach_reads(run)
    with inside(run, seams):
        call(function)
        run.finish()
    return memory.recording(run.run_id)


def replayed(
    function: Callable[[], Any],
    recording: Recording,
    plan: Plan | None = None,
    seams: Seams = (),
    *,
    key: bytes = KEY,
) -> Replayed:
    """Replay a recording against a function; an escaping exception is kept in `error`."""
    memory = MemoryProcessor()
    session = Session(recording, plan or Plan())
    outcome = Replayed(session, make_run(memory, session, key=key), memory=memory)
    reads_and_files.attach_reads(outcome.run)  # serves recorded reads, if any
    with inside(outcome.run, seams):
        try:
            outcome.result = call(function)
        except (Exception, ReplayMiss, SystemExit, asyncio.CancelledError) as exc:  # noqa: BLE001 -- the test inspects it
            outcome.error = exc
        outcome.run.finish()
    return outcome


def here(*_: object) -> str:
    """Return the path of the calling lane."""
    found = active_run()
    assert found is not None
    return current_lane(found.root_lane).path
