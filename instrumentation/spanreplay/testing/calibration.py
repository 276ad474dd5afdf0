"""How well a judge agrees with people: its decisions on examples that people have labelled."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spanreplay.model.errors import ConfigError
from spanreplay.model.escape import escape, shorten
from spanreplay.report.words import plural
from spanreplay.runtime.process.surroundings import set_aside
from spanreplay.testing.judge import Judge, Judgement, ask_judge

__all__ = ["Agreement", "Example", "calibrate_judge", "take_reports"]

EXAMPLES_MAX: Final = 10_000
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
REPORTS_MAX: Final = 100
_SHOWN_MAX: Final = 10
_TEXT_MAX: Final = 120
_LABELS: Final = ("pass", "fail")
_reports: list[str] = []


@dataclass(frozen=True)
class Example:
    """One labelled example."""

    line: int
    text: str
    label: str
    criterion: str


@dataclass(frozen=True)
class Agreement:
    """A judge's decisions beside the labels of people."""

    judged: tuple[tuple[Example, Judgement], ...]

    def count(self, label: str, decision: str) -> int:
        """How many examples with this label got this decision."""
        return sum(example.label == label and found.decision == decision for example, found in self.judged)

    @property
    def agreed(self) -> int:
        """Examples on which the judge decides as people did."""
        return self.count("pass", "pass") + self.count("fail", "fail")

    @property
    def abstained(self) -> int:
        """Examples on which the judge does not decide."""
        return sum(found.decision == "abstain" for _, found in self.judged)

    @property
    def decided(self) -> int:
        """Examples on which the judge decides."""
        return len(self.judged) - self.abstained

    @property
    def share(self) -> float:
        """The part of the decided examples on which the judge agrees; 0 if it decides none."""
        return self.agreed / self.decided if self.decided else 0.0

    @property
    def kappa(self) -> float:
        """Agreement beyond chance on the decided examples, 1 at most; a judge that always passes gets 0.

        Source: Cohen 1960, A coefficient of agreement for nominal scales.
        """
        if not self.decided:
            return 0.0
        rows = Counter(example.label for example, found in self.judged if found.decision != "abstain")
        columns = Counter(found.decision for _, found in self.judged)
        chance = sum(rows[word] * columns[word] for word in _LABELS) / self.decided**2
        return 1.0 if chance == 1 else (self.share - chance) / (1 - chance)

    def __str__(self) -> str:
        return (
            f"{self.agreed} of {plural(self.decided, 'decision')} as people labelled them "
            f"({self.share:.0%}, kappa {self.kappa:.2f}); wrongly passed {self.count('fail', 'pass')}, "
            f"wrongly failed {self.count('pass', 'fail')}, abstained {self.abstained} of {len(self.judged)}"
        )


def calibrate_judge(
    labels: str | os.PathLike[str], *, judge: Judge, criterion: str = "", at_least: float = 0.0
) -> Agreement:
    """Ask a judge about labelled examples, and report how often it agrees with people.

    Each line of the file is `{"text": "…", "label": "pass" or "fail", "criterion": "…"}`; `criterion` is for lines
    without one. pytest shows the agreement at the end of its output, and writes it into a JUnit file.

    Raises: AssertionError with the examples that differ, if the judge agrees on less than `at_least` (0 to 1) of the
    examples that it decides, or decides none; ConfigError for an unusable file, with the line.
    """
    __tracebackhide__ = True
    if not 0 <= at_least <= 1:
        raise ConfigError(f"at_least={at_least} is not between 0 and 1", hint="0.9 asks for 9 of 10")
    path = Path(labels)
    examples = list(_read(path, criterion))
    found = Agreement(tuple((each, ask_judge(each.text, each.criterion, judge=judge)) for each in examples))
    if len(_reports) < REPORTS_MAX:
        _reports.append(f"{escape(path.name)}: {found}")
    if found.share < at_least or not found.decided:
        raise AssertionError(f"the judge agrees too rarely, {at_least:.0%} is required: {found}\n{_differing(found)}")
    return found


def take_reports() -> list[str]:
    """The reports since the last call."""
    taken = _reports[:]
    del _reports[: len(taken)]
    return taken


def _differing(agreement: Agreement) -> str:
    wrong = [(example, found) for example, found in agreement.judged if found.decision != example.label]
    lines = [
        f"  line {example.line}: people {example.label}, the judge {found.decision} "
        f"({shorten(found.reason, _TEXT_MAX)}): {shorten(example.text, _TEXT_MAX)}"
        for example, found in wrong[:_SHOWN_MAX]
    ]
    return "\n".join([*lines, *([f"  … {len(wrong) - _SHOWN_MAX} more"] if len(wrong) > _SHOWN_MAX else [])])


def _read(path: Path, criterion: str) -> Iterator[Example]:
    hint = 'a line is {"text": "…", "label": "pass" or "fail", "criterion": "…"}'
    try:
        with set_aside():  # the labels are the test's, not the agent's
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{str(path)!r} is larger than {FILE_BYTES_MAX} bytes")
            lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"can't read the labels in {str(path)!r}: {type(exc).__name__}", hint=hint) from exc
    is_empty = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number > EXAMPLES_MAX:
            raise ConfigError(f"{str(path)!r} has more than {EXAMPLES_MAX} lines", hint="judge a sample of them")
        is_empty = False
        yield _read_line(f"{path}:{number}", number, line, criterion, hint)
    if is_empty:
        raise ConfigError(f"{str(path)!r} has no examples", hint=hint)


def _read_line(place: str, number: int, line: str, criterion: str, hint: str) -> Example:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{place}: not JSON", hint=hint) from exc
    if not isinstance(value, dict) or not isinstance(value.get("text"), str) or value.get("label") not in _LABELS:
        raise ConfigError(f"{place}: text or label is missing", hint=hint)
    asked = value.get("criterion") or criterion
    if not isinstance(asked, str) or not asked:
        raise ConfigError(f"{place}: no criterion", hint="write one into the line, or give criterion=…")
    return Example(number, value["text"], str(value["label"]), asked)
