"""The status page says what the test run proved, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.status import Proof, read_titles, render, rows_of


@pytest.mark.parametrize(
    ("nodeid", "rows"),
    [
        ("tests/a.py::test_s27_miss_is_never_live", ["S27"]),
        ("tests/a.py::test_s27_n14_miss_is_never_live", ["S27", "N14"]),
        ("tests/a.py::test_sha256_is_stable", []),
        ("tests/a.py::test_h2_schema_refuses_bad_values", ["H2"]),
    ],
    ids=["one row", "two rows", "a word that looks like a row", "helm"],
)
def test_status_rows_are_read_from_test_names(nodeid: str, rows: list[str]) -> None:
    """A test names its rows first in its name."""
    assert rows_of(nodeid) == rows


def test_status_page_names_failures_and_missing_rows() -> None:
    """A failed case outweighs passed ones, and a row without a test is said to have none."""
    proof = Proof()
    proof.add("t::test_s1_x[a]", "passed")
    proof.add("t::test_s1_x[b]", "failed")
    page = render({"S1": {"t::test_s1_x": proof}}, {"S1": "first", "U4": "two commands"})
    assert "| S1 | first | failed | `t::test_s1_x` (2 cases) — failed |" in page
    assert "| U4 | two commands | no test yet |  |" in page
    assert "0 of 2 rows" in page


def test_status_page_says_what_was_skipped_and_why() -> None:
    """A row of which a case was skipped has passed, with the reason; one of which all were has not."""
    partly, wholly = Proof(), Proof()
    partly.add("t::test_n1_x[a]", "skipped", "no other Python here")
    partly.add("t::test_n1_x[b]", "passed")
    wholly.add("t::test_n2_y", "skipped", "no Chromium | here")
    page = render({"N1": {"t::test_n1_x": partly}, "N2": {"t::test_n2_y": wholly}}, {})
    assert "| N1 |  | passed | `t::test_n1_x` (2 cases) — passed, 1 skipped (no other Python here) |" in page
    assert "| N2 |  | skipped | `t::test_n2_y` — skipped (no Chromium / here) |" in page
    assert "1 of 2 rows have tests, all of which pass. Of N1 some were skipped" in page


def test_status_titles_come_from_the_tables(tmp_path: Path) -> None:
    """Titles are the second column, without markup, cut to one line."""
    path = tmp_path / "R.md"
    path.write_text("| S1 | **Bold** `code`  | long | x |\n| # | Item |\n| K3 | " + "w" * 200 + " | y |\n")
    titles = read_titles(path)
    assert titles["S1"] == "Bold code"
    assert len(titles["K3"]) == 90
