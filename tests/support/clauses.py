"""The table `tests/clauses.md`: the clauses of each requirement row, and the tests that assert them.

A clause is a verbatim part of the row's acceptance text (its last column), and the clauses of a row cover all of its
words. A row is no longer proved once its wording changes or one of its tests is gone.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS / "clauses.md"
LETTERS = "SNUCRKHPW"
_TABLE_ROW = re.compile(rf"^\| ([{LETTERS}]\d{{1,2}}) \| (.+?) *\|$")
_HEADING = re.compile(rf"^## ([{LETTERS}]\d{{1,2}})$")
_CLAUSE = re.compile(r"^- (.+?) ←(?: (.*))?$")
_WORD = re.compile(r"[^\W_]+")
_CONNECTIVES = frozenset({"and", "or", "then", "plus"})


@dataclass(frozen=True)
class Clause:
    """A part of a row's acceptance text, and the names of the test functions that assert it."""

    text: str
    tests: tuple[str, ...]


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
            names = tuple(name.strip() for name in (clause[2] or "").split(",") if name.strip())
            found[row].append(Clause(clause[1], names))
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


def unproved(acceptance: str, clauses: Sequence[Clause], passed: Mapping[str, bool]) -> list[str]:
    """Return the parts of a row that no passing test asserts; `passed`: test → whether it passed; pure."""
    if not clauses:
        return ["not broken into clauses yet"]
    missing = [c.text for c in clauses if not c.tests or not all(passed.get(name, False) for name in c.tests)]
    words = uncovered(acceptance, clauses)
    return [*missing, *([" ".join(words)] if words else [])]


def list_tests(folder: Path = TESTS) -> Iterator[str]:
    """Yield the names of all test functions."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                yield node.name
