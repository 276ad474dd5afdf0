"""Select the units for a suite: by name, by process, or with the same search as `spanreplay ls`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from spanreplay.cli.runs import runs
from spanreplay.cli.runs.search import search
from spanreplay.model.call import RootRecord
from spanreplay.model.errors import ConfigError, RunNotFound
from spanreplay.recording.catalog import RUNS_MAX, Catalog, RunQuery
from spanreplay.units.stated import find_unit

__all__ = ["Selection", "Unit", "check_one_application", "group_by_process", "select"]

_ARGV: Final = "argv"


@dataclass(frozen=True)
class Unit:
    """A unit to replay."""

    run_id: str
    root: RootRecord
    process: str
    file: str = ""
    """Path of its file, if it is not in the catalog."""


@dataclass(frozen=True)
class Selection:
    """Which units to replay: the named ones, else those that match a process and a query."""

    named: Sequence[str]
    process: str
    query: RunQuery


def select(catalog: Catalog, wanted: Selection) -> list[Unit]:
    """Find the units, oldest first, up to the query's limit. Raises: ConfigError, SourceError, ServiceError."""
    if wanted.named:
        return [_find_named(catalog, name) for name in dict.fromkeys(wanted.named)]
    process = _find_process(catalog, wanted.process) if wanted.process else ""
    found: list[Unit] = []
    for unit in _iter_found(catalog, wanted.query):
        if process in ("", unit.process):
            found.append(unit)
        if len(found) == wanted.query.limit:
            break
    if not found:
        raise RunNotFound("no matching units here", hint="spanreplay ls lists the runs, and the units among them")
    return found[::-1]


def check_one_application(units: Sequence[Unit]) -> None:
    """Refuse units of different applications: one command starts one application. Raises: ConfigError."""
    first = units[0]
    for unit in units:
        is_same = first.root.app == unit.root.app or first.root.env.get(_ARGV) == unit.root.env.get(_ARGV)
        if not is_same:
            raise ConfigError(
                f"run {unit.run_id} is a unit of {unit.root.app!r}, and run {first.run_id} one of {first.root.app!r}: "
                "a suite replays one application",
                hint="select one with --app, or replay them in separate suites",
            )


def group_by_process(units: Sequence[Unit]) -> list[list[Unit]]:
    """The units of each process, which needs its own start; each worker of a run is one."""
    found: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        start = find_unit(unit.root.env)
        found.setdefault((unit.process, "" if start is None else start.root), []).append(unit)
    return list(found.values())


def _find_named(catalog: Catalog, name: str) -> Unit:
    if runs.is_file(name):
        from spanreplay.recording.bundle import load_file

        recording, file = load_file(Path(name)), str(Path(name).absolute())
    else:
        recording, file = catalog.load(runs.resolve(catalog, name)), ""
    unit = _as_unit(recording.root, recording.run_id, file)
    if unit is None:
        raise ConfigError(
            f"run {recording.run_id} is not a unit of a process that serves many",
            hint=f"replay it by itself: spanreplay replay {recording.run_id} -- CMD",
        )
    return unit


def _find_process(catalog: Catalog, name: str) -> str:
    """The full run id of a process, named by its own run or by one of its units."""
    root = catalog.load(runs.resolve(catalog, name)).root
    start = find_unit(root.env)
    return root.run_id if start is None else start.process


def _as_unit(root: RootRecord, run_id: str, file: str = "") -> Unit | None:
    start = find_unit(root.env)
    return None if start is None else Unit(run_id, root, start.process, file)


def _iter_found(catalog: Catalog, query: RunQuery) -> Iterator[Unit]:
    """All matching units, newest first, fetched in pages of RUNS_MAX runs."""
    seen: set[str] = set()
    until_ns = query.until_ns
    while True:
        found = search(catalog, replace(query, until_ns=until_ns, limit=RUNS_MAX))
        fresh = [summary.root for summary in found if summary.root.run_id not in seen]
        for root in fresh:
            seen.add(root.run_id)
            unit = _as_unit(root, root.run_id)
            if unit is not None:
                yield unit
        if not fresh or len(found) < RUNS_MAX:
            return
        until_ns = fresh[-1].start_ns
