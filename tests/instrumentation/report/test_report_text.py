"""Reports for people: every verdict as text, word for word.

To see what a change of the wording does: SPANREPLAY_TEST_WRITE_GOLDEN=true pytest, then `git diff`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.escape import escape, shorten, window
from spanreplay.report import text
from spanreplay.report.json import parse

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(p.stem for p in GOLDEN.glob("*.json"))
FORBIDDEN = {chr(c) for c in [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), 0x200B, 0xE0041]} - {"\n"}


@pytest.mark.parametrize("case", CASES)
def test_u5_text_report_is_word_for_word(case: str) -> None:
    """Each verdict gives exactly the committed text, verdict first."""
    verdict = parse((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))
    shown = text.render(verdict).plain + "\n"
    expected = GOLDEN / f"{case}.txt"
    if os.environ.get("SPANREPLAY_TEST_WRITE_GOLDEN") == "true":
        expected.write_text(shown, encoding="utf-8")
    assert shown == expected.read_text(encoding="utf-8")
    assert not FORBIDDEN & set(shown)


@given(st.text())
def test_escape_leaves_nothing_that_drives_a_terminal(content: str) -> None:
    """No content, however hostile, keeps a control character; escaping twice changes nothing."""
    shown = escape(content)
    assert not (FORBIDDEN | {"\n"}) & set(shown)
    assert escape(shown) == shown
    assert not FORBIDDEN - {"\t"} & set(escape(content, keep_lines=True))


@given(st.text(min_size=1), st.integers(0, 50), st.integers(8, 40))
def test_window_and_shorten_have_limits(content: str, at: int, characters_max: int) -> None:
    """A shortened line has a maximum length, and a window contains the place of interest."""
    assert len(shorten(content, characters_max)) <= characters_max
    assert "\n" not in window(content, at, characters_max)
    long = "a" * 200 + "X" + "b" * 200
    assert "X" in window(long, 200, characters_max)
