"""Local non-determinism: clock, random, human, subprocess, database, files and environment of the agent's own code."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from spanreplay import config

if TYPE_CHECKING:
    from spanreplay.local.feed import ReadFeed
    from spanreplay.local.reads import Reads
    from spanreplay.local.surroundings import Surroundings
    from spanreplay.run import Run

_PURPOSE = b"reads"
_LOOKS = "looks"
"""Member of the environment: whether looks at files are calls of this recording."""


def attach_reads(run: Run) -> None:
    """Say who answers the run's reads: a log, in a replay the recorded ones, or nobody."""
    from spanreplay.local.environ import Environment

    run.environment_read = Environment(run)
    if run.session is not None:
        from spanreplay.local.feed import ReadFeed, has_reads

        if has_reads(run.session.recording):
            feed = ReadFeed(run.session, run.start_ns, lambda text: _unseal(run, text), run.owns)
            run.reads = feed if run.session.continuation is None else _resume_reads(run, feed)
        if config.read_setting("SPANREPLAY_REPLAY_STRICT_ENV") == "true":
            from spanreplay.replay.hermetic import StrictReads

            run.leaks = StrictReads(run.session, run)
        return
    if config.read_setting("SPANREPLAY_RECORD_CLOCK") == "true":
        from spanreplay.local.reads import ReadLog

        run.reads = ReadLog(lambda content: _seal(run, content), run.hole)
        run.environment = {**run.environment, "reads": True}
    _attach_leaks(run)


def attach_files(
    run: Run, surroundings: Surroundings | None = None, is_outside: Callable[[], bool] | None = None
) -> None:
    """Have the files that the agent writes noted, to be compared when the run ends."""
    from spanreplay.local.surroundings import Surroundings
    from spanreplay.local.written import Written

    run.written = Written(run, surroundings or Surroundings())
    if run.session is not None:
        run.written.sees_looks = bool(run.session.recording.root.env.get(_LOOKS))
    if run.written.sees_looks:
        run.environment = {**run.environment, _LOOKS: True}
    if is_outside is not None:
        run.written.is_outside = is_outside


def _attach_leaks(run: Run) -> None:
    """Have I/O outside of every boundary noted, and for the doctor every read with its place."""
    how = config.read_setting("SPANREPLAY_AUDIT")
    is_examined = bool(os.environ.get("SPANREPLAY_DOCTOR"))
    if how == "off":
        return
    from spanreplay.local.leaks import Leaks

    run.leaks = Leaks(run)
    if how == "full" or is_examined:
        from spanreplay.local import census

        census.listen()
        if is_examined:
            census.attach(run)


def _resume_reads(run: Run, feed: ReadFeed) -> Reads:
    """The reads of a run that goes on with a recorded one."""
    from spanreplay.local.reads import ReadLog
    from spanreplay.local.resumed import resume_reads

    session = run.session
    run.environment = {**run.environment, "reads": True}
    log = ReadLog(lambda content: _seal(run, content), run.hole)
    return resume_reads(feed, log, {} if session is None else session.recording.root.manifest)


def _seal(run: Run, content: bytes) -> str:
    from spanreplay.redact.sealing import seal

    return seal(run.redactor.derive(_PURPOSE), content)


def _unseal(run: Run, text: str) -> bytes | None:
    from spanreplay.redact.sealing import unseal

    return unseal(run.redactor.derive(_PURPOSE), text)
