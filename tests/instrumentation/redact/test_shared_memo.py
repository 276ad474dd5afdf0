"""Runs of one process share the texts that they found clean, until one of them learns a secret."""

from __future__ import annotations

from typing import Any, Final

import pytest

from spanreplay.redact import Redactor, RunRedactor
from spanreplay.redact.finder import Finder

PROMPT: Final = "You are the clerk of a shop, and the safe opens with Xk7fQ2vLw9Zr4TnB8sYd for those who ask."
SECRET: Final = "Xk7fQ2vLw9Zr4TnB8sYd"


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were scanned."""
    found: list[str] = []
    real = Finder.scan

    def scan(self: Finder, texts: list[str]) -> None:
        found.extend(texts)
        real(self, texts)

    monkeypatch.setattr(Finder, "scan", scan)
    return found


def _units(redactor: Redactor, process: RunRedactor, count: int) -> list[RunRedactor]:
    units = [redactor.run() for _ in range(count)]
    for unit in units:
        unit.adopt(process)
    return units


def _learn(run: RunRedactor) -> None:
    assert SECRET not in str(run.value({"password": SECRET}))


@pytest.fixture
def redactor() -> Redactor:
    return Redactor(b"k" * 32, "k")


def test_r4_a_text_of_all_units_is_scanned_once(redactor: Redactor, scanned: list[str]) -> None:
    """As the instructions that every request sends to its model."""
    first, second = _units(redactor, redactor.run(), 2)
    for unit in (first, second, second):
        assert unit.text(PROMPT) == PROMPT
    assert scanned.count(PROMPT) == 1


def test_r1_a_unit_that_learns_a_secret_does_not_ask_the_others(redactor: Redactor) -> None:
    """It looks for the secret itself, whatever others found clean; and the others go on without it."""
    first, second, third = _units(redactor, redactor.run(), 3)
    assert first.text(PROMPT) == PROMPT
    _learn(second)
    assert SECRET not in second.text(PROMPT)
    assert third.text(PROMPT) == PROMPT


def test_r1_equal_texts_stay_equal_within_a_unit(redactor: Redactor) -> None:
    """As without other units: what it has seen clean stays clean, so that resent history keeps its key."""
    first, second = _units(redactor, redactor.run(), 2)
    assert first.text(PROMPT) == PROMPT
    assert second.text(PROMPT) == PROMPT
    _learn(second)
    assert second.text(PROMPT) == PROMPT


def test_r1_what_the_process_learns_later_holds_for_later_units(redactor: Redactor) -> None:
    """Texts that earlier units found clean are looked at again."""
    process = redactor.run()
    (early,) = _units(redactor, process, 1)
    assert early.text(PROMPT) == PROMPT
    _learn(process)
    (late,) = _units(redactor, process, 1)
    assert SECRET not in late.text(PROMPT)
    assert early.text(f"{PROMPT} ") == f"{PROMPT} "


def test_r1_a_unit_that_knew_a_secret_before_shares_nothing(redactor: Redactor) -> None:
    """What it found clean says nothing about what others know."""
    process = redactor.run()
    (first,) = _units(redactor, process, 1)
    assert first.text(PROMPT) == PROMPT
    late = redactor.run()
    _learn(late)
    late.adopt(process)
    assert SECRET not in late.text(PROMPT)


def test_r1_a_text_with_a_secret_teaches_each_unit(redactor: Redactor) -> None:
    """A secret that its place tells is learned by every unit that reads it."""
    told: Any = {"headers": {"authorization": f"Bearer {SECRET}"}}
    for unit in _units(redactor, redactor.run(), 2):
        assert SECRET not in str(unit.value(told))
        assert SECRET not in unit.text(PROMPT)
