"""`assert_behaves_like`: how often a run calls what, and what its answers look like, compared with recorded runs.

The rules ask no model. They let pass what changes from run to run (wording, order, an extra attempt), and find shifts:
a call made several times as often, JSON that has become prose, a step that is never taken any more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spanreplay.model.call import Effect, Kind, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.model.escape import escape
from spanreplay.report.words import plural
from spanreplay.testing.made_calls import HoldsCalls, MadeCall, RunLike, read_calls
from spanreplay.testing.matching import matcher_of
from spanreplay.testing.shapes import compare_shapes

__all__ = ["Shift", "assert_behaves_like", "find_shifts"]

BASELINES_MAX: Final = 1_000
MORE_CALLS_MIN: Final = 2
"""A call made once instead of never, or twice instead of once, is no shift, whatever the factor."""
_COUNTED: Final = frozenset({Kind.EMBEDDING.value, Kind.HUMAN.value, Kind.LLM.value, Kind.RETRIEVER.value})
_CHANGING: Final = frozenset({Effect.WRITE.value, Effect.IRREVERSIBLE.value})
_MODELS: Final = frozenset({Kind.EMBEDDING.value, Kind.LLM.value})
_OTHER_FUNCTIONS: Final = "(others)"

Fact = Callable[[Sequence[MadeCall]], object]


@dataclass(frozen=True)
class Shift:
    """One way in which a run behaves differently from all runs of the baseline."""

    rule: str
    """count, stopped, new, shape or fact."""
    subject: str
    """What it is about: a tool, `llm`, a kind and a name, or the name of a fact."""
    text: str

    def __str__(self) -> str:
        return f"{self.rule} {escape(self.subject)}: {escape(self.text)}"


def assert_behaves_like(
    run: RunLike,
    baseline: RunLike | Iterable[RunLike],
    *,
    more_calls: float = 2.0,
    ignore: Iterable[str] = (),
    renamed: Mapping[str, str] | None = None,
    facts: Mapping[str, Fact] | None = None,
) -> None:
    """Assert that a run behaves like one or more recorded runs: `assert_behaves_like(replay_session, "good.replay")`.

    Fails if a tool, a model, a retriever or a human is asked more than `more_calls` times as often as in any run of the
    baseline (and at least twice more); if one that was asked in every one is not asked at all; if a tool is called that
    is in none, and may change something; if answers have another shape; and if a function of `facts`, which gets the
    calls, returns a value that it returns for no run of the baseline.
    `ignore` names calls as in `assert_trajectory`; `renamed` maps names of tools in the baseline to those of now.

    Makes no call. Raises: AssertionError with every shift; ConfigError; SourceError.
    """
    __tracebackhide__ = True
    shifts = find_shifts(run, baseline, more_calls=more_calls, ignore=ignore, renamed=renamed, facts=facts)
    if shifts:
        lines = "\n".join(f"  {shift}" for shift in shifts)
        raise AssertionError(f"the run does not behave like the baseline: {plural(len(shifts), 'shift')}\n{lines}")


def find_shifts(
    run: RunLike,
    baseline: RunLike | Iterable[RunLike],
    *,
    more_calls: float = 2.0,
    ignore: Iterable[str] = (),
    renamed: Mapping[str, str] | None = None,
    facts: Mapping[str, Fact] | None = None,
) -> list[Shift]:
    """The shifts that `assert_behaves_like` fails for; [] if there are none."""
    if more_calls < 1:
        raise ConfigError(f"more_calls={more_calls} is not a factor", hint="2.0 allows twice as many calls")
    matchers = [matcher_of(each) for each in ignore]

    def read(each: RunLike) -> list[MadeCall]:
        return [call for call in read_calls(each).calls if not any(matcher.has_name(call) for matcher in matchers)]

    names = dict(renamed or {})
    before, now = [read(each) for each in _each_of(baseline)], read(run)
    counts, counts_now = [_count(calls, names) for calls in before], _count(now, {})
    return [
        *_find_counts(counts, counts_now, more_calls),
        *_find_stopped(counts, counts_now),
        *_find_new(counts, now),
        *_find_shapes([_answers(calls, names) for calls in before], _answers(now, {})),
        *_find_facts(before, now, facts or {}),
    ]


def _each_of(baseline: RunLike | Iterable[RunLike]) -> list[RunLike]:
    is_one = isinstance(baseline, (Recording, str, os.PathLike, Mapping, HoldsCalls))
    runs: list[Any] = [baseline] if is_one else list(baseline)  # type: ignore[arg-type]  # narrowed by is_one
    if not 0 < len(runs) <= BASELINES_MAX:
        raise ConfigError(f"a baseline of {len(runs)} runs", hint=f"give 1 to {BASELINES_MAX} recordings")
    return runs


def _subject(call: MadeCall, names: Mapping[str, str]) -> str:
    """What a call is counted as; '' if it is not counted. Models are one subject, whoever provides them."""
    if call.is_tool:
        return names.get(call.name, call.name)
    if call.kind in _MODELS:
        return "" if call.error else call.kind  # an attempt that the provider refused is made again
    return f"{call.kind}:{call.name}" if call.kind in _COUNTED else ""


def _count(calls: Sequence[MadeCall], names: Mapping[str, str]) -> Counter[str]:
    subjects = [_subject(call, names) for call in calls]
    return Counter(subject for subject in subjects if subject)


def _find_counts(before: Sequence[Counter[str]], now: Counter[str], more_calls: float) -> Iterable[Shift]:
    for subject, count in now.items():
        most = max(each[subject] for each in before)
        if most and count > most * more_calls and count - most >= MORE_CALLS_MIN:
            yield Shift("count", subject, f"{plural(count, 'call')}, at most {most} in the baseline")


def _find_stopped(before: Sequence[Counter[str]], now: Counter[str]) -> Iterable[Shift]:
    for subject in before[0]:
        least = min(each[subject] for each in before)
        if least and not now[subject]:
            yield Shift("stopped", subject, f"not called any more, {least} or more calls in every run of the baseline")


def _find_new(before: Sequence[Counter[str]], now: Sequence[MadeCall]) -> Iterable[Shift]:
    known = {subject for each in before for subject in each}
    found = {call.name: call for call in reversed(now) if call.is_tool and call.effect in _CHANGING}
    for name, call in reversed(found.items()):
        if name not in known:
            yield Shift("new", name, f"call {call.number} ({call.effect}) is in no run of the baseline")


Answers = Mapping[tuple[str, str], Sequence[Any]]
"""(what was asked, the function that asked) → the answers."""


def _answers(calls: Sequence[MadeCall], names: Mapping[str, str]) -> Answers:
    found: dict[tuple[str, str], list[Any]] = {}
    for call in calls:
        is_model = call.kind == Kind.LLM.value
        if call.error or not (is_model or call.is_tool) or (is_model and call.asked and not call.result):
            continue
        key = (_subject(call, names), call.function if is_model else "")
        found.setdefault(key, []).append(call.result)
    return found


def _find_shapes(before: Sequence[Answers], now: Answers) -> Iterable[Shift]:
    """Compare the answers of each tool, and of models those that the same function got.

    A function that was renamed has no counterpart: the answers of all such functions are compared together.
    """
    known = {key for answers in before for key in answers}
    groups: dict[tuple[str, str], tuple[list[Sequence[Any]], Sequence[Any]]]
    groups = {key: ([answers.get(key, ()) for answers in before], now[key]) for key in now if key in known}
    for subject in dict.fromkeys(key[0] for key in now if key not in known):
        old: list[Sequence[Any]] = [
            [value for key, values in answers.items() if key[0] == subject and key not in now for value in values]
            for answers in before
        ]
        new = [value for key, values in now.items() if key[0] == subject and key not in known for value in values]
        groups[subject, _OTHER_FUNCTIONS] = (old, new)
    for (subject, function), (answers_before, answers_now) in groups.items():
        place = f" in {function}" if function else ""
        for text in compare_shapes([values for values in answers_before if values], answers_now):
            yield Shift("shape", f"{subject}{place}", text)


def _find_facts(
    before: Sequence[Sequence[MadeCall]], now: Sequence[MadeCall], facts: Mapping[str, Fact]
) -> list[Shift]:
    found = []
    for name, fact in facts.items():
        known, value = [fact(calls) for calls in before], fact(now)
        if value not in known:
            found.append(
                Shift("fact", name, f"{value!r}, in the baseline {', '.join(sorted({repr(k) for k in known}))}")
            )
    return found
