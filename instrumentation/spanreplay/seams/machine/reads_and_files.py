"""Local non-determinism of the agent's code: clock, random values, human, subprocess, database, files, environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from spanreplay.model import config
from spanreplay.model.lane_names import UNIT_LANE
from spanreplay.runtime.process import noted_effects

if TYPE_CHECKING:
    from spanreplay.replayer.resolve.recorded_reads import ReadFeed
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.runtime.contributors import Files
    from spanreplay.runtime.process.surroundings import Surroundings
    from spanreplay.runtime.reads import Reads
    from spanreplay.runtime.run import Run
    from spanreplay.seams.machine.files.written import Written

_PURPOSE = b"reads"
_LOOKS, _STATE = "looks", "state"
"""Members of the environment: whether reads of file metadata are calls in this recording, and whether the state of the
code tree before the run changes it is recorded.
"""


def attach_reads(run: Run) -> None:
    """Choose what answers the run's reads: a log, in a replay the recorded reads, or nothing."""
    from spanreplay.seams.machine.environ import Environment

    run.environment_read = Environment(run)
    if not run.on_join:
        run.on_join.append(lambda: None if run.reads is None else attach_reads(run))
    if not run.resolver.keeps:
        session = cast("Session", run.resolver.answers)
        from spanreplay.replayer.resolve.recorded_reads import ReadFeed, has_reads

        if has_reads(session.recording):
            feed = ReadFeed(session, run.start_ns, lambda text: _unseal(run, text), run.owns)
            run.reads = feed if run.continuation is None else _resume_reads(run, feed)
        if config.read_setting("SPANREPLAY_REPLAY_STRICT_ENV") == "true":
            from spanreplay.replayer.sandbox.hermetic import StrictReads

            run.leaks = StrictReads(session, run)
        return
    if config.read_setting("SPANREPLAY_RECORD_CLOCK") == "true":
        from spanreplay.runtime.reads import ReadLog

        run.reads = ReadLog(lambda content: _seal(run, content), run.hole)
        run.environment = {**run.environment, "reads": True}
    _attach_leaks(run)


def attach_files(
    run: Run, surroundings: Surroundings | None = None, is_outside: Callable[[], bool] | None = None
) -> None:
    """Note the files that the agent writes, to compare them when the run ends."""
    from spanreplay.seams.machine import effects
    from spanreplay.seams.machine.files import own_folder
    from spanreplay.seams.machine.sockets import datagrams

    effects.attach(run)
    datagrams.attach(run)
    own_folder.attach(run)
    begin_files(run, surroundings, is_outside)


def begin_files(
    run: Run, surroundings: Surroundings | None = None, is_outside: Callable[[], bool] | None = None
) -> None:
    """Start an empty list of written files: each unit has its own, even when a replay includes its process's start."""
    from spanreplay.runtime.process.surroundings import Surroundings
    from spanreplay.seams.machine.files.written import Written

    before, written = run.written, Written(run, surroundings or Surroundings())
    if not run.resolver.keeps:
        if not noted_effects.sees_versions(run):
            written.versions = None
        written.sees_looks = run.resolver.has(_LOOKS)
        written.restate_by(run.resolver.answers.relocation)
        if not run.resolver.has(_STATE):
            written.state = None
    if written.state is not None:
        written.state.is_shared = run.root_lane.path == UNIT_LANE
        run.environment = {**run.environment, _STATE: True}
    if written.sees_looks:
        run.environment = {**run.environment, _LOOKS: True}
    if is_outside is not None:
        written.is_outside = is_outside
    run.written = _beside(run, written, before)


def _beside(run: Run, written: Written, before: Files | None) -> Files:
    """Return where files are noted from now on; after its start, a process writes beside the unit that is replayed."""
    extent = None if run.resolver.keeps else run.resolver.answers.extent
    if extent is None or before is None:
        return written
    from spanreplay.seams.machine.files.beside import FilesBeside

    beside = before.beside if isinstance(before, FilesBeside) else before
    return FilesBeside(run, written, beside, extent.is_outside)


def _attach_leaks(run: Run) -> None:
    """Note I/O outside every boundary; for the doctor, note every read with its location too."""
    how = config.read_setting("SPANREPLAY_AUDIT")
    is_examined = bool(config.read_variable("SPANREPLAY_DOCTOR"))
    if how == "off":
        return
    from spanreplay.seams.machine.outside import native_connections
    from spanreplay.seams.machine.outside.leaks import Leaks

    native_connections.set_baseline()
    run.leaks = Leaks(run)
    if how == "full" or is_examined:
        from spanreplay.seams.machine.outside import audit

        audit.listen()
        if is_examined:
            audit.attach(run)


def _resume_reads(run: Run, feed: ReadFeed) -> Reads:
    """Return the reads of a run that continues a recorded one."""
    from spanreplay.replayer.resolve.resumed_reads import resume_reads
    from spanreplay.runtime.reads import ReadLog

    run.environment = {**run.environment, "reads": True}
    log = ReadLog(lambda content: _seal(run, content), run.hole)
    return resume_reads(feed, log, run.resolver.answers.recording.root.manifest)


def _seal(run: Run, content: bytes) -> str:
    from spanreplay.redact.sealing import seal

    return seal(run.redactor.derive(_PURPOSE), content)


def _unseal(run: Run, text: str) -> bytes | None:
    from spanreplay.redact.sealing import unseal

    return unseal(run.redactor.derive(_PURPOSE), text)
