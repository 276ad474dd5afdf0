"""Puts recording or replay into the running process, and takes it out again."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from opentelemetry import context as otel_context
from opentelemetry import trace

from spanreplay import attributes as names
from spanreplay import config, descent, family, guard, ids, lanes, local, polls, timers, waits
from spanreplay._patch import Patches
from spanreplay.call import Outcome
from spanreplay.output import OutputCapture
from spanreplay.run import Run, carried, root_lane_of_active_run, set_process_run

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from spanreplay.redact import RunRedactor
    from spanreplay.replay.native_writes import NativeWrites
    from spanreplay.replay.session import Session
    from spanreplay.replay.world import World
    from spanreplay.seams._installed import InstalledSeams
    from spanreplay.seams._table import Seam

logger = logging.getLogger("spanreplay")
_OTLP_EXPORTERS = "opentelemetry.exporter.otlp"
_SOURCE_BYTES_MAX = 1_000_000
_SOURCES_MAX = 500
EXIT_SUSPENDED = 7
_FOLDERS = "SPANREPLAY_REPLAY_FOLDERS"
_leave = os._exit  # not the one that an installation patches


class Installation:
    """Everything that one process's recording or replay has put in place."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.patches = Patches()
        self.run: Run | None = None
        self.seams: InstalledSeams | None = None
        self.session: Session | None = None
        self._exit_status: int | None = None
        self._pid = os.getpid()
        self._spool: Any = None
        self._not_recorded = ""
        self._world: World | None = None
        self._denied: NativeWrites | None = None

    def install(self) -> None:
        """Build the way out, start the run, patch. Raises: SpanreplayError where a replay can't be set up."""
        if self.mode == "replay":
            self.session = self._load_session()
            if self.session.plan.dap:
                from spanreplay.replay.stepper import listen

                listen(self.session.plan.dap)
        provider = _find_provider()
        if provider is None or not _is_sampled(provider):
            self._not_recorded = "OTEL_SDK_DISABLED is set" if provider is None else "the sampler leaves this run out"
            if self.session is None:
                logger.warning("not recorded: %s", self._not_recorded)
                return
            provider = _new_provider()
        self._start_run(provider)
        self._patch()

    def _load_session(self) -> Session:
        from spanreplay.replay.plan import read_plan
        from spanreplay.replay.session import Session
        from spanreplay.replay.source import load_newest, load_source

        source = config.read_setting("SPANREPLAY_REPLAY_SOURCE")
        if source:
            recording = load_source(source)
        else:
            app = config.read_app_name(sys.argv[0] if sys.argv else "")
            recording = load_newest(app)
            guard.write_stderr(f"spanreplay: replaying the newest run of {app}, {recording.run_id}")
        plan = read_plan(config.read_setting("SPANREPLAY_REPLAY_PLAN"))
        return Session(recording, plan, _read_folders(list(sys.argv)))

    def _start_run(self, provider: TracerProvider) -> None:
        from spanreplay.env import describe_environment
        from spanreplay.record import Emitter

        data_dir = config.read_data_dir()
        family.settings["SPANREPLAY_DIR"] = str(data_dir)
        redactor: Any = _Lazy(lambda: _build_redactor(data_dir))
        ticket = family.take_ticket()
        run_id = ids.new_run_id() if ticket is None else ticket.run_id
        app = config.read_app_name(sys.argv[0] if sys.argv else "")
        resource = provider.resource.merge(_run_resource(run_id, app, self.session))
        processors = self._processors(provider, data_dir, run_id, redactor, resource)
        run = Run(
            app=app,
            run_id=run_id,
            emitter=Emitter(processors, resource),
            redactor=redactor,
            session=self.session,
            user_id=config.read_setting("SPANREPLAY_USER_ID"),
            session_id=config.read_setting("SPANREPLAY_SESSION_ID"),
            environment={**describe_environment(list(sys.argv)), **descent.read_parent()},
        )
        self.run = run
        run.on_suspend = self._suspend
        if self.session is not None and self.session.continuation is not None:
            run.environment = {**run.environment, names.RESUMES: self.session.recording.run_id}
        local.attach_reads(run)
        local.attach_files(run)
        capture = OutputCapture()
        if capture.install():
            run.output = capture
        otel_context.attach(run.context)
        set_process_run(run)
        family.offer(run)
        if ticket is not None:
            run.join(ticket)

    def _processors(
        self, provider: TracerProvider, data_dir: Path, run_id: str, redactor: RunRedactor, resource: Any
    ) -> list[SpanProcessor]:
        """Our spool and the user's own exporters, all behind the redactor."""
        from spanreplay.redact.processor import RedactingSpanProcessor
        from spanreplay.spool import SpoolWriter
        from spanreplay.spool.processor import SpoolSpanProcessor

        shipper = self._shipper(data_dir)
        writer = SpoolWriter(
            data_dir,
            run_id,
            fsync=config.read_setting("SPANREPLAY_FSYNC"),
            bytes_max=config.SPOOL_BYTES_MAX,
            to_ship=shipper is not None,
        )
        self._spool = SpoolSpanProcessor(writer, shipper)
        kept = [p for p in provider._active_span_processor._span_processors if not _is_default_export(p)]
        chain = RedactingSpanProcessor(redactor, [self._spool, *kept], run_resource=resource)
        provider._active_span_processor._span_processors = (chain,)
        # What is added later must not see raw spans either
        self.patches.replace(provider, "add_span_processor", chain.add)
        return [chain]

    def _shipper(self, data_dir: Path) -> Any:
        from spanreplay.spool.target import read_target

        target = read_target()
        if target is None:
            return None
        from spanreplay.spool import Shipper

        return Shipper(data_dir, target)

    def _patch(self) -> None:
        from spanreplay.seams._installed import InstalledSeams

        lanes.install(self.patches, root_lane_of_active_run, carried)
        timers.install(self.patches)
        if self.session is not None and self.run is not None:
            from spanreplay.replay import kernel_guard, native_writes, world

            self.session.guard = kernel_guard.enter(self.session.plan)
            self._world = world.install(self.session, self.run, self.patches)
            self.run.overlay = self._world.files
            self._denied = native_writes.watch(self.session, self.run, self.patches)
        self.seams = InstalledSeams(self._seam_missed if self.session is None else self._seam_failed)
        self.seams.register()
        self._watch_exit()
        os.register_at_fork(after_in_parent=self._forked_parent, after_in_child=self._forked_child)
        if self.session is not None and self.run is not None:
            from spanreplay.replay import netguard, step_clock, threads

            threads.install(self.session.gate, self.patches)
            step_clock.install(self.session.gate, self.patches)
            netguard.install(self.session, self.run, netguard.OwnEndpoint(_own_url()))
        waits.install(self.patches)  # around what a replay does to waits
        polls.install(self.patches)

    def _seam_failed(self, seam: Seam, exc: Exception) -> None:
        # A library that can't be patched would go live
        guard.write_stderr(f"error: the replay can't cover {seam.name}: {type(exc).__name__}: {exc}")
        self._pid = 0  # no verdict: nothing was compared
        os._exit(3)

    def _seam_missed(self, seam: Seam, exc: Exception) -> None:
        from spanreplay.seams._installed import log_failure

        # What a library does that could not be patched is not in the recording
        if self.run is not None:
            self.run.hole(f"{seam.name} could not be covered ({type(exc).__name__}): its calls are not in this run")
        log_failure(seam, exc)

    def _watch_exit(self) -> None:
        def leave(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():  # elsewhere it only ends the thread
                self._exit_status = _to_status(args[0] if args else kwargs.get("status"))
            return wrapped(*args, **kwargs)

        def leave_at_once(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if os.getpid() == self._pid:
                status = args[0] if args else kwargs.get("status")
                guard.guarded("the end of the run", self.finish, status if isinstance(status, int) else None)
            return wrapped(*args, **kwargs)

        self.patches.wrap(sys, "exit", leave)
        self.patches.wrap(os, "_exit", leave_at_once)  # it runs no atexit function

    def _forked_parent(self) -> None:
        if family.starting.is_now:
            return
        if os.getpid() == self._pid and self.run is not None and not self.run.is_ended:
            self.run.hole(f"the process forked at {ids.find_caller(2)}: calls of the child are not in this run")

    def _forked_child(self) -> None:
        if self.session is not None:
            self.session.is_forked = True
        else:
            set_process_run(None)

    def _suspend(self, prompt: str) -> NoReturn:
        """End the process at once: nothing that runs on could be recorded."""
        run_id = "" if self.run is None else self.run.run_id
        self.finish(EXIT_SUSPENDED)
        for stream in (sys.stdout, sys.stderr):
            guard.guarded("standard output", stream.flush)
        guard.write_stderr(
            f"spanreplay: run {run_id} is suspended: it waits for an answer to {prompt!r}\n"
            f"hint: spanreplay resume {run_id} --input ANSWER"
        )
        _leave(EXIT_SUSPENDED)

    def post(self) -> None:
        """Write the doctor's report now and again at the end, in case the process never ends well."""
        self._write_doctor()

    def _write_doctor(self) -> None:
        path = os.environ.get("SPANREPLAY_DOCTOR", "")
        if not path:
            return
        run = self.run
        report = {
            "mode": self.mode,
            "not_recorded": self._not_recorded,
            "run_id": self.run.run_id if self.run is not None else "",
            "seams": self.seams.describe() if self.seams is not None else [],
            "failures": guard.failures,
            "leaks": [] if run is None or run.leaks is None else run.leaks.describe(),
            "reads": [] if run is None or run.census is None else run.census.describe(),
        }
        Path(path).write_text(json.dumps(report), encoding="utf-8")

    def finish(self, status: int | None = None) -> None:
        """End the run at process exit: manifest, verdict, delivery. Does nothing in a forked child."""
        run = self.run
        if run is not None and run.is_member:
            run.finish()
        if os.getpid() != self._pid or (run is not None and run.is_ended):
            return
        self._write_doctor()
        if run is None:
            return
        if status is None:
            status = self._find_status()
        if self.session is not None:
            self._write_verdict(run, status)
        run.finish(Outcome.ERROR if status else Outcome.OK, status)
        if run.output is not None:
            run.output.uninstall()
        if self._spool is not None:
            self._spool.force_flush(config.SHIP_EXIT_TIMEOUT_MS)
            self._spool.shutdown()

    def _find_status(self) -> int | None:
        """The exit status, as far as it can be known here; None if it can't."""
        if getattr(sys, "last_value", None) is not None:
            return 1
        if self._exit_status is None and _may_raise_exit():
            return None
        return self._exit_status or 0

    def _write_verdict(self, run: Run, status: int | None) -> None:
        from spanreplay.replay.verdict import build_verdict

        if self.session is None:
            return
        if self._denied is not None:
            guard.guarded("what native code was denied", self._denied.settle, status)
        run.close_open_calls()
        run.gather()
        if run.reads is not None:
            run.reads.settle()
        stdout = run.output.summarize(run.redactor) if run.output is not None else {}
        verdict = build_verdict(self.session, run, stdout=stdout, exit_status=status, ended_ns=ids.now_ns())
        path = config.read_setting("SPANREPLAY_REPLAY_REPORT")
        if path:
            Path(path).write_text(json.dumps(verdict), encoding="utf-8")
        else:
            guard.write_stderr(f"spanreplay: {verdict['verdict']} ({verdict['counts']})")


class _Lazy:
    """Stands for a value that is built at first use: no key file before there is something to redact."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            built = self.__dict__.get("_built")
            if built is None:
                built = self.__dict__["_built"] = self._build()
        value = getattr(built, name)
        if callable(value):
            self.__dict__[name] = value  # the next call finds it directly
        return value


def _build_redactor(data_dir: Path) -> RunRedactor:
    from spanreplay.redact import Redactor, load_or_create_key

    key_file = config.read_setting("SPANREPLAY_REDACT_KEY")
    key, key_id = load_or_create_key(Path(key_file) if key_file else data_dir / "redact.key")
    return Redactor(key, key_id).run()


def _read_folders(argv: list[str]) -> dict[str, str]:
    """Where the agent lies in this replay; the processes that it starts may work elsewhere, and are told."""
    from spanreplay.env import find_folders

    stated = config.read_setting(_FOLDERS)
    folders: dict[str, str] = json.loads(stated) if stated else find_folders(argv)
    family.settings[_FOLDERS] = json.dumps(folders)
    return folders


def _find_provider() -> TracerProvider | None:
    """The process's SDK provider, made now if there is none; None if the SDK is disabled."""
    from opentelemetry.sdk.trace import TracerProvider

    if config.read_flag("OTEL_SDK_DISABLED"):
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        return provider
    if isinstance(provider, trace.ProxyTracerProvider):
        made = _new_provider()
        trace.set_tracer_provider(made)
        return made
    return None


def _new_provider() -> TracerProvider:
    from opentelemetry.sdk.trace import TracerProvider

    return TracerProvider()


def _is_sampled(provider: TracerProvider) -> bool:
    decision = provider.sampler.should_sample(None, ids.new_trace_id(), "run")
    return bool(decision.decision.is_sampled())  # type: ignore[no-untyped-call]  # untyped in the SDK


def _run_resource(run_id: str, app: str, session: Session | None) -> Any:
    from opentelemetry.sdk.resources import Resource

    is_own = session is None or session.continuation is not None
    project = app if session is None or is_own else f"{session.recording.root.app or app}-replays"
    return Resource({names.RUN_ID: run_id, names.APP: app, names.PROJECT: project})


def _is_default_export(processor: Any) -> bool:
    """Whether this is OTLP export, which our shipper takes over (it goes to the same endpoint)."""
    exporter = getattr(processor, "span_exporter", None)
    if exporter is None:
        exporter = getattr(getattr(processor, "_batch_processor", None), "_exporter", None)
    return str(type(exporter).__module__).startswith(_OTLP_EXPORTERS)


def _own_url() -> str:
    from spanreplay.spool.target import read_target

    target = read_target()
    return "" if target is None else target.url


def _to_status(code: object) -> int:
    """The exit status of `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _may_raise_exit() -> bool:
    """Whether the program raises SystemExit by itself, in which case nobody in the process knows the status."""
    main = sys.modules.get("__main__")
    # Python 3.14 has taken the program's `__file__` away by now, but not its loader
    program = getattr(main, "__file__", None) or getattr(getattr(main, "__loader__", None), "path", None)
    if program is None:
        return any("SystemExit" in word for word in sys.orig_argv)
    files = {program, *(str(getattr(module, "__file__", None) or "") for module in tuple(sys.modules.values()))}
    sources = [Path(file) for file in files if file.endswith(".py") and ids.is_agent_file(file)]
    return len(sources) > _SOURCES_MAX or any(map(_holds_exit, sources))


def _holds_exit(source: Path) -> bool:
    try:
        is_long = source.stat().st_size > _SOURCE_BYTES_MAX
        return is_long or b"SystemExit" in source.read_bytes()
    except OSError:
        return True
