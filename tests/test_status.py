"""The status page says what the test run proved, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.status import FIGURES, Proof, read_titles, read_unmeasured, render, rows_of


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


def test_status_page_says_which_figures_no_gpu_has_measured(tmp_path: Path) -> None:
    """A row with a blank figure has passed what its tests prove, and the page says that the figure is missing."""
    path = tmp_path / "k.md"
    path.write_text("| | | wanted | H100 |\n| K1 | m | ≥ 1 | 0.93 (worst 0.9) |\n| K2 | n | ≥ 1 |  |\n")
    assert read_unmeasured(path) == {"K2"}
    assert read_unmeasured(FIGURES) <= {f"K{n}" for n in range(1, 9)}
    proof = Proof()
    proof.add("t::test_k2_x", "passed")
    page = render({"K2": {"t::test_k2_x": proof}}, {}, {"K2"})
    assert "| K2 |  | passed, figure not measured | `t::test_k2_x` |" in page
    assert "1 of 1 rows have tests, all of which pass. K2 want a figure of a GPU" in page


def test_status_titles_come_from_the_tables(tmp_path: Path) -> None:
    """Titles are the second column, without markup, cut to one line."""
    path = tmp_path / "R.md"
    path.write_text("| S1 | **Bold** `code`  | long | x |\n| # | Item |\n| K3 | " + "w" * 200 + " | y |\n")
    titles = read_titles(path)
    assert titles["S1"] == "Bold code"
    assert len(titles["K3"]) == 90
