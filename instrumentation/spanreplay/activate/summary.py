"""The line that a recorded process writes to standard error at its end, for a person at a terminal."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spanreplay.model import config, distributions, guard
from spanreplay.model.escape import shorten
from spanreplay.model.owners import SERVERS, is_among
from spanreplay.recording.catalog import FORKED_FROM
from spanreplay.recording.spool.directory import spool_directory
from spanreplay.runtime.process.last_error import find_last_error
from spanreplay.units import factory
from spanreplay.units._table import starts_server

if TYPE_CHECKING:
    from spanreplay.recording.spool.courier import ShipReport
    from spanreplay.runtime.run import Run

__all__ = ["End", "describe", "describe_forks", "describe_no_call", "describe_process", "say"]

_STDERR: Final = 2
_LINE_CHARACTERS_MAX: Final = 1_000
_HOLE_CHARACTERS_MAX: Final = 160
_MARK: Final = ".said-how-to-see-runs"
_HOW: Final = "see it: spanreplay show latest"


@dataclass(frozen=True)
class End:
    """How a recording ended: the facts for a person."""

    run_id: str
    calls: int
    folder: str
    """The run's local folder, in its shortest form."""
    url: str = ""
    """The URL it was sent to; empty: none."""
    is_delivered: bool = False
    link: str = ""
    """The run's page in Phoenix."""
    hole: str = ""
    """The first reason why the run is incomplete."""
    is_new_here: bool = False
    """Whether the hint how to see the runs of this folder hasn't been shown yet."""
    process: str = ""
    """A name for the process, if there may be several or it serves many requests: `server process 17`."""


def describe(end: End) -> str:
    """Return the line about a run with calls."""
    calls = "1 call" if end.calls == 1 else f"{end.calls:,} calls"
    if end.url and end.is_delivered:
        where = f"sent to {end.url}"
    elif end.url:
        where = f"kept in {end.folder} until {end.url} takes it"
    else:
        where = f"in {end.folder}"
    hole = f"incomplete: {shorten(end.hole, _HOLE_CHARACTERS_MAX)}" if end.hole else ""
    who = f"{end.process}: " if end.process else ""
    parts = [f"{who}recorded {calls}, {where}, run {end.run_id}", hole, end.link, _HOW if end.is_new_here else ""]
    return shorten("spanreplay: " + "; ".join(part for part in parts if part), _LINE_CHARACTERS_MAX)


def describe_no_call(status: int | None, raised: str = "", ended_by: str = "") -> str:
    """Return why there is no run, if no call was made; `status` is the exit status, None if unknown."""
    first = "its first model, tool or HTTP call"
    if ended_by:
        how = f"the agent was ended by {ended_by} before {first}"
    elif raised:
        how = f"the agent raised {raised} before {first}"
    elif status:
        how = f"the agent exited with status {status} before {first}"
    elif status is None:
        how = f"the agent ended before {first}"
    else:
        how = "the agent ended without a model, tool or HTTP call"
    return f"no call was recorded: {how}"


def describe_forks(forks: int) -> str:
    """Return the line about a process without calls whose forks have runs, such as a server's master process."""
    others = "1 process that it forked has a run" if forks == 1 else f"{forks} processes that it forked have runs"
    return f"no call was recorded in process {os.getpid()}; the {others} of {'its' if forks == 1 else 'their'} own"


def describe_process(run: Run) -> str:
    """Return a name for a run's process; '' for a single-process program that serves no requests."""
    process = factory.offered()
    count = 0 if process is None else process.count
    is_server = starts_server() or is_among(distributions.find_started(), (SERVERS,))
    who, what = (f"server process {os.getpid()}", "request") if is_server else (f"process {os.getpid()}", "unit")
    if count:
        left_out = 0 if run.tally is None else run.tally.left_out
        if left_out:
            return f"{who}, {left_out:,} of whose {count:,} {what}s were left out by sampling"
        units = f"1 {what} is a run of its own" if count == 1 else f"{count:,} {what}s are runs of their own"
        return f"{who}, whose {units}"
    if is_server:
        return f"{who}, all its requests in one run"
    return f"process {os.getpid()}" if FORKED_FROM in run.environment else ""


def say(run: Run, status: int | None, data_dir: Path, report: ShipReport | None, *, is_delivered: bool) -> None:
    """Write the line if a person can see it; `report` is the shipping report, None if nothing is shipped."""
    if run.suspended or not _is_wanted():
        return
    if not run.has_calls and run.forks:
        _write(f"spanreplay: {describe_forks(run.forks)}")
        return
    if not run.has_calls:
        raised = find_last_error()
        said = describe_no_call(status, "" if raised is None else type(raised).__name__, run.ended_by)
        _write(f"spanreplay: {said}", flushes=not run.ended_by)
        return
    url = "" if report is None else report.url
    is_here = not (url and is_delivered)
    can_show = is_here or bool(config.read_setting("SPANREPLAY_ENDPOINT"))
    end = End(
        run_id=run.run_id,
        calls=_count_calls(run),
        folder=_best_name(data_dir),
        url=url,
        is_delivered=is_delivered,
        link="" if report is None else report.link(f"{run.span_context.span_id:016x}"),
        hole=next(iter(run._holes), ""),
        is_new_here=can_show and _is_first_time(data_dir),
        process=guard.guarded("the name of a process", describe_process, run) or "",
    )
    _write(describe(end), flushes=not run.ended_by)


def _count_calls(run: Run) -> int:
    parts = (run._parts or {}).values()
    return run.calls + sum(int(part["manifest"]["calls"]) for part in parts)


def _is_wanted() -> bool:
    """Whether to write the line: by setting, or if standard error is a terminal with this process in foreground."""
    wanted = config.read_setting("SPANREPLAY_SUMMARY")
    if wanted != "auto":
        return wanted == "always"
    try:
        # Writing may stop a background process (SIGTTOU)
        return os.isatty(_STDERR) and os.tcgetpgrp(_STDERR) == os.getpgrp()
    except OSError:
        return False


def _best_name(folder: Path) -> str:
    """Return a folder's path, relative if it is in the working directory."""
    try:
        return str(folder.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(folder)


def _is_first_time(data_dir: Path) -> bool:
    """Whether this folder's runs are announced for the first time; creates a mark there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(spool_directory(data_dir) / _MARK, flags, 0o600))
    except OSError:
        return False
    return True


def _write(line: str, *, flushes: bool = True) -> None:
    """Write to the file descriptor, because the agent may have replaced `sys.stderr`."""
    try:
        if flushes and sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # closed or broken: its buffer would be lost without this write too
    try:
        os.write(_STDERR, (line + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        return
