"""Everything that crosses a boundary outwards is compared, or named as not compared: every argument of every row."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.arguments import (
    FUNCTION_SEAMS,
    FUNCTIONS,
    INSIDE,
    LEAVES,
    METHODS,
    OS_OTHERS,
    STATEMENTS,
    WIRES,
)
from spanreplay.seams.table import SEAMS
from support.argument_cases import CASES, Case
from support.changed import load, record_agent, replay_agent

NOT_ARGUMENTS = {"os.supports_dir_fd", "os.supports_fd", "os.supports_follow_symlinks", "os.supports_effective_ids"}
SELF = frozenset({"self", "cls"})
ALIASES = {
    "asyncio.subprocess.create_subprocess": "asyncio.create_subprocess", "sqlite3.dbapi2.": "sqlite3.",
    "io.": "builtins.", "uvloop.Loop.": "asyncio.base_events.BaseEventLoop.",
    "asyncio.unix_events._UnixSelectorEventLoop.": "asyncio.base_events.BaseEventLoop.",
}  # fmt: skip


class Spy(Patches):
    """Records the functions that are replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Any] = {}

    def replace(self, owner: Any, name: str, value: Any) -> None:
        where = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        self.found.setdefault(f"{where}.{name}", getattr(owner, name))
        super().replace(owner, name, value)


def _replaced() -> dict[str, Any]:
    """Name → original function, for all that the function seams replace."""
    spy = Spy()
    try:
        for seam in SEAMS:
            if seam.name in FUNCTION_SEAMS:
                for trigger in seam.triggers:
                    import_module(seam.implementation).install(import_module(trigger), spy)
    finally:
        spy.undo()
    named: dict[str, Any] = {}
    for name, real in spy.found.items():
        if name in NOT_ARGUMENTS or name.startswith(("pathlib.", "glob.")):
            continue
        if real is open and not name.endswith(".open"):  # patched under a module's own name
            continue
        for alias, first in ALIASES.items():
            if name.startswith(alias):
                name = first + name.removeprefix(alias)
        named.setdefault(name, real)
    return named


def _parameters(function: Any) -> frozenset[str] | None:
    """The names of a function's parameters; None if it has no signature."""
    try:
        return frozenset(inspect.signature(function).parameters) - SELF
    except (TypeError, ValueError):
        return None


REPLACED = _replaced()


def test_n14_every_seam_says_what_is_compared() -> None:
    """A new seam is in exactly one of the tables."""
    groups = [set(FUNCTION_SEAMS), set(WIRES), set(STATEMENTS), set(LEAVES), set(INSIDE)]
    stated = [name for group in groups for name in group]
    assert sorted(stated) == sorted(set(stated))
    assert {seam.name for seam in SEAMS} == set(stated)


def test_n14_every_argument_of_every_replaced_function_is_stated() -> None:
    """A new function, or a new argument of one, states whether it is compared, ignored or stays inside."""
    missing = sorted(name for name in REPLACED if name not in FUNCTIONS)
    assert not missing, missing
    for name, function in REPLACED.items():
        parameters = _parameters(function)
        if parameters is not None:
            assert not parameters - FUNCTIONS[name].names, (name, parameters - FUNCTIONS[name].names)
        names = [*FUNCTIONS[name].compared, *FUNCTIONS[name].ignored, *FUNCTIONS[name].inside]
        assert len(names) == len(set(names)), name


def test_n14_every_function_of_os_is_stated() -> None:
    """A new function in a newer Python's `os` has to be reviewed before anyone relies on a verdict about it."""
    public = {n for n in dir(os) if callable(getattr(os, n)) and not n.startswith("_")}
    public = {n for n in public if not isinstance(getattr(os, n), type)}
    stated = {name.removeprefix("os.") for name in FUNCTIONS if name.startswith("os.")}
    assert not stated & OS_OTHERS.keys()
    assert not public - stated - OS_OTHERS.keys(), sorted(public - stated - OS_OTHERS.keys())


def _is_here(function: str, argument: str) -> bool:
    """Whether this Python has the function and, if the row names it, the argument."""
    real = REPLACED.get(function)
    if real is None:
        return False
    parameters = _parameters(real)
    return argument not in FUNCTIONS[function].names or parameters is None or argument in parameters


def test_n14_every_argument_that_is_compared_has_a_case() -> None:
    """Every argument that a row calls compared is changed by a test."""
    changed: dict[str, set[str]] = {}
    for function, case in CASES:
        changed.setdefault(function, set()).update(case.arguments)
    for name, row in FUNCTIONS.items():
        lacking = {a for a in row.compared if _is_here(name, a)} - changed.get(name, set())
        assert name not in REPLACED or not lacking, (name, lacking)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in the test's own directory, with a umask that a case may change."""
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0o022)
    yield tmp_path
    os.umask(mask)


def _replay(run_id: str, case: Case, folder: Path, changed: str = "") -> dict[str, Any]:
    for path in [p for p in folder.iterdir() if p.name != ".spanreplay"]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    found = replay_agent(run_id, load(case.write(changed), folder))
    os.chdir(folder)
    os.umask(0o022)
    return found


@pytest.mark.parametrize("at", range(len(CASES)), ids=[f"{n}-{'-'.join(c.arguments)}"[:60] for n, c in CASES])
@pytest.mark.sampled(24)
def test_n14_another_argument_is_another_run(at: int, folder: Path) -> None:
    """The same call is identical; if any one of its arguments changes, the replay has diverged."""
    function, case = CASES[at]
    arguments = [each for each in case.arguments if _is_here(function, each)]
    if not arguments or sys.version_info < case.since:
        pytest.skip(f"{function} is not so in Python {sys.version_info.major}.{sys.version_info.minor}")
    run_id = record_agent(load(case.write(), folder))
    os.chdir(folder)
    same = _replay(run_id, case, folder)
    assert (same["verdict"], same["raised"]) == ("identical", ""), (case.write(), same["divergences"], same["reasons"])
    for argument in arguments:
        changed = _replay(run_id, case, folder, argument)
        assert changed["verdict"] == "diverged", (argument, case.write(argument))
        assert changed["divergences"], argument


def _public(cls: type) -> set[str]:
    members = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {n for n, member in members.items() if callable(member) and not isinstance(member, type)}


def _replaced_in_asyncpg() -> dict[str, set[str]]:
    from spanreplay.seams.machine.databases.asyncpg_client import seam

    spy = Spy()
    try:
        seam.install(import_module("asyncpg"), spy)
    finally:
        spy.undo()
    found: dict[str, set[str]] = {}
    for name in spy.found:
        owner, _, method = name.rpartition(".")
        found.setdefault(owner, set()).add(method)
    return {name: replaced for name, replaced in found.items() if name in METHODS}


def test_n14_every_method_of_a_database_driver_is_stated() -> None:
    """A new method in a newer driver has to be covered, or to state why nothing of it is lost."""
    from spanreplay.seams.machine.databases import database

    ours: dict[str, set[str]] = {
        "sqlite3.Connection": set(vars(database.ConnectionMixin)),
        "sqlite3.Cursor": set(vars(database.CursorMixin)),
    }
    with contextlib.suppress(ImportError):
        from spanreplay.seams.machine.databases import psycopg_v3, transactions

        ours["psycopg.Connection"] = {*transactions.TOLD, "transaction", "connect"}
        ours["psycopg.Cursor"] = {n for cls in psycopg_v3.CursorMixin.__mro__[:-1] for n in vars(cls)}
    with contextlib.suppress(ImportError):
        from spanreplay.seams.machine.databases import psycopg_v2

        ours["psycopg2.extensions.connection"] = set(vars(psycopg_v2.RecordedConnection))
        ours["psycopg2.extensions.cursor"] = set(vars(psycopg_v2.RecordedCursor))
    with contextlib.suppress(ImportError):
        ours.update(_replaced_in_asyncpg())
    for name, replaced in ours.items():
        module, _, cls = name.rpartition(".")
        if find_spec(module.partition(".")[0]) is None:
            continue
        left = _public(getattr(import_module(module), cls)) - replaced - METHODS[name].keys()
        assert not left, (name, sorted(left))
