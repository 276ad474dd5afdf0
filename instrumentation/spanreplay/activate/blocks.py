"""Record or replay a block of code in this process: `with record(): …`, `with replay(source): …`.

A block installs seams, lanes and, in a replay, completion order, virtual time, the network guard and the sandbox, and
removes them at its end: every patched attribute is again the original object. Only one block can run at a time.

Files that the block writes in a replay are visible in the block, and through `read_file` after it; the real files are
unchanged. The test runner, and threads started before the block that do nothing for it, are not affected.

Standard output and exit status belong to a process, not a block: they are neither recorded nor compared. Calls through
names imported before the block (`from time import time`) are not recorded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import attributes as names
from spanreplay.model import config, ids
from spanreplay.model.call import Outcome, Recording, RootRecord
from spanreplay.model.errors import ConfigError
from spanreplay.model.levels import level_of, level_of_recording
from spanreplay.model.own_threads import make_lock
from spanreplay.recording.kept_calls import KeptCalls
from spanreplay.recording.whole_file import write_atomically
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.runtime import lanes, processes
from spanreplay.runtime.caller.places import set_code
from spanreplay.runtime.patch_groups import PatchGroups, describe_missing
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.surroundings import Surroundings, set_aside, watch_outside
from spanreplay.runtime.run import Run, active_run, root_lane_of_active_run, set_process_run
from spanreplay.seams.concurrency import asyncio_timers as timers
from spanreplay.seams.concurrency import lanes_of_work, thread_polls
from spanreplay.seams.concurrency import thread_waits as waits
from spanreplay.seams.concurrency.carried import carried
from spanreplay.seams.machine import reads_and_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.sdk.trace import SpanProcessor

    from spanreplay.redact import RunRedactor
    from spanreplay.replayer.divergence import Divergence
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.replayer.sandbox.world import World
    from spanreplay.seams.installed import InstalledSeams
    from spanreplay.seams.table import Seam

_CLOCK, _LIVE = "clock", "live"
__all__ = ["Plan", "RecordBlock", "ReplayBlock", "record", "replay"]

_claiming: Final = make_lock()
_current: _Block | None = None
_is_fork_watched = False


def record(*, name: str = "", directory: str | Path | None = None) -> RecordBlock:
    """Return a block whose calls are recorded; `with record(name="agent") as recorded:`.

    `name` is the agent's name; default: as in a recorded process. `directory` is the folder for the recording, with the
    layout of `.spanreplay/`, the default. Nothing is shipped. If a question to a human suspends the run
    (SPANREPLAY_HUMAN), the block raises Suspended.
    Raises: ConfigError on entering while another block or a whole process is being recorded or replayed.
    """
    return RecordBlock(name or config.read_app_name(sys.argv[0] if sys.argv else ""), directory)


def replay(source: str | Path | Recording, *, plan: Plan | None = None, sandbox: bool = True) -> ReplayBlock:
    """Return a block that runs against a recording; `with replay("run.replay") as session:`, then `session.verdict()`.

    `source` is a `.replay` file, a run id or a Recording. In the block a call without a recorded answer raises
    ReplayMiss, which leaves the block; the network is denied. No recording is written. `plan` says which calls are
    served, run live or changed, in the terms of `spanreplay replay`: Plan().stub("llm").live("tool:get_*").limit(0.50).
    Files that the block writes exist only in the replay, and programs and files outside the calls are denied; without
    `sandbox` the block uses real files and programs.
    Raises: ConfigError, SourceError and ServiceError on entering; ConfigError also as `record` does.
    """
    return ReplayBlock(source, plan or Plan(), has_sandbox=sandbox)


class _Block:
    """The base of both kinds of block: its run, and the patches it installs and removes."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._session: Session | None = None
        self._lanes = Patches()
        self._order = Patches()
        self._seams: InstalledSeams | None = None
        self._inside: lanes.inside_lane | None = None
        self._world: World | None = None
        self._has_sandbox = False
        self._folder = Path()
        self.surroundings = Surroundings()
        """Context from a test runner; set before the block is entered."""

    @property
    def run_id(self) -> str:
        """The id of the block's run; empty before it is entered."""
        return "" if self._run is None else self._run.run_id

    @property
    def redactor(self) -> RunRedactor | None:
        """Replaces secrets as the block's calls do; None before it is entered."""
        return None if self._run is None else self._run.redactor

    def _install(self, run: Run) -> None:
        from spanreplay.seams.installed import InstalledSeams

        _watch_forks()
        self._run = run
        self._folder = Path.cwd()
        reads_and_files.attach_reads(run)
        if self._session is not None:
            self._session.recorded_env.give(run.redactor)
        is_outside = watch_outside(run)
        reads_and_files.attach_files(run, self.surroundings, is_outside)
        set_code(self.surroundings.directory)
        groups = PatchGroups(run, is_replay=self._session is not None, level=run.level)
        lanes_of_work.install(self._lanes, root_lane_of_active_run, carried, groups)
        groups.install("timers", self._lanes, timers.install)
        if self._session is not None and self._has_sandbox:
            from spanreplay.replayer.sandbox import world

            self._world = world.install(self._session, run, Patches(), self.surroundings, is_outside)
            run.overlay = self._world.files
        self._seams = InstalledSeams(_seam_failed, run.level, is_replay=run.session is not None)
        self._seams.register()
        if self._session is not None:
            from spanreplay.replayer.sandbox import netguard
            from spanreplay.replayer.schedule import step_clock, threads

            threads.install(self._session.gate, self._order)
            step_clock.install(self._session.gate, self._order)
            netguard.install(self._session, run, netguard.OwnEndpoint())
        groups.install("waits of threads", self._order, waits.install)  # wraps the replay's patches of waits
        groups.install("looks at futures and threads", self._order, thread_polls.install)
        self._inside = lanes.inside_lane(run.root_lane)
        self._inside.__enter__()
        # Not a context variable: test runners keep event loops whose contexts predate the block
        set_process_run(run)
        processes.offer(run)

    def _uninstall(self) -> None:
        """Remove everything installed so far, newest first."""
        set_process_run(None)
        processes.offer(None)
        if self._inside is not None:
            self._inside.__exit__()
        self._order.undo()
        if self._seams is not None:
            self._seams.uninstall()
        if self._world is not None:
            self._world.remove()
        set_code("")
        self._lanes.undo()
        if self._run is not None and self._session is not None:
            from spanreplay.replayer.sandbox import netguard

            self._run.is_ended = True
            self._session.recorded_env.take_back()
            netguard.remove(self._run)


class RecordBlock(_Block):
    """A block of code that is recorded, during or after its run."""

    def __init__(self, app: str, directory: str | Path | None) -> None:
        super().__init__()
        self._app = app
        self._directory = Path(directory).absolute() if directory is not None else config.read_data_dir()
        self._writer: Any = None
        self._path: Path | None = None

    @property
    def path(self) -> Path | None:
        """The spool file of the recording; None while nothing is recorded."""
        return self._path or (None if self._writer is None else self._writer.path)

    def __enter__(self) -> RecordBlock:
        _claim(self)
        try:
            self._install(self._build_run())
        except BaseException:
            self._uninstall()
            _release()
            raise
        return self

    def _build_run(self) -> Run:
        from spanreplay.recording.spool import SpoolWriter
        from spanreplay.recording.spool.processor import SpoolSpanProcessor
        from spanreplay.redact.processor import RedactingSpanProcessor

        run_id = ids.new_run_id()
        redactor = _build_redactor(is_made=True)
        resource = _resource({names.RUN_ID: run_id, names.APP: self._app, names.PROJECT: self._app})
        fsync = config.read_setting("SPANREPLAY_FSYNC")
        self._writer = SpoolWriter(self._directory, run_id, fsync=fsync, bytes_max=config.SPOOL_BYTES_MAX)
        chain = RedactingSpanProcessor(redactor, [SpoolSpanProcessor(self._writer)], run_resource=resource)
        return _build_run(self._app, run_id, [chain], resource, redactor, is_test=self.surroundings.is_test)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._run is not None:
                self._run.finish(Outcome.OK if kind is None else Outcome.ERROR)
            self._path = self._writer.path
            self._writer.close()
        finally:
            self._uninstall()
            _release()

    def recording(self) -> Recording:
        """The calls so far. Raises: DamagedRecording; ConfigError before the block."""
        from spanreplay.recording.spool import SpoolCatalog

        if self._writer is None:
            raise ConfigError("there are no calls before the block", hint="ask in the `with` block, or after it")
        if self.path is None:
            return Recording(RootRecord(self.run_id, app=self._app), ())
        with set_aside():
            return SpoolCatalog(self._directory).load(self.run_id)

    def save(self, path: str | Path) -> Path:
        """Write the recording, after its block has ended, as a `.replay` or `.jsonl` file; atomic.

        Raises: ConfigError if nothing was recorded or the file can't be written; DamagedRecording.
        """
        from spanreplay.recording.spool import SpoolCatalog

        if self._path is None:
            raise ConfigError("nothing was recorded", hint="no call crossed a boundary; spanreplay doctor shows why")
        target = Path(path)
        content = SpoolCatalog(self._directory).export(self.run_id)
        if target.suffix == ".jsonl":
            from spanreplay.recording.bundle import unpack
            from spanreplay.recording.jsonl import write_jsonl

            content = b"".join(write_jsonl(*unpack(content)))
        write_atomically(target, content, hint="name another place", makes_folder=True)
        return target


class ReplayBlock(_Block):
    """A block of code that runs against a recording, during or after its run."""

    def __init__(self, source: str | Path | Recording, plan: Plan, *, has_sandbox: bool) -> None:
        super().__init__()
        self._source = source
        self._has_sandbox = has_sandbox
        self.plan = plan
        self._verdict: dict[str, Any] | None = None
        self._is_explained = False
        self._kept: KeptCalls | None = None

    def __enter__(self) -> ReplayBlock:
        from spanreplay.replayer.resolve.session import Session
        from spanreplay.runtime.process.environment import find_folders

        _claim(self)
        try:
            recording = self._load()
            self._check(recording)
            if recording.root.env.get(_CLOCK) == _LIVE:  # recorded beside time-machine, by an older version
                self.plan = self.plan.live("clock:*")
            self._session = session = Session(recording, self.plan, find_folders(list(sys.argv)))
            app = session.recording.root.app
            resource = _resource({names.APP: app})
            redactor = _build_redactor(is_made=False)
            self._kept = KeptCalls(app)
            kept = [self._kept]
            self._install(_build_run(app, "", kept, resource, redactor, session, is_test=self.surroundings.is_test))
        except BaseException:
            self._uninstall()
            _release()
            raise
        return self

    def _check(self, recording: Recording) -> None:
        from spanreplay.replayer.resolve.directions import check_keys, check_plan, check_strict

        check_keys(recording)
        if self.plan.resume is not None:
            raise ConfigError("a run is resumed in a process of its own", hint="spanreplay resume RUN --input ANSWER")
        check_plan(self.plan, recording)
        check_strict(self.plan, recording)

    def _load(self) -> Recording:
        if isinstance(self._source, Recording):
            return self._source
        from spanreplay.recording.source import load_source

        return load_source(str(self._source))

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._run is not None:
                self._run.close_open_calls()
                self._run.gather()
                if self._run.reads is not None:
                    self._run.reads.settle()
                self._verdict = self._judge(self._run)
                self._run.finish(Outcome.OK if kind is None else Outcome.ERROR)
        finally:
            self._uninstall()
            _release()

    def verdict(self) -> dict[str, Any]:
        """Return the verdict, schema divergence/1; inside the block, as of now. Raises: ConfigError before it.

        After the block, it includes causes in changed code; git is asked for them once.
        """
        if self._verdict is None:
            if self._run is None:
                raise ConfigError("there is no verdict before the replay", hint="ask after the `with` block")
            return self._judge(self._run)
        if not self._is_explained and _current is not self:
            self._is_explained = True
            if self._verdict["verdict"] == "diverged":
                self._verdict = _explain(self._verdict, self._folder)
        return self._verdict

    def _judge(self, run: Run) -> dict[str, Any]:
        from spanreplay.replayer.verdict import build_verdict

        if self._session is None:
            raise ConfigError("there is no verdict before the replay", hint="ask after the `with` block")
        verdict = build_verdict(self._session, run, stdout={}, exit_status=None, ended_ns=ids.now_ns())
        if "code" in verdict:  # exclude files of other agents and tests in this process
            recorded = self._session.recording.root.manifest.get("code") or {}
            changed = [each for each in verdict["code"]["changed_files"] if each in recorded]
            verdict["code"] = {**verdict["code"], "changed_files": changed}
        return verdict

    def recording(self) -> Recording:
        """The calls of the replay so far, with those served. Raises: ConfigError before it, or if they are too many."""
        if self._kept is None:
            raise ConfigError("there are no calls before the replay", hint="ask in the `with` block, or after it")
        return self._kept.build(self.run_id)

    def read_file(self, path: str | Path) -> bytes:
        """Return a file's content as the replay left it; without the sandbox, the real file's. Raises: OSError."""
        if self._world is None or _current is self:
            return Path(path).read_bytes()
        whole = os.path.abspath(self._folder / path)  # noqa: PTH100 -- symlinks must stay unresolved
        return Path(self._world.files.scratch.find(whole)).read_bytes()

    def forget_files(self) -> None:
        """Remove the replay's files after the block; otherwise they are removed with the block's last reference."""
        if self._world is not None and _current is not self:
            self._world.forget()

    @property
    def divergences(self) -> Sequence[Divergence]:
        """The differences so far; calls that were not made are only in the verdict."""
        return () if self._session is None else tuple(self._session.divergences)

    @property
    def served(self) -> int:
        """The number of calls answered from the recording."""
        return 0 if self._session is None else self._session.counts["served"]


# ── one block at a time ─────────────────────────────────────────────────────────────────────────────
def _claim(block: _Block) -> None:
    global _current
    with _claiming:
        if block.run_id:
            raise ConfigError("a block runs once", hint="call record() or replay() again")
        if _current is not None or active_run() is not None:
            what = "another block" if _current is not None else "the whole process"
            raise ConfigError(
                f"{what} is being recorded or replayed here",
                hint="one at a time: end the other one first, or run it in a process of its own",
            )
        _current = block


def _release() -> None:
    global _current
    with _claiming:
        _current = None


def _seam_failed(seam: Seam, exc: Exception) -> None:
    # Looks up the block itself: hooks of imports that never happen would otherwise keep it alive
    from spanreplay.seams.installed import name_library

    block = _current
    if block is None or block._run is None:
        return
    if block._session is not None:  # an unpatched library would run live
        raise block._session.broken(f"the replay can't cover {seam.name}: {type(exc).__name__}: {exc}") from exc
    library, why = name_library(seam), describe_missing(exc)
    block._run.hole(f"{seam.name} could not be covered ({library}: {why}): its calls are not in this run")


def _watch_forks() -> None:
    global _is_fork_watched
    if not _is_fork_watched:
        _is_fork_watched = True
        os.register_at_fork(after_in_parent=_forked_parent, after_in_child=_forked_child)


def _forked_parent() -> None:
    block = _current
    if processes.starting.is_now:
        return
    if block is not None and block._session is None and block._run is not None:
        block._run.hole(f"the process forked at {ids.find_caller(2)}: calls of the child are not in this run")


def _forked_child() -> None:
    block = _current
    if block is None:
        return
    if block._session is not None:
        block._session.is_forked = True
    else:
        set_process_run(None)


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────
def _resource(attributes: Mapping[str, str]) -> Any:
    from opentelemetry.sdk.resources import Resource

    return Resource(attributes)


def _build_run(
    app: str,
    run_id: str,
    processors: Sequence[SpanProcessor],
    resource: Any,
    redactor: RunRedactor,
    session: Session | None = None,
    *,
    is_test: bool = False,
) -> Run:
    from spanreplay.runtime.emit import Emitter
    from spanreplay.runtime.process.environment import describe_environment

    environment = describe_environment([] if is_test else list(sys.argv))
    return Run(
        app=app,
        run_id=run_id,
        emitter=Emitter(processors, resource),
        redactor=redactor,
        session=session,
        user_id=config.read_setting("SPANREPLAY_USER_ID"),
        session_id=config.read_setting("SPANREPLAY_SESSION_ID"),
        environment=environment,
        level=level_of() if session is None else level_of_recording(session.recording.root),
    )


def _explain(verdict: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a verdict with causes in the code added; runs git."""
    import json

    from spanreplay.report.codeblame import add_code_causes
    from spanreplay.report.json import parse

    explained: dict[str, Any] = dict(add_code_causes(parse(json.dumps(verdict)), folder))
    return explained


def _build_redactor(*, is_made: bool) -> RunRedactor:
    """Build the redactor from this directory's key, or, in a replay without a key file, from a temporary key."""
    from spanreplay.redact import Redactor, load_or_create_key
    from spanreplay.redact.tokens import KEY_BYTES, key_id_of

    named = config.read_setting("SPANREPLAY_REDACT_KEY")
    path = Path(named) if named else config.read_data_dir() / "redact.key"
    if named or path.exists():
        return Redactor(*load_or_create_key(path, is_named=bool(named))).run()
    if is_made:
        from spanreplay.recording.spool.directory import prepare_directory

        prepare_directory(path.parent)  # also keeps it out of git
        return Redactor(*load_or_create_key(path, is_named=bool(named))).run()
    key = os.urandom(KEY_BYTES)
    return Redactor(key, key_id_of(key)).run()
