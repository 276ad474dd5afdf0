"""The scanner's work is linear in the length of any text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spanreplay.redact import RULES, Redactor
from spanreplay.redact.scanner import Scanner, resolve

_LITERALS = sorted({anchor for rule in RULES for anchor in rule.anchors})
_CLASSES = ("a", "A", "0", "-", "_", ".", "=", " ", ":", "/", '"', "\\", "é", "aA0", "key=", "a_")
_SIZE = 4_000


class _Counting:
    """A compiled pattern that counts its attempts and the characters that it consumes."""

    calls = 0
    taken = 0

    def __init__(self, pattern: bytes) -> None:
        self._pattern = re.compile(pattern)

    def match(self, text: bytes, at: int) -> re.Match[bytes] | None:
        _Counting.calls += 1
        match = self._pattern.match(text, at)
        if match is not None:
            _Counting.taken += match.end() - at
        return match


def _work(text: str) -> tuple[int, int]:
    compile_pattern: Any = _Counting
    scanner = Scanner(RULES, compile_pattern)
    _Counting.calls = _Counting.taken = 0
    encoded = text.encode()
    resolve(encoded, scanner.scan(encoded), ())
    return _Counting.calls, _Counting.taken


@pytest.mark.parametrize("literal", _LITERALS)
@pytest.mark.sampled(45)
def test_r4_work_is_linear_on_adversarial_text(literal: str) -> None:
    """Twice the repetitions of an anchor, alone or before any class of characters, take twice the work."""
    for filler in ("", *_CLASSES):
        for unit in (literal + filler, literal + filler * 40):
            small = _work(unit * (_SIZE // len(unit)))
            large = _work(unit * (2 * _SIZE // len(unit)))
            assert large[0] <= 2.1 * small[0] + 10
            assert large[1] <= 2.1 * small[1] + 25_000
            assert large[0] <= 2 * 2 * _SIZE  # two rules may share an anchor


def test_r4_one_long_run_is_tried_once_per_anchor() -> None:
    """An anchor followed by one endless value is matched once and then skipped."""
    for literal in _LITERALS:
        calls, taken = _work(literal + "a1B" * 50_000)
        assert calls < 50
        assert taken <= 2 * 150_000 + 50_000


def test_r4_known_values_are_bounded() -> None:
    """Thousands of different passwords use bounded memory, so that later texts stay cheap to scan."""
    run = Redactor(b"k" * 32, "k").run()
    redacted = run.text(" ".join(f"password=secret{n:06d}x" for n in range(3000)))
    assert redacted.count("rdx-k") == 3000
    assert len(run._finder._known) == 256


def test_scanner_compiles_a_rule_at_its_first_anchor() -> None:
    """A process pays for the rules that its texts give reason to try, once each."""
    compiled: list[bytes] = []

    def compile_pattern(pattern: bytes) -> re.Pattern[bytes]:
        compiled.append(pattern)
        return re.compile(pattern)

    scanner = Scanner(RULES, compile_pattern)
    assert not scanner.scan(b"text")
    assert not compiled
    assert scanner.scan(b"password=hunter2secret") == scanner.scan(b"password=hunter2secret") != []
    assert 0 < len(compiled) < 10
    for literal in _LITERALS:
        scanner.scan(literal.encode() + b"a1B" * 50)
    count = len(compiled)
    for literal in _LITERALS:
        scanner.scan(literal.encode() + b"a1B" * 50)
    assert len(compiled) == count
