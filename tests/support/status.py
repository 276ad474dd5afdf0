"""Writes docs/STATUS.md: each requirement row, the tests that name it, and whether they passed.

A test's name begins with its rows: `test_s27_s28_miss_is_never_live` belongs to S27 and S28. A row has passed if every
clause of its acceptance text has a passing test that asserts it (`clauses.md`); otherwise the missing clauses are
named. The page holds no dates or durations, so that equal runs write equal pages.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.clauses import (
    LETTERS,
    TABLE,
    Bar,
    Clause,
    Measured,
    read_acceptance,
    read_clauses,
    read_figures,
    row_order,
    unproved,
)

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "docs" / "REQUIREMENTS.md"
FIGURES = ROOT / "docs" / "kernels.md"
MEASURED = ROOT / "bench" / "measured.json"
_ROWS = re.compile(rf"^test((?:_[{LETTERS.lower()}]\d{{1,2}})+)(?=_)")
_TABLE_ROW = re.compile(rf"^\| ([{LETTERS}]\d{{1,2}}) \| (.+?) *\|")
_FIGURE_ROW = re.compile(r"^\| (K\d) \| .+ \|(.*)\|$")
_TITLE_CHARACTERS_MAX = 90
_WORST = ("passed", "skipped", "failed")

HEAD = """# Status

Which requirement each test proves. Written by `make test` from the run itself; do not edit.
The rows are those of [REQUIREMENTS.md](REQUIREMENTS.md). A row is *passed* if a passing test asserts each clause of its
acceptance text ([clauses](../tests/clauses.md)); of a row that is *partly* proved, the clauses without one are named.
"""
OF_FIGURES = "Clauses about speed and size are proved by figures that one machine has measured: [figures](#figures).\n"


@dataclass
class Proof:
    """One test function: its cases and the worst result."""

    cases: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    """The reason of each skipped case."""
    result: str = "passed"

    def add(self, nodeid: str, result: str, reason: str = "") -> None:
        """Add one case."""
        self.cases.add(nodeid)
        if result == "skipped":
            self.skipped[nodeid] = reason
        self.result = max(self.result, result, key=_WORST.index)
        if self.result == "skipped" and len(self.skipped) < len(self.cases):
            self.result = "passed"

    def tell(self) -> str:
        """Return the result with the reasons of skipped cases; '' if all passed."""
        if self.result != "passed" or not self.skipped:
            return "" if self.result == "passed" else f" — {self.result}{_reasons(self.skipped.values())}"
        return f" — passed, {len(self.skipped)} skipped{_reasons(self.skipped.values())}"


def _reasons(reasons: Iterable[str]) -> str:
    shown = "; ".join(sorted({each.replace("|", "/") for each in reasons if each}))
    return f" ({shown})" if shown else ""


def result_of(proofs: Iterable[Proof], missing: Sequence[str] = (), *, is_any_asserted: bool = True) -> str:
    """Return a row's result: failed if any of its tests did, skipped if all were, partly if clauses are `missing`."""
    results = {proof.result for proof in proofs}
    if not results or "failed" in results:
        return "failed" if results else "no test yet"
    if "passed" not in results:
        return "skipped"
    named = "; ".join(missing).replace("|", "/")
    return f"{'partly' if is_any_asserted else 'not proved'}; not asserted: {named}" if missing else "passed"


def rows_of(nodeid: str) -> list[str]:
    """Return the rows that a test id names; pure."""
    match = _ROWS.match(nodeid.rpartition("::")[2])
    return [part.upper() for part in match.group(1).split("_") if part] if match else []


def name_of(nodeid: str) -> str:
    """Return the name of a test's function; pure."""
    return nodeid.rpartition("::")[2]


def claimed_tests() -> dict[str, list[str]]:
    """Return the names of tests that assert a clause → the rows of those clauses."""
    claimed: defaultdict[str, list[str]] = defaultdict(list)
    for row, clauses in read_clauses(TABLE).items():
        for name in sorted({name for clause in clauses for name in clause.tests}):
            claimed[name].append(row)
    return dict(claimed)


def read_titles(path: Path) -> dict[str, str]:
    """Return row → its title, from the tables of the requirements; empty without the file."""
    if not path.exists():
        return {}
    titles: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = _TABLE_ROW.match(line)
        if match and match.group(1) not in titles:
            text = re.sub(r"[*`]", "", match.group(2).split(" | ")[0]).strip()
            short = text if len(text) <= _TITLE_CHARACTERS_MAX else text[: _TITLE_CHARACTERS_MAX - 1].rstrip() + "…"
            titles[match.group(1)] = short
    return titles


def read_unmeasured(path: Path) -> set[str]:
    """Return the rows whose figure has not been measured on a GPU: those blank in the table of figures."""
    if not path.exists():
        return set()
    cells = [_FIGURE_ROW.match(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {cell[1] for cell in cells if cell is not None and not cell[2].strip()}


@dataclass(frozen=True)
class Required:
    """The requirements by row: title, acceptance text, clauses."""

    titles: Mapping[str, str] = field(default_factory=dict)
    acceptance: Mapping[str, str] = field(default_factory=dict)
    clauses: Mapping[str, Sequence[Clause]] = field(default_factory=dict)
    figures: Mapping[str, Measured] = field(default_factory=dict)
    """The last measured value of each figure."""

    def missing(self, row: str, passed: Mapping[str, bool]) -> list[str]:
        """Return the parts of a row that no passing test asserts and no figure shows."""
        return unproved(self.acceptance.get(row, ""), self.clauses.get(row, ()), passed, self.figures)

    def tell_figures(self, row: str) -> list[str]:
        """Return a row's figures with their values and limits."""
        return [
            f"{bar.figure}: {_tell(self.figures[bar.figure])}, wanted {'≥' if bar.is_least else '≤'} {bar.tell_limit()}"
            for bar in self._bars(row)
            if bar.figure in self.figures
        ]

    def used_figures(self) -> list[str]:
        """Return the names of measured figures that prove a clause of any row."""
        return sorted({bar.figure for row in self.clauses for bar in self._bars(row)} & self.figures.keys())

    def _bars(self, row: str) -> list[Bar]:
        return list(dict.fromkeys(bar for clause in self.clauses.get(row, ()) for bar in clause.bars))


def read_required() -> Required:
    """Read the rows of docs/REQUIREMENTS.md and the clauses of clauses.md."""
    return Required(
        read_titles(REQUIREMENTS), read_acceptance(REQUIREMENTS), read_clauses(TABLE), read_figures(MEASURED)
    )


def _tell(figure: Measured) -> str:
    digits = (
        f"{figure.value:,.0f}"
        if abs(figure.value) >= 100 or figure.value == int(figure.value)
        else f"{figure.value:.2f}"
    )
    return f"{digits} {figure.unit}".rstrip()


def _result(row: str, proofs: Mapping[str, Mapping[str, Proof]], required: Required, passed: Mapping[str, bool]) -> str:
    missing = required.missing(row, passed)
    clauses = required.clauses.get(row, ())
    is_any_asserted = not clauses or any(clause.text not in missing for clause in clauses)
    found = proofs.get(row, {}).values() or ([Proof()] if required.tell_figures(row) else [])
    return result_of(found, missing, is_any_asserted=is_any_asserted)


def render(
    proofs: dict[str, dict[str, Proof]],
    required: Required,
    passed: Mapping[str, bool],
    unmeasured: Collection[str] = frozenset(),
) -> str:
    """Render the page; pure and deterministic.

    passed: test function → whether it passed, for those that ran. unmeasured: rows that also require a figure that
    isn't measured yet.
    """
    rows = sorted(required.titles.keys() | proofs.keys(), key=row_order)
    results = {row: _result(row, proofs, required, passed) for row in rows}
    proved = [row for row in rows if results[row] == "passed"]
    partly = [row for row in rows if results[row].startswith("partly")]
    skipped = [row for row in proved if any(proof.skipped for proof in proofs[row].values())]
    used = required.used_figures()
    head = f"{HEAD}{OF_FIGURES if used else ''}"
    lines = [head, f"{len(proved)} of {len(rows)} rows have passed, {len(partly)} are partly proved.", ""]
    if unmeasured:
        blank = ", ".join(sorted(unmeasured, key=row_order))
        lines[1] += f" {blank} want a figure of a GPU besides, which is not measured: [kernels.md](kernels.md#speed)."
    if skipped:
        lines[1] += f" Of {', '.join(skipped)} some were skipped, for the reasons that stand there."
    lines += ["| Row | Required | Result | Tests |", "| --- | --- | --- | --- |"]
    for row in rows:
        result = results[row] + (", figure not measured" if row in unmeasured else "")
        named = []
        for name, proof in sorted(proofs.get(row, {}).items()):
            count = f" ({len(proof.cases)} cases)" if len(proof.cases) > 1 else ""
            named.append(f"`{name}`{count}{proof.tell()}")
        named += required.tell_figures(row)
        lines.append(f"| {row} | {required.titles.get(row, '')} | {result} | {'<br>'.join(named)} |")
    if used:
        lines += ["", "## Figures", "", "| Figure | Measured | Where |", "| --- | --- | --- |"]
        lines += [f"| {each} | {_tell(required.figures[each])} | {required.figures[each].where} |" for each in used]
    return "\n".join(lines) + "\n"


def _reason(report: pytest.TestReport) -> str:
    """Return the reason why a test was skipped, or ''. Contains no paths, which differ between machines."""
    if report.outcome != "skipped" or not isinstance(report.longrepr, tuple):
        return ""
    return report.longrepr[2].removeprefix("Skipped: ").replace(f"{ROOT}/", "")


class StatusPart:
    """A pytest plugin: writes the results of a run in another environment, for the main run's page."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claimed = claimed_tests()
        self._found: list[tuple[str, str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the result of one test that names a row or asserts a clause."""
        function = report.nodeid.partition("[")[0]
        is_wanted = bool(rows_of(function)) or name_of(function) in self._claimed
        if is_wanted and (report.when == "call" or report.outcome != "passed"):
            self._found.append((report.nodeid, report.outcome, _reason(report)))

    def pytest_sessionfinish(self) -> None:
        """Write the results."""
        self._path.write_text(json.dumps(self._found), encoding="utf-8")


class StatusPage:
    """A pytest plugin: collects results and writes the page when the whole suite ran."""

    def __init__(self, path: Path, config: pytest.Config, part: Path | None = None) -> None:
        self._path = path
        self._config = config
        self._is_collected = True
        self._claimed = claimed_tests()
        self._named: defaultdict[str, Proof] = defaultdict(Proof)
        self._proofs: defaultdict[str, defaultdict[str, Proof]] = defaultdict(lambda: defaultdict(Proof))
        for nodeid, result, reason in [] if part is None else json.loads(part.read_text(encoding="utf-8")):
            self._add(nodeid, result, reason)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the result of one test; under xdist the controller sees every report."""
        if report.when != "call" and report.outcome == "passed":
            return
        self._add(report.nodeid, report.outcome, _reason(report))

    def _add(self, nodeid: str, result: str, reason: str) -> None:
        function = nodeid.partition("[")[0]
        if name_of(function) in self._claimed:
            self._named[name_of(function)].add(nodeid, result, reason)
        for row in {*rows_of(function), *self._claimed.get(name_of(function), ())}:
            self._proofs[row][function].add(nodeid, result, reason)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record that a test file couldn't be collected."""
        self._is_collected = self._is_collected and not report.failed

    def _is_whole_suite(self) -> bool:
        option = self._config.option
        return not (option.keyword or option.markexpr or option.collectonly) and (
            self._config.args_source is not pytest.Config.ArgsSource.ARGS
        )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the page, unless tests were selected or the run was interrupted."""
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if ended and self._is_collected and self._is_whole_suite():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            proofs = {row: dict(tests) for row, tests in self._proofs.items()}
            passed = {name: proof.result == "passed" for name, proof in self._named.items()}
            page = render(proofs, read_required(), passed, read_unmeasured(FIGURES))
            self._path.write_text(page, encoding="utf-8")
