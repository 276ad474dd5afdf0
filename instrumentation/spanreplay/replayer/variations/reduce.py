"""Find a smaller recording with the same effect: fewer calls first, then smaller answers; pure but for the question.

Delta debugging (Zeller & Hildebrandt 2002, doi:10.1109/32.988498): halves are left out, then quarters, down to single
calls, fields and elements. There is no chance in it: equal recordings and equal answers to the question give equal
results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import ConfigError
from spanreplay.recording.derived import with_calls
from spanreplay.replayer.variations.answers import Path, Shape, children, is_json, read_answers, write_path
from spanreplay.replayer.variations.sites import patch_call

__all__ = ["Keep", "Reducer", "answer_characters"]

Keep = Callable[[Recording], Recording | None]
"""Whether a recording still has the effect: if so, the recording of the calls that were made."""
DEPTH_MAX: Final = 20
_TARGET: Final = "call[1].response"
"""The field of a patch that is applied to a call at hand: the selector names none."""


def answer_characters(recording: Recording) -> int:
    """The size of a recording's answers, in characters of JSON."""
    return sum(len(call.response) for call in recording.calls)


class Reducer:
    """Makes one recording smaller; `current` is the smallest one found so far, `tries` the questions asked."""

    def __init__(self, recording: Recording, keep: Keep, tries_max: int, tell: Callable[[int], None]) -> None:
        """`recording` must have the effect itself."""
        self.current = recording
        self.tries = 0
        self._keep, self._tries_max, self._tell = keep, tries_max, tell

    @property
    def is_spent(self) -> bool:
        """Whether the search ended before it had tried everything."""
        return self.tries >= self._tries_max

    def reduce(self) -> Recording:
        """Leave out calls, then parts of answers, until a whole round changes nothing."""
        before = None
        while before != _size(self.current) and not self.is_spent:
            before = _size(self.current)
            self._leave_out_calls()
            at = 0
            while at < len(self.current.calls):
                self._reduce_answer(at, ())
                at += 1
        return self.current

    def _ask(self, candidate: Recording) -> bool:
        """Whether a candidate has the effect and is smaller; if so, it is the current one."""
        if self.is_spent:
            return False
        self.tries += 1
        self._tell(self.tries)
        found = self._keep(candidate)
        if found is None or _size(found) >= _size(self.current):
            return False
        self.current = found
        return True

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────
    def _leave_out_calls(self) -> None:
        chunk = len(self.current.calls) // 2
        while chunk:
            at = 0
            while at < len(self.current.calls):
                calls = self.current.calls
                if len(calls) == 1 or not self._ask(with_calls(self.current, [*calls[:at], *calls[at + chunk :]])):
                    at += chunk
            chunk //= 2

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────
    def _reduce_answer(self, at: int, path: Path) -> None:
        """Reduce the part of an answer at a path: its members, then each of those that remain."""
        value, is_stream = self._find(at, path)
        if value is None or len(path) > DEPTH_MAX:
            return
        members = [step for step, _ in children(value)]
        if isinstance(value, dict) and "$type" in value:
            return  # the codec builds it: without a member it could not
        if members and not (is_stream and not path):
            self._leave_out_members(at, path)
        elif isinstance(value, str) and not is_json(value):
            self._shorten(at, path, value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            self._lower(at, path, value)
        for step in self._steps(at, path):
            if not (is_stream and step == "text" and not path):  # the events hold the text
                self._reduce_answer(at, (*path, step))

    def _leave_out_members(self, at: int, path: Path) -> None:
        chunk = len(self._steps(at, path))
        while chunk:
            start = 0
            while start < len(steps := self._steps(at, path)):
                gone = steps[start : start + chunk]
                if not self._patch(at, _deletions(path, gone)):
                    start += len(gone)
            chunk //= 2

    def _lower(self, at: int, path: Path, number: int | float) -> None:
        if not self._set(at, path, 0):
            self._set(at, path, 1 if number > 0 else -1)

    def _shorten(self, at: int, path: Path, text: str) -> None:
        """Cut a text off at the end, by halving, to the shortest beginning that still has the effect."""
        if not text or self._set(at, path, ""):
            return
        without, length = 0, len(text)
        while length - without > 1:
            middle = (length + without) // 2
            if self._set(at, path, text[:middle]):
                length = middle
            else:
                without = middle

    def _set(self, at: int, path: Path, value: Any) -> bool:
        return self._patch(at, [f"{_TARGET}{write_path(path)} = {json.dumps(value, ensure_ascii=False)}"])

    def _patch(self, at: int, patches: Sequence[str]) -> bool:
        calls = self.current.calls
        if at >= len(calls):
            return False
        try:
            changed = patch_call(calls[at], patches)
        except ConfigError:  # a field that can't be changed alone
            return False
        return self._ask(with_calls(self.current, [*calls[:at], changed, *calls[at + 1 :]]))

    def _find(self, at: int, path: Path) -> tuple[Any, bool]:
        """The part of an answer at a path, None if there is none; and whether the answer is a stream."""
        calls: Sequence[CallRecord] = self.current.calls
        if at >= len(calls):
            return None, False
        answers = (each for each in read_answers(self.current) if each.call.seq == calls[at].seq)
        answer = next(answers, None)
        if answer is None or answer.shape == Shape.OTHER:
            return None, False
        value = answer.value
        for step in path:
            value = dict(children(value)).get(step)
        return value, answer.shape == Shape.STREAM

    def _steps(self, at: int, path: Path) -> list[str | int]:
        return [step for step, _ in children(self._find(at, path)[0])]


def _size(recording: Recording) -> tuple[int, int, int]:
    """Calls, characters of the answers, and digits other than 0 among them: 0 is smaller than 3."""
    digits = sum(each in "123456789" for call in recording.calls for each in call.response)
    return len(recording.calls), answer_characters(recording), digits


def _deletions(path: Path, steps: Sequence[str | int]) -> list[str]:
    """Patches that remove these members, the last one first, so that the numbers of the others stay."""
    return [f"delete {_TARGET}{write_path((*path, step))}" for step in reversed(steps)]
