"""Find the earlier units of a unit's process: in a catalog, or in files beside the unit's own."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from spanreplay.cli.runs import runs
from spanreplay.cli.runs.units import Unit
from spanreplay.cli.terminal import say
from spanreplay.model import config
from spanreplay.model.call import Recording, RootRecord
from spanreplay.model.errors import ConfigError, RunNotFound, SourceError, SpanreplayError
from spanreplay.recording.catalog import RUNS_MAX, Catalog, RunQuery
from spanreplay.report.shape import Divergence, Verdict
from spanreplay.units.stated import count_before, find_unit, is_before

__all__ = [
    "count_option",
    "export",
    "find_beside",
    "find_for_each",
    "find_in_catalog",
    "name_command",
]

AUTO: Final = -1
"""The count that means: as many units as needed."""
_ALL: Final = "all"
_TIME: Final = 12
"""Length of the time prefix of a run id, in characters."""
_AROUND_NS: Final = 1_000_000_000


def count_option(text: str) -> int:
    """Parse a number of earlier units; `all` is the maximum, `auto` is AUTO. Raises: BadParameter."""
    if text == "auto":
        return AUTO
    if text == _ALL:
        return config.WARM_UP_UNITS_MAX
    if text.isdecimal() and int(text) <= config.WARM_UP_UNITS_MAX:
        return int(text)
    raise click.BadParameter(f"{text!r} is not a number up to {config.WARM_UP_UNITS_MAX}, all or auto")


def find_in_catalog(catalog: Catalog, unit: Recording, count: int) -> tuple[str, ...]:
    """The run ids of the last `count` units before this one, in order. Raises: ConfigError, RunNotFound."""
    if not _has_earlier(unit):
        return ()
    start = find_unit(unit.root.env)
    members = () if start is None else _find_members(catalog, start.process, unit.root.start_ns)
    return tuple(each.run_id for each in _take([each for each in members if is_before(each, unit)], unit, count))


def find_for_each(units: Sequence[Unit], catalog: Catalog, count: int) -> dict[str, tuple[RootRecord, ...]]:
    """For units of one process: run id → the last `count` units before it that are in the catalog, or beside its file.

    `count` is at least 1. A unit before which nothing came, or nothing of which is here, has none.
    """
    found = {unit.run_id: _find_beside_quietly(unit, count) for unit in units if unit.file}
    here = [unit for unit in units if not unit.file]
    if here:
        members = _find_members(catalog, here[0].process, max(unit.root.start_ns for unit in here))
        for unit in here:
            ours = Recording(unit.root, ())
            before = sorted((each for each in members if is_before(each, ours)), key=count_before)
            found[unit.run_id] = tuple(each.root for each in before[-count:])
    return found


def _find_members(catalog: Catalog, process: str, until_ns: int) -> list[Recording]:
    """All runs from the start of a process until this time, without their calls; they include its units."""
    since_ns = max(0, int(process[:_TIME], 16) * 1_000_000 - _AROUND_NS)
    query = RunQuery(since_ns=since_ns, until_ns=until_ns + _AROUND_NS, limit=RUNS_MAX)
    return [Recording(summary.root, ()) for summary in catalog.search(query)]


def _find_beside_quietly(unit: Unit, count: int) -> tuple[RootRecord, ...]:
    """The units beside a unit's file; empty if nothing came before it, or none of it is there."""
    ours = Recording(unit.root, ())
    with suppress(SpanreplayError):
        return tuple(each.root for each in _take(_list_beside(Path(unit.file), ours), ours, count))
    return ()


def find_beside(path: Path, unit: Recording, count: int) -> tuple[str, ...]:
    """Like `find_in_catalog`, for the `.replay` files beside the unit's own. Raises: ConfigError, RunNotFound."""
    if not _has_earlier(unit):
        return ()
    return tuple(each.run_id for each in _take(_list_beside(path, unit), unit, count))


def _list_beside(path: Path, unit: Recording) -> list[Recording]:
    """The earlier units of a unit's process whose files are beside its own, without their calls."""
    from spanreplay.recording.bundle import load_file

    start = find_unit(unit.root.env)
    if start is None:
        return []
    since, until = start.process[:_TIME], unit.run_id[:_TIME]
    names = [each for each in path.parent.glob("*.replay") if since <= each.stem[:_TIME] <= until]
    found = []
    for each in sorted(names, reverse=True)[:RUNS_MAX]:
        try:
            recording = load_file(each)
        except SourceError as exc:
            say(f"{each} is skipped: {exc}")
            continue
        if recording.run_id == each.stem and is_before(recording, unit):
            found.append(Recording(recording.root, ()))
    return found


def _has_earlier(unit: Recording) -> bool:
    """Whether units came before this one. Raises: ConfigError if it is not a unit."""
    if find_unit(unit.root.env) is None:
        raise ConfigError(f"run {unit.run_id} is not a unit of a process that serves many: nothing came before it")
    if not count_before(unit):
        say("no unit of its process came before this one")
    return count_before(unit) > 0


def _take(found: Iterable[Recording], unit: Recording, count: int) -> list[Recording]:
    """The last `count` of these, in order. Raises: RunNotFound if there are none, although some came before."""
    ordered = sorted(found, key=count_before)
    if not ordered:
        before = count_before(unit)
        raise RunNotFound(
            f"none of the {before} earlier units of its process is here",
            hint="for a replay elsewhere, export them too: spanreplay export RUN",
        )
    return ordered if count == AUTO else ordered[-count:]


def export(catalog: Catalog, run_ids: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Write these runs to files for a replay, the latest first, up to WARM_UP_BYTES_MAX; return the ids written."""
    written: list[str] = []
    left = config.WARM_UP_BYTES_MAX
    for run_id in reversed(run_ids):
        content = catalog.export(run_id)
        left -= len(content)
        if left < 0:
            say(f"the last {len(written)} of {len(run_ids)} earlier units are replayed: the others are too large")
            break
        (folder / f"{run_id}.replay").write_bytes(content)
        written.append(run_id)
    return tuple(reversed(written))


def name_command(verdict: Verdict, source: str, unit: Recording, argv: Sequence[str]) -> Verdict:
    """The verdict; if a unit diverged and earlier units are here, with a hint how to replay those first."""
    divergences = verdict.get("divergences") or []
    if verdict["verdict"] != "diverged" or not divergences or not count_before(unit):
        return verdict

    def find(look: Callable[[], tuple[str, ...]]) -> bool:
        try:
            return bool(look())
        except (SpanreplayError, OSError):
            return False

    def look_in_catalog() -> tuple[str, ...]:
        with runs.open_catalog() as catalog:
            return find_in_catalog(catalog, unit, 1)

    look = (lambda: find_beside(Path(source).absolute(), unit, 1)) if runs.is_file(source) else look_in_catalog
    if not find(look):
        return verdict
    name = source if runs.is_file(source) else unit.run_id
    hint = f"to replay them first: spanreplay replay {shlex.join([name, '--warm', 'all', '--', *argv])}"
    first: Divergence = {**divergences[0]}
    first["hint"] = "; ".join(filter(None, (first.get("hint", ""), hint)))
    return {**verdict, "divergences": [first, *divergences[1:]]}
