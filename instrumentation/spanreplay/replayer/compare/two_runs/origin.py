"""Finds where a difference between calls of two recorded runs comes from: by value if there is evidence; pure.

Nothing is guessed: evidence is a text that is found somewhere (`value`) or something else that differs (`beside`);
without either, the origin is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.replayer.compare.blame import FRAGMENT_CHARACTERS_MIN, changed_text
from spanreplay.replayer.compare.drift import find_changed_files, find_drift
from spanreplay.replayer.compare.moving_parts import is_time
from spanreplay.replayer.compare.output_text import output_text
from spanreplay.replayer.compare.two_runs.align import Pair
from spanreplay.replayer.divergence import STRENGTHS, Cause, Diff
from spanreplay.runtime.process.used_variables import VARIABLES

__all__ = ["Origins"]

CAUSES_MAX: Final = 6
OUTPUTS_MAX: Final = 500
"""The number of outputs before a call that are searched, the latest first."""
_SHOWN: Final = 60
_PUNCTUATION: Final = " .,:;!?"
"""Punctuation that may follow a value in a sentence."""


class Origins:
    """The evidence in two recorded runs."""

    def __init__(self, a: Recording, b: Recording, pairs: Sequence[Pair], other_outputs: Sequence[int]) -> None:
        self._a = a
        self._b = b
        self._pairs = pairs
        self._others = other_outputs
        """Positions in `pairs` of calls with the same request and different answers."""

    def explain(self, at: int, diffs: Sequence[Diff]) -> tuple[Cause, ...]:
        """Return the origins of the difference at a position in the pairs, the best evidence first."""
        pair = self._pairs[at]
        found: list[Cause] = []
        if pair.a is None or pair.b is None:
            found += self._of_a_choice(at)
        else:
            for diff in diffs[:3]:
                found += self._of_a_value(at, diff)
        found += self._beside()
        kept: dict[tuple[str, str], Cause] = {}
        for each in sorted(found, key=lambda cause: STRENGTHS.index(cause.strength)):
            kept.setdefault((each.kind, each.ref), each)
        return tuple(kept.values())[:CAUSES_MAX]

    def explain_end(self) -> tuple[Cause, ...]:
        """Return other differences, for runs with equal calls and different ends."""
        return tuple(self._beside())[:CAUSES_MAX]

    def _earlier(self, at: int) -> Iterator[Pair]:
        """Yield the calls with different answers that ended before this call began, the latest first."""
        call = self._pairs[at].either
        is_b = self._pairs[at].b is not None
        for other in [each for each in self._others if each < at][-OUTPUTS_MAX:][::-1]:
            pair = self._pairs[other]
            ended = pair.b if is_b else pair.a
            if ended is not None and -1 < ended.end_seq < call.seq:
                yield pair

    def _of_a_choice(self, at: int) -> Iterator[Cause]:
        """Yield the origins of a call that only one run makes: a different earlier answer, preferably one naming it."""
        pair = self._pairs[at]
        name = pair.either.name.rpartition(".")[2]
        before = list(self._earlier(at))
        for other in before:
            assert other.a is not None
            assert other.b is not None
            texts = [output_text(each.request, each.response) for each in (other.a, other.b)]
            asked = [name in text for text in texts]
            if asked == ([False, True] if pair.a is None else [True, False]):
                run = "B" if pair.a is None else "A"
                evidence = f"only the answer of {_place(other)} in {run} holds {name!r}, for the same request"
                yield Cause("upstream_output", evidence, "value", str(other.either.number))
                return
        for other in before[:1]:
            evidence = f"the earlier {_place(other)} answered the same request differently"
            yield Cause("upstream_output", evidence, "beside", str(other.either.number))

    def _of_a_value(self, at: int, diff: Diff) -> Iterator[Cause]:
        then, now = (text.strip(_PUNCTUATION) for text in changed_text(diff))
        if max(len(then), len(now)) < 1:
            return
        yield from self._from_outputs(at, then, now)
        yield from self._from_arguments(then, now)
        yield from self._from_environment(then, now)
        if len(now) >= FRAGMENT_CHARACTERS_MIN:
            yield from self._from_equal_outputs(at, now)
        yield from self._from_reads(at, then, now)
        if is_time(diff):
            yield Cause("clock", "both values are times: the runs were at different times", "value", "clock")

    def _from_outputs(self, at: int, then: str, now: str) -> Iterator[Cause]:
        """Yield the latest earlier call that gave each run its own value."""
        for other in self._earlier(at):
            assert other.a is not None
            assert other.b is not None
            texts = [output_text(each.request, each.response) for each in (other.a, other.b)]
            if all(not value or value in text for value, text in zip((then, now), texts, strict=True)):
                gave = f"A got {_quote(then)}, B got {_quote(now)}"
                evidence = f"{_place(other)} got the same request in both runs: {gave}"
                yield Cause("upstream_output", evidence, "value", str(other.either.number))
                return

    def _from_arguments(self, then: str, now: str) -> Iterator[Cause]:
        a, b = (run.root.env.get("argv") for run in (self._a, self._b))
        if not isinstance(a, list) or not isinstance(b, list) or a == b:
            return
        before, after = " ".join(map(str, a)), " ".join(map(str, b))
        for text, holder, other, run in ((now, after, before, "B"), (then, before, after, "A")):
            if len(text) >= FRAGMENT_CHARACTERS_MIN and text in holder and text not in other:
                evidence = f"{_quote(text)} is in the command line of {run} alone"
                yield Cause("argument", evidence, "value", "argv")
                return

    def _from_environment(self, then: str, now: str) -> Iterator[Cause]:
        a, b = (_variables_of(run.root) for run in (self._a, self._b))
        for name in sorted(a.keys() | b.keys()):
            before, after = a.get(name) or "", b.get(name) or ""
            holds = [
                len(text) >= FRAGMENT_CHARACTERS_MIN and text in value for text, value in ((then, before), (now, after))
            ]
            if before != after and any(holds):
                evidence = f"the environment variable {name} is {_quote(before)} in A, {_quote(after)} in B"
                yield Cause("environment", evidence, "value", name)
                return

    def _from_reads(self, at: int, then: str, now: str) -> Iterator[Cause]:
        """Yield a clock or random source from which each run read its value just before the call."""
        pair = self._pairs[at]
        if pair.a is None or pair.b is None or not min(len(then), len(now)) >= FRAGMENT_CHARACTERS_MIN:
            return
        for name, value in _values_of(pair.b.reads):
            if now in value and any(then in before for other, before in _values_of(pair.a.reads) if other == name):
                yield Cause("read", f"both values had just been read from {name}", "value", name)
                return

    def _from_equal_outputs(self, at: int, now: str) -> Iterator[Cause]:
        """Yield a call that gave both runs the same answer, from which only B takes the text."""
        others = set(self._others)
        for other in range(at - 1, max(-1, at - 1 - OUTPUTS_MAX), -1):
            pair = self._pairs[other]
            if other in others or pair.a is None or pair.b is None:
                continue
            if now in output_text(pair.b.request, pair.b.response):
                evidence = f"{_quote(now)} is in the answer of {_place(pair)}, which is the same in both runs: "
                yield Cause("upstream_output", evidence + "B takes the value from there", "value", str(pair.b.number))
                return

    def _beside(self) -> Iterator[Cause]:
        """Yield other differences between the runs."""
        roots = self._a.root, self._b.root
        code = [root.manifest.get("code") for root in roots]
        if isinstance(code[0], Mapping) and isinstance(code[1], Mapping):
            changed = find_changed_files(code[0], {str(name): str(value) for name, value in code[1].items()})
            if changed:
                yield Cause("code", f"the agent's code differs: {_list(changed)}", "beside", "code")
        differing = _find_variables(*roots)
        if differing:
            yield Cause("environment", f"environment variables differ: {_list(differing)}", "beside", "environment")
        for each in find_drift(self._a.root.env, self._b.root.env):
            kind = {"git_sha": "code", "argv": "argument"}.get(str(each["name"]), "versions")
            a, b = (_differing_part(each["recorded"], each["now"]), _differing_part(each["now"], each["recorded"]))
            what = "the command line" if each["name"] == "argv" else each["name"]
            told = f"{what} {'has' if isinstance(a, list) else 'is'} {_short(a)} in A, {_short(b)} in B"
            yield Cause(kind, told, "beside", str(each["name"]))


def _find_variables(a: RootRecord, b: RootRecord) -> list[str]:
    """Return the variables that both runs read with different values; none if the redaction keys differ."""
    if a.env.get(names.REDACTION_KEY) != b.env.get(names.REDACTION_KEY):
        return []
    found: set[str] = set()
    digests = [root.manifest.get("environment_read") for root in (a, b)]
    for before, after in (digests, [_variables_of(root) for root in (a, b)]):
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found |= {str(name) for name in before.keys() & after.keys() if before[name] != after[name]}
    return sorted(found)


def _variables_of(root: RootRecord) -> dict[str, str]:
    """Return the variables that a run read, if the values are kept; '' for an unset variable."""
    found = root.manifest.get(VARIABLES)
    if not isinstance(found, Mapping):
        return {}
    return {str(name): value if isinstance(value, str) else "" for name, value in found.items()}


def _values_of(reads: str) -> Iterator[tuple[str, str]]:
    """Yield (source, value as text) of the reads that a call carries."""
    try:
        lanes = json.loads(reads) if reads else []
        for _, rows in lanes:
            for source, _, *values in rows:
                for value in values:
                    yield str(source), value if isinstance(value, str) else json.dumps(value)
    except (ValueError, TypeError):
        return


def _place(pair: Pair) -> str:
    call: CallRecord = pair.either
    return f"call {call.number} ({call.boundary})"


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _differing_part(value: Any, other: Any) -> Any:
    """Return the items of a list (the words of a command) that the other list lacks; any other value unchanged."""
    if not isinstance(value, list) or not isinstance(other, list):
        return value
    return [each for each in value if each not in other] or value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _quote(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…") if text else "nothing"
