"""Installs recording or replay in the running process, and ends it with the process."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from spanreplay.activate.exit_status import may_raise_exit, to_status
from spanreplay.activate.redactors import LazyRedactor, build_redactor, load_redactor
from spanreplay.model import attributes as names
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Outcome
from spanreplay.model.levels import FULL, Level, level_of, level_of_recording
from spanreplay.model.own_threads import one_at_a_time
from spanreplay.recording import catalog
from spanreplay.recording.spool.target import read_target
from spanreplay.runtime import lanes
from spanreplay.runtime import processes as process_group
from spanreplay.runtime.order import received_signals
from spanreplay.runtime.order.steps import check_handles
from spanreplay.runtime.patch_groups import PatchGroups, describe_missing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process import parent_run
from spanreplay.runtime.process.last_error import find_last_error
from spanreplay.runtime.process.outside_io import starts_program
from spanreplay.runtime.process.stdout import OutputCapture
from spanreplay.runtime.process.termination import Termination
from spanreplay.runtime.run import Run, root_lane_of_active_run, set_process_run
from spanreplay.seams.concurrency import asyncio_timers as timers
from spanreplay.seams.concurrency import lanes_of_work, thread_polls
from spanreplay.seams.concurrency import thread_waits as waits
from spanreplay.seams.concurrency.carried import carried
from spanreplay.seams.machine import reads_and_files
from spanreplay.seams.machine.files import own_folder
from spanreplay.seams.machine.outside.forks import note_fork
from spanreplay.seams.telemetry import named_exporters, providers

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from spanreplay.activate.suites import Order
    from spanreplay.redact.processor import RedactingSpanProcessor
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.replayer.sandbox.native_writes import NativeWrites
    from spanreplay.replayer.sandbox.world import World
    from spanreplay.runtime.emit import Emitter
    from spanreplay.seams.installed import InstalledSeams
    from spanreplay.seams.table import Seam

logger = logging.getLogger("spanreplay")
EXIT_SUSPENDED = 7
_SIGNALLED = 128
"""A shell adds this to the number of the signal that killed a program."""
_STARTER, _OURS = "starter", "spanreplay"
_leave = os._exit  # the unpatched function


class Installation:
    """Everything that recording or replay has installed in one process."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.patches = Patches()
        self.run: Run | None = None
        self.level: Level = FULL
        self.seams: InstalledSeams | None = None
        self.units: InstalledSeams | None = None
        self.groups: PatchGroups | None = None
        self.session: Session | None = None
        self.suite: Order | None = None
        self.is_dividing = False
        """Whether this process is forking for the units of a suite, as part of its replay."""
        self.send_verdict: Callable[[str], object] | None = None
        """Callback for the verdict as JSON; None: it is written to the file that the settings name."""
        self.is_started_by_us = providers.is_starter_ours(sys.modules)
        """Whether `spanreplay record` started the agent; in a replay, whether it started the recorded agent."""
        self._exit_status: int | None = None
        self._pid = os.getpid()
        self._spool: Any = None
        self._not_recorded = ""
        self.world: World | None = None
        self._denied: NativeWrites | None = None
        self._target = read_target()
        self._is_shared = False
        self._folders: dict[str, str] = {}
        self._data_dir = Path()
        self._resource: Any = None

    def install(self) -> None:
        """Build the export pipeline, start the run, patch. Raises: SpanreplayError if a replay can't be set up."""
        from spanreplay.units._table import starts_server
        from spanreplay.units.messages.chosen import are_chosen

        self.level = level_of(is_server=starts_server() or are_chosen())
        if self.mode == "replay":
            from spanreplay.activate.sessions import load_session, read_folders
            from spanreplay.activate.suites import read_order

            self.suite = read_order()
            self._folders = read_folders(list(sys.argv))
            self.session = load_session(self._folders, is_start=self.suite is not None)
            self.level = level_of_recording(self.session.recording.root)
            self.is_started_by_us = self.session.recording.root.env.get(_STARTER) == _OURS
            if self.session.plan.dap:
                from spanreplay.replayer.resolve.stepper import listen

                listen(self.session.plan.dap)
        provider = providers.find_provider()
        if provider is None or not providers.is_sampled(provider):
            self._not_recorded = "OTEL_SDK_DISABLED is set" if provider is None else "the sampler leaves this run out"
            if self.session is None:
                logger.warning("not recorded: %s", self._not_recorded)
                return
            provider = providers.make_provider()
        self._start_run(provider)
        self._patch()

    def _start_run(self, provider: TracerProvider) -> None:
        from spanreplay.runtime.process.environment import describe_environment
        from spanreplay.seams.telemetry import stand_in
        from spanreplay.seams.telemetry.other_spans import OtherSpans

        self._data_dir = data_dir = config.read_data_dir()
        self._resource = provider.resource
        process_group.settings["SPANREPLAY_DIR"] = str(data_dir)
        process_group.settings["SPANREPLAY_LEVEL"] = self.level.name
        join_token = process_group.take_join_token()
        redactor: Any = LazyRedactor(lambda: build_redactor(data_dir))
        started = {_STARTER: _OURS} if self.is_started_by_us else {}
        argv = list((join_token and join_token.argv) or sys.argv)
        environment = {**describe_environment(argv), **parent_run.read_parent(), **started}
        run, recorded = self._make_run("" if join_token is None else join_token.run_id, redactor, environment)
        if self.session is not None and self.session.continuation is not None:
            run.environment = {**run.environment, **self.session.continuation.describe_origin()}
        if self.session is not None:
            self.session.recorded_env.give(run.redactor, is_member=join_token is not None)
        reads_and_files.attach_files(run)
        capture = OutputCapture()
        if capture.install():
            run.output = capture
        run.others = OtherSpans(run, recorded.on_end)
        self.groups = groups = PatchGroups(run, is_replay=self.session is not None, level=self.level)
        groups.install("spans of the program", self.patches, run.others.install, provider)
        redact = named_exporters.redact_exports
        groups.install("exporters that the environment names", self.patches, redact, provider, redactor, self._target)
        target = self._target
        if target is not None and not config.read_setting("SPANREPLAY_COLLECTOR"):
            watch = providers.watch_exporters
            groups.install("the program's exporters", self.patches, watch, target, self._share)
        if not providers.is_global(provider):
            groups.install("spans without a provider", self.patches, stand_in.install, provider)
        set_process_run(run)
        process_group.offer(run)
        if join_token is not None:
            run.join(join_token)
        self._offer_units(run)

    def _offer_units(self, run: Run, forked_from: Run | None = None) -> None:
        """Make each unit that this process serves its own run."""
        from spanreplay.units import factory

        data_dir, shipper = self._data_dir, self._spool.shipper
        finish = None if self.session is None else self._finish_unit
        process = factory.Process(run, self._resource, data_dir, lambda: load_redactor(data_dir), shipper, finish)
        process.forked_from = forked_from
        if self.suite is not None:
            from spanreplay.activate.suites import Division

            process.divide = Division(self, self.suite, self._folders).divide
        factory.offer(process)

    def _finish_unit(self, status: int) -> None:
        """End the replay of a unit, and with it the process's run."""
        self.finish(status)
        if self.world is not None:
            self.world.forget()

    def _make_run(
        self, run_id: str, redactor: Any, environment: Mapping[str, Any]
    ) -> tuple[Run, RedactingSpanProcessor]:
        """Create a run of this process and the processor of its spans; its spool is still empty."""
        run_id = run_id or ids.new_run_id()
        app = config.read_app_name(sys.argv[0] if sys.argv else "")
        recorded, emitter = self._make_way_out(run_id, app, redactor)
        self.run = run = Run(
            app=app,
            run_id=run_id,
            emitter=emitter,
            redactor=redactor,
            session=self.session,
            user_id=config.read_setting("SPANREPLAY_USER_ID"),
            session_id=config.read_setting("SPANREPLAY_SESSION_ID"),
            environment=environment,
            level=self.level,
        )
        recorded.listener = run.who.look_at_span
        run.on_suspend = self._suspend
        reads_and_files.attach_reads(run)
        return run, recorded

    def _make_way_out(self, run_id: str, app: str, redactor: Any) -> tuple[RedactingSpanProcessor, Emitter]:
        from spanreplay.redact.processor import RedactingSpanProcessor
        from spanreplay.runtime.emit import Emitter

        run_resource = _run_resource(run_id, app, self.session)
        self._spool = self._open_spool(run_id)
        recorded = RedactingSpanProcessor(redactor, [self._spool], run_resource=run_resource)
        return recorded, Emitter([recorded], self._resource.merge(run_resource))

    def become_unit(self, session: Session, run: Run, send_verdict: Callable[[str], object]) -> None:
        """Continue, in a process forked for one unit of a suite, with a new run and its own verdict."""
        self._pid, self.suite, self.send_verdict = os.getpid(), None, send_verdict
        run_id = ids.new_run_id()
        recorded, emitter = self._make_way_out(run_id, run.app, run.redactor)
        recorded.listener = run.who.look_at_span
        run.restart(run_id, emitter)
        if run.others is not None:
            run.others.follow(run, recorded.on_end)
        self._offer_units(run)

    def _open_spool(self, run_id: str) -> Any:
        from spanreplay.recording.spool import SpoolWriter
        from spanreplay.recording.spool.processor import SpoolSpanProcessor

        shipper = None
        if self._target is not None:  # a spool that stays here needs no HTTP client
            from spanreplay.recording.spool import Shipper

            shipper = Shipper(self._data_dir, self._target)
        writer = SpoolWriter(
            self._data_dir,
            run_id,
            fsync=config.read_setting("SPANREPLAY_FSYNC"),
            bytes_max=config.SPOOL_BYTES_MAX,
            to_ship=shipper is not None,
        )
        spool = SpoolSpanProcessor(writer, shipper)
        if self._is_shared:
            spool.doubt()
        return spool

    def _share(self) -> None:
        """Note that the program exports to our OTEL_EXPORTER_OTLP_ENDPOINT too, which may be its own backend."""
        self._is_shared = True
        self._spool.doubt()

    def _patch(self) -> None:
        from spanreplay.seams.installed import InstalledSeams
        from spanreplay.units._table import UNITS
        from spanreplay.units.messages import chosen

        is_replay, own_url = self.session is not None, "" if self._target is None else self._target.url
        on_failure = self._seam_failed if is_replay else self._seam_missed
        groups = self.groups = self.groups or PatchGroups(self.run, is_replay=is_replay, level=self.level)
        groups.install("the folder of recordings", self.patches, own_folder.install, self.run, self._data_dir)
        lanes_of_work.install(self.patches, root_lane_of_active_run, carried, groups)
        groups.install("timers", self.patches, timers.install)
        groups.install("steps of event loops", self.patches, check_handles)
        if self.session is not None and self.run is not None:
            from spanreplay.replayer.sandbox import kernel_guard, native_writes, world

            self.session.guard = kernel_guard.enter(self.session.plan, self.session.recording.root.manifest, own_url)
            self.world = world.install(self.session, self.run, self.patches)
            self.run.overlay = self.world.files
            self._denied = native_writes.watch(self.session, self.run, self.patches)
        self.seams = InstalledSeams(on_failure, self.level, is_replay=is_replay)
        self.seams.register()
        self.units = InstalledSeams(on_failure, table=UNITS)
        self.units.register()
        groups.install("messages as units", self.patches, chosen.install, self.run)
        groups.install("the exit status", self.patches, self._watch_exit)
        if self.session is None:
            groups.install("the end by a signal", self.patches, Termination(self._finish_terminated).install)
        groups.install("signals", self.patches, received_signals.install)
        os.register_at_fork(after_in_parent=self._forked_parent, after_in_child=self._forked_child)
        if self.session is not None and self.run is not None:
            from spanreplay.activate import owner, time_limit
            from spanreplay.replayer import tracebacks
            from spanreplay.replayer.sandbox import netguard
            from spanreplay.replayer.schedule import step_clock, threads
            from spanreplay.replayer.schedule.long_sleeps import LongSleeps

            tracebacks.install(self.patches)
            threads.install(self.session.gate, self.patches, LongSleeps.of(self.session.recording))
            step_clock.install(self.session.gate, self.patches)
            time_limit.install(self.session, self.finish)
            owner.install(self.finish)
            netguard.install(self.session, self.run, netguard.OwnEndpoint(own_url))
        groups.install("waits of threads", self.patches, waits.install)  # wraps the replay's patches of waits
        groups.install("looks at futures and threads", self.patches, thread_polls.install)

    def _seam_failed(self, seam: Seam, exc: Exception) -> None:
        # An unpatched library would run live
        guard.write_stderr(f"error: the replay can't cover {seam.name}: {type(exc).__name__}: {exc}")
        self._pid = 0  # suppresses the verdict: nothing was compared
        os._exit(3)

    def _seam_missed(self, seam: Seam, exc: Exception) -> None:
        from spanreplay.seams.installed import log_failure, name_library

        # Calls of an unpatched library are missing from the recording
        if self.run is not None:
            library, why = name_library(seam), describe_missing(exc)
            self.run.hole(f"{seam.name} could not be covered ({library}: {why}): its calls are not in this run")
        log_failure(seam, exc)

    def _watch_exit(self, patches: Patches) -> None:
        def leave(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():  # in other threads it ends only the thread
                self._exit_status = to_status(args[0] if args else kwargs.get("status"))
            return wrapped(*args, **kwargs)

        def leave_at_once(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if os.getpid() == self._pid:
                status = args[0] if args else kwargs.get("status")
                guard.guarded("the end of the run", self.finish, status if isinstance(status, int) else None)
            return wrapped(*args, **kwargs)

        patches.wrap(sys, "exit", leave)
        patches.wrap(os, "_exit", leave_at_once)  # os._exit runs no atexit functions

    def _forked_parent(self) -> None:
        if process_group.starting.is_now or self.is_dividing:
            return
        if os.getpid() == self._pid and self.run is not None and not self.run.is_ended:
            note_fork(self.run)

    def finish_start(self) -> None:
        """End a replay that made only the start and no unit, without a verdict."""
        if self.run is not None:
            self.run.finish()
        self._spool.shutdown()
        if self.world is not None:
            self.world.forget()
        for stream in (sys.stdout, sys.stderr):
            guard.guarded("standard output", stream.flush)
        _leave(0)

    def _forked_child(self) -> None:
        if self.session is not None:
            self.session.is_forked = True
            return
        set_process_run(None)
        if starts_program(sys._getframe(1)):
            return
        parent = self.run
        # A multiprocessing process joins the run, and so do those that its forkserver forks
        if parent is not None and not parent.is_member and not process_group.starting.is_now:
            guard.guarded("the run of a forked process", self._start_forked, parent)

    def _start_forked(self, parent: Run) -> None:
        """Begin a run for this forked process, which may be a server's long-lived worker."""
        self._pid, self._exit_status = os.getpid(), None
        if parent.output is not None:
            parent.output.uninstall()
        redactor: Any = LazyRedactor(lambda: build_redactor(self._data_dir, parent.redactor))
        run, recorded = self._make_run("", redactor, {**parent.environment, catalog.FORKED_FROM: parent.run_id})
        reads_and_files.attach_files(run)
        lanes.enter_lane(run.root_lane)
        if parent.others is not None:
            parent.others.follow(run, recorded.on_end)
        set_process_run(run)
        process_group.offer(run)
        self._offer_units(run, forked_from=parent)

    def _suspend(self, prompt: str) -> NoReturn:
        """End the process at once, because nothing after this point could be recorded."""
        run_id = self.run.run_id if self.run is not None else ""
        self.finish(EXIT_SUSPENDED)
        for stream in (sys.stdout, sys.stderr):
            guard.guarded("standard output", stream.flush)
        guard.write_stderr(
            f"spanreplay: run {run_id} is suspended: it waits for an answer to {prompt!r}\n"
            f"hint: spanreplay resume {run_id} --input ANSWER"
        )
        _leave(EXIT_SUSPENDED)

    def post(self) -> None:
        """Write the doctor's report now, and again at the end, in case the process doesn't end normally."""
        self._write_doctor()

    def _write_doctor(self) -> None:
        path = os.environ.get("SPANREPLAY_DOCTOR", "")
        if not path:
            return
        run = self.run
        report = {
            "mode": self.mode,
            "level": self.level.name,
            "patches": {
                **(self.groups.counts if self.groups is not None else {}),
                **(self.seams.count() if self.seams is not None else {}),
            },
            "not_recorded": self._not_recorded,
            "run_id": run.run_id if run is not None else "",
            "seams": [
                *(self.groups.missing if self.groups is not None else ()),
                *(self.seams.describe() if self.seams is not None else ()),
                *(self.units.describe() if self.units is not None else ()),
            ],
            "failures": guard.failures,
            "not_heard": "" if run is None or run.others is None else run.others.name_unheard(),
            "leaks": [] if run is None or run.leaks is None else run.leaks.describe(),
            "reads": [] if run is None or run.audit is None else run.audit.describe(),
        }
        Path(path).write_text(json.dumps(report), encoding="utf-8")

    @one_at_a_time  # a server's thread may end a replay just as the main thread ends
    def finish(self, status: int | None = None) -> None:
        """End the run at process exit: manifest, verdict, delivery. No-op in a forked child without its own run."""
        run = self.run
        if run is not None and run.is_member:
            run.finish()
        if os.getpid() != self._pid or (run is not None and run.is_ended):
            return
        if run is not None and catalog.FORKED_FROM in run.environment:
            if not run.has_calls:
                run.end_units()
                return  # most processes are forked for other work
        else:
            self._write_doctor()
        if run is None:
            return
        status = self._find_status() if status is None else status
        if self.session is not None:
            self._write_verdict(run, status)
        ended = Outcome.CANCELLED if run.ended_by else Outcome.ERROR if status else Outcome.OK
        run.finish(ended, status)
        if run.output is not None:
            run.output.uninstall()
        if self._spool is not None:
            is_delivered = bool(self._spool.force_flush(config.SHIP_EXIT_TIMEOUT_MS))
            self._spool.shutdown()
            if self.session is None:
                guard.guarded("the line at the end", self._say_end, run, status, is_delivered)

    def _finish_terminated(self) -> None:
        """End the run of a process killed by SIGTERM; a member of another process's run loses its part."""
        if self.run is not None and self.run.is_member:
            self.run.end_units()
        elif self.run is not None:
            self.run.ended_by = "SIGTERM"
            if self.run.output is not None:
                self.run.output.flushes = False
            self.finish(_SIGNALLED + signal.SIGTERM)

    def _say_end(self, run: Run, status: int | None, is_delivered: bool) -> None:
        from spanreplay.activate import summary

        if not parent_run.read_parent():  # otherwise the run that started this process reports it
            folder = Path(process_group.settings["SPANREPLAY_DIR"])
            summary.say(run, status, folder, self._spool.report, is_delivered=is_delivered)

    def _find_status(self) -> int | None:
        """Return the exit status; None if it can't be known here."""
        if find_last_error() is not None:
            return 1
        if self._exit_status is None and may_raise_exit():
            return None
        return self._exit_status or 0

    def _write_verdict(self, run: Run, status: int | None) -> None:
        from spanreplay.replayer.verdict import build_verdict
        from spanreplay.units import given

        if self.session is None:
            return
        if self._denied is not None:
            guard.guarded("what native code was denied", self._denied.settle, status)
        run.close_open_calls()
        run.gather()
        if run.reads is not None:
            run.reads.settle()
        self.session.recorded_env.compare(run.redactor)  # as a recording does before it writes the output
        output = run.output.describe(run.redactor) if run.output is not None else {}
        printed: dict[str, Any] = {"stdout": output.get("stdout", {}), "stderr": output.get("stderr")}
        verdict = build_verdict(self.session, run, **printed, exit_status=status, ended_ns=ids.now_ns())
        path = config.read_setting("SPANREPLAY_REPLAY_REPORT")
        if self.send_verdict is not None:
            self.send_verdict(json.dumps(verdict))
        elif path:
            guard.guarded("the answer", given.write_out, self.session.directions.asked)
            Path(path).write_text(json.dumps(verdict), encoding="utf-8")
        else:
            guard.write_stderr(f"spanreplay: {verdict['verdict']} ({verdict['counts']})")


def _run_resource(run_id: str, app: str, session: Session | None) -> Any:
    from opentelemetry.sdk.resources import Resource

    is_own = session is None or session.continuation is not None
    project = app if session is None or is_own else f"{session.recording.root.app or app}-replays"
    return Resource({names.RUN_ID: run_id, names.APP: app, names.PROJECT: project})
