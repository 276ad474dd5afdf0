"""The status page states what the test run proved, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.clauses import TABLE, Bar, Clause, Measured, list_tests, read_acceptance, read_clauses, uncovered
from support.status import FIGURES, REQUIREMENTS, Proof, Required, read_titles, read_unmeasured, render, rows_of


@pytest.mark.parametrize(
    ("nodeid", "rows"),
    [
        ("tests/a.py::test_s27_miss_is_never_live", ["S27"]),
        ("tests/a.py::test_s27_n14_miss_is_never_live", ["S27", "N14"]),
        ("tests/a.py::test_sha256_is_stable", []),
        ("tests/a.py::test_h2_schema_refuses_bad_values", ["H2"]),
        ("tests/a.py::test_p12_w4_a_hole_is_no_divergence", ["P12", "W4"]),
    ],
    ids=["one row", "two rows", "a word that looks like a row", "helm", "newer rows"],
)
def test_status_rows_are_read_from_test_names(nodeid: str, rows: list[str]) -> None:
    """A test's name begins with its rows."""
    assert rows_of(nodeid) == rows


def test_status_page_names_failures_and_missing_rows() -> None:
    """One failed case outweighs passed ones, and a row without a test is marked so."""
    proof = Proof()
    proof.add("t::test_s1_x[a]", "passed")
    proof.add("t::test_s1_x[b]", "failed")
    page = render({"S1": {"t::test_s1_x": proof}}, Required({"S1": "first", "U4": "two commands"}), {})
    assert "| S1 | first | failed | `t::test_s1_x` (2 cases) — failed |" in page
    assert "| U4 | two commands | no test yet |  |" in page
    assert "0 of 2 rows have passed" in page


def test_status_page_says_what_was_skipped_and_why() -> None:
    """A row with some skipped cases has passed, with the reason; one with only skipped cases has not."""
    partly, wholly = Proof(), Proof()
    partly.add("t::test_n1_x[a]", "skipped", "no other Python here")
    partly.add("t::test_n1_x[b]", "passed")
    wholly.add("t::test_n2_y", "skipped", "no Chromium | here")
    rows = Required({}, {"N1": "It works."}, {"N1": (Clause("It works.", ("test_n1_x",)),)})
    page = render({"N1": {"t::test_n1_x": partly}, "N2": {"t::test_n2_y": wholly}}, rows, {"test_n1_x": True})
    assert "| N1 |  | passed | `t::test_n1_x` (2 cases) — passed, 1 skipped (no other Python here) |" in page
    assert "| N2 |  | skipped | `t::test_n2_y` — skipped (no Chromium / here) |" in page
    assert "1 of 2 rows have passed, 0 are partly proved. Of N1 some were skipped" in page


def test_status_page_says_which_figures_no_gpu_has_measured(tmp_path: Path) -> None:
    """A row with a blank figure has passed what its tests prove, and the page says that the figure is missing."""
    path = tmp_path / "k.md"
    path.write_text("| | | wanted | H100 |\n| K1 | m | ≥ 1 | 0.93 (worst 0.9) |\n| K2 | n | ≥ 1 |  |\n")
    assert read_unmeasured(path) == {"K2"}
    assert read_unmeasured(FIGURES) <= {f"K{n}" for n in range(1, 9)}
    proof = Proof()
    proof.add("t::test_k2_x", "passed")
    page = render(
        {"K2": {"t::test_k2_x": proof}}, Required({}, {"K2": "≥ 1"}, {"K2": (Clause("≥ 1", ()),)}), {}, {"K2"}
    )
    assert "| K2 |  | not proved; not asserted: ≥ 1, figure not measured | `t::test_k2_x` |" in page
    assert "0 of 1 rows have passed, 0 are partly proved. K2 want a figure of a GPU" in page


def test_status_titles_come_from_the_tables(tmp_path: Path) -> None:
    """Titles are the second column, without markup, cut to one line."""
    path = tmp_path / "R.md"
    path.write_text("| S1 | **Bold** `code`  | long | x |\n| # | Item |\n| K3 | " + "w" * 200 + " | y |\n")
    titles = read_titles(path)
    assert titles["S1"] == "Bold code"
    assert len(titles["K3"]) == 90


CLAUSES = (
    Clause("Email in the prompt: not in ClickHouse", ("test_a", "test_b")),
    Clause("run still replays", ("test_c",)),
)


@pytest.mark.parametrize(
    ("clauses", "passed", "result"),
    [
        (CLAUSES, {"test_a": True, "test_b": True, "test_c": True}, "passed"),
        (CLAUSES, {"test_a": True, "test_c": True}, "partly; not asserted: Email in the prompt: not in ClickHouse"),
        (CLAUSES, {"test_a": True, "test_b": False, "test_c": True}, "partly; not asserted: Email in the prompt"),
        (CLAUSES[:1], {"test_a": True, "test_b": True}, "partly; not asserted: run still replays"),
        (
            (*CLAUSES[:1], Clause("run still replays", ())),
            {"test_a": True, "test_b": True},
            "partly; not asserted: run",
        ),
        ((), {"test_a": True}, "partly; not asserted: not broken into clauses yet"),
    ],
    ids=["all", "a test did not run", "a test did not pass", "a word without clause", "a clause without test", "none"],
)
def test_status_row_passes_only_if_each_of_its_words_is_asserted(
    clauses: tuple[Clause, ...], passed: dict[str, bool], result: str
) -> None:
    """Every clause needs passing tests, and the clauses must cover the row's text; missing parts are named."""
    proof = Proof()
    proof.add("t::test_s43_x", "passed")
    rows = Required(
        {"S43": "PII"}, {"S43": "Email in the prompt: not in ClickHouse; and run still replays."}, {"S43": clauses}
    )
    assert f"| S43 | PII | {result}" in render({"S43": {"t::test_s43_x": proof}}, rows, passed)


@pytest.mark.parametrize(
    ("figures", "result", "told"),
    [
        ({"ls": Measured(0.25, "s", "a machine")}, "passed", "ls: 0.25 s, wanted ≤ 1 |"),
        ({"ls": Measured(1.5, "s", "a machine")}, "partly; not asserted: < 1 s", "ls: 1.50 s, wanted ≤ 1 |"),
        ({}, "partly; not asserted: < 1 s", "| `t::test_s19_x` |"),
    ],
    ids=["met", "missed", "not measured"],
)
def test_status_figure_proves_its_clause_only_where_it_reaches_its_bar(
    figures: dict[str, Measured], result: str, told: str
) -> None:
    """A clause about speed needs a measured figure, which stands beside the row with hardware and commit."""
    clauses = (Clause("a run is found", ("test_s19_x",)), Clause("< 1 s", (), (Bar("ls", 1.0, "s"),)))
    proof = Proof()
    proof.add("t::test_s19_x", "passed")
    rows = Required({"S19": "ls"}, {"S19": "a run is found, < 1 s"}, {"S19": clauses}, figures)
    page = render({"S19": {"t::test_s19_x": proof}}, rows, {"test_s19_x": True})
    (line,) = (each for each in page.splitlines() if each.startswith("| S19 |"))
    assert f"| {result} |" in line
    assert line.endswith(told)
    assert ("| a machine |" in page) == bool(figures)


def test_status_bars_are_those_of_the_clauses(tmp_path: Path) -> None:
    """No figure proves a clause with a weaker limit than the clause's own words."""
    path = tmp_path / "clauses.md"
    path.write_text("## S1\n- over 1,000 calls < 2 s ← `a, of 1,000 calls` <= 2 s, test_s1_x, `b` >= 0.5 MB/s\n")
    (clause,) = read_clauses(path)["S1"]
    assert clause.tests == ("test_s1_x",)
    assert clause.bars == (Bar("a, of 1,000 calls", 2.0, "s"), Bar("b", 0.5, "MB/s", is_least=True))
    assert [bar.is_met(2.0) for bar in clause.bars] == [True, True]
    weaker = {
        clause.text: bar
        for clauses in read_clauses(TABLE).values()
        for clause in clauses
        for bar in clause.bars
        if not re.search(rf"(?<![\d.]){re.escape(bar.tell_limit())}(?![\d.])", clause.text)
    }
    assert weaker == {}


def test_status_clauses_are_the_rows_own_words() -> None:
    """Each clause of the table is a part of its row's acceptance text, and together they cover every word."""
    acceptance = read_acceptance(REQUIREMENTS)
    left = {row: uncovered(acceptance[row], clauses) for row, clauses in read_clauses(TABLE).items()}
    assert {row: words for row, words in left.items() if words} == {}


def test_status_clauses_name_tests_that_exist() -> None:
    """Each name in the table is the name of exactly one test function."""
    names = list(list_tests())
    claimed = {name for clauses in read_clauses(TABLE).values() for clause in clauses for name in clause.tests}
    assert {name: names.count(name) for name in claimed if names.count(name) != 1} == {}


def test_status_line_that_is_no_clause_is_refused(tmp_path: Path) -> None:
    """A line of the table without an arrow would prove nothing, silently."""
    path = tmp_path / "clauses.md"
    path.write_text("## S1\n- without an arrow\n")
    with pytest.raises(ValueError, match=r"clauses\.md:2: not a clause"):
        read_clauses(path)
