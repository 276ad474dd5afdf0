"""The table `tests/clauses.md`: the clauses of each requirement row, and the tests or figures that prove them.

A clause is a verbatim part of the row's acceptance text (its last column), and the clauses of a row cover all of its
words. A row is no longer proved once its wording changes or one of its tests is gone.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS / "clauses.md"
LETTERS = "SNUCRKHPW"
_TABLE_ROW = re.compile(rf"^\| ([{LETTERS}]\d{{1,2}}) \| (.+?) *\|$")
_HEADING = re.compile(rf"^## ([{LETTERS}]\d{{1,2}})$")
_CLAUSE = re.compile(r"^- (.+?) ←(?: (.*))?$")
_BAR = re.compile(r"`([^`]+)` (<=|>=) (\d+(?:\.\d+)?) ([^\s,]+)")
_WORD = re.compile(r"[^\W_]+")
_CONNECTIVES = frozenset({"and", "or", "then", "plus"})


@dataclass(frozen=True)
class Bar:
    """A figure of `make bench`, and what it must reach."""

    figure: str
    limit: float
    unit: str
    is_least: bool = False
    """Whether the limit is the least that it must be, not the most."""

    def tell_limit(self) -> str:
        """Return the limit as requirements write it, with commas."""
        return f"{self.limit:,.6f}".rstrip("0").rstrip(".")

    def is_met(self, measured: float) -> bool:
        """Whether a measured value reaches it."""
        return measured >= self.limit if self.is_least else measured <= self.limit


@dataclass(frozen=True)
class Clause:
    """A part of a row's acceptance text, the names of the test functions that assert it, the figures that show it."""

    text: str
    tests: tuple[str, ...]
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Measured:
    """A figure that `make bench` has measured: its value, and on what, from which commit, by which command."""

    value: float
    unit: str
    where: str


def read_figures(path: Path) -> dict[str, Measured]:
    """Return name → the last measured figure; empty without the file."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: Measured(row["measured"], row["unit"], _tell_where(row)) for name, row in stored.items()}


def _tell_where(row: Mapping[str, Any]) -> str:
    machine = f"{row['cpu']}, {row['cores']} cores, Python {row['python']}, load {row['load']}"
    return f"{machine}, `{row['command']}`, {row['commit']}, {row['date']}"


def row_order(row: str) -> tuple[int, int]:
    """Return a sort key in the order of the requirements: by letter, then by number."""
    return LETTERS.index(row[0]), int(row[1:])


def read_acceptance(path: Path) -> dict[str, str]:
    """Return row → the text that its tests must assert: the last column. Rows `N` have only one column."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = _TABLE_ROW.match(line)
        if match is not None:
            cell = match[2] if match[1][0] == "N" else match[2].split(" | ")[-1]
            found.setdefault(match[1], cell.strip())
    return found


def read_clauses(path: Path) -> dict[str, tuple[Clause, ...]]:
    """Return row → its clauses. Raises: ValueError for a line that is neither a heading nor a clause."""
    found: defaultdict[str, list[Clause]] = defaultdict(list)
    row = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        heading, clause = _HEADING.match(line), _CLAUSE.match(line)
        if heading is not None:
            row = heading[1]
            if row in found:
                raise ValueError(f"{path.name}:{number}: {row} is there twice")
            found[row] = []
        elif clause is not None and row:
            proofs = clause[2] or ""
            bars = tuple(Bar(each[1], float(each[3]), each[4], each[2] == ">=") for each in _BAR.finditer(proofs))
            names = tuple(name.strip() for name in _BAR.sub("", proofs).split(",") if name.strip())
            found[row].append(Clause(clause[1], names, bars))
        elif line.startswith(("- ", "## ")):
            raise ValueError(f"{path.name}:{number}: not a clause: {line!r}")
    return {name: tuple(clauses) for name, clauses in found.items()}


def uncovered(acceptance: str, clauses: Sequence[Clause]) -> list[str]:
    """Return a row's words that no clause covers, and clauses that are not part of it, in order; pure."""
    left: list[str] = []
    at = 0
    for clause in clauses:
        place = acceptance.find(clause.text, at)
        if place < 0:
            return [*left, f"not a part of it: {clause.text!r}"]
        left += _words(acceptance[at:place])
        at = place + len(clause.text)
    return left + _words(acceptance[at:])


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text) if word.lower() not in _CONNECTIVES]


def unproved(
    acceptance: str,
    clauses: Sequence[Clause],
    passed: Mapping[str, bool],
    figures: Mapping[str, Measured] = MappingProxyType({}),
) -> list[str]:
    """Return the parts of a row that no passing test asserts and no figure shows; pure.

    passed: test → whether it passed. figures: name → the last measured value.
    """
    if not clauses:
        return ["not broken into clauses yet"]
    missing = [c.text for c in clauses if not _is_proved(c, passed, figures)]
    words = uncovered(acceptance, clauses)
    return [*missing, *([" ".join(words)] if words else [])]


def _is_proved(clause: Clause, passed: Mapping[str, bool], figures: Mapping[str, Measured]) -> bool:
    met = [bar.figure in figures and bar.is_met(figures[bar.figure].value) for bar in clause.bars]
    return bool(clause.tests or met) and all(met) and all(passed.get(name, False) for name in clause.tests)


def list_tests(folder: Path = TESTS) -> Iterator[str]:
    """Yield the names of all test functions."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                yield node.name
