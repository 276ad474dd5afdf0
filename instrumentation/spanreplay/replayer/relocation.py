"""Replays in another folder and process than the recording's: folders and the process's number are as recorded.

Requests and output contain the agent's folder: a coding agent tells its model where it works, a tool gets an absolute
path. A run recorded below `/app` and replayed below `/home/me/app` makes the same requests. Answers are served as
recorded and contain the recorded folder, so anything derived from them contains it, too. So it is with the number of
the process, which stands in names of lock files and temporary files, in logs and in headers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.attributes import PROCESS_NUMBER
from spanreplay.replayer.recorded_words import change_files, change_texts
from spanreplay.runtime.process.environment import TEMPORARY

if TYPE_CHECKING:
    from spanreplay.runtime.calls.spec import Spec

FOLDER: Final = "folder"
_SHARED: Final = "/tmp"  # noqa: S108 -- only its name
"""A program may name this folder itself, so that it does not stand for another one."""
_BEFORE: Final = r"(?:(?<![\w.~-])|(?<=\\[bfnrt]))"
_BEHIND: Final = r"(?![\w-]|\.\w)"
"""Characters that must not follow a folder's name: it would be a different name. In JSON, a line end is an escape."""


_NUMBER: Final = r"(?:(?<![0-9A-Za-z])|(?<=\\[bfnrt]))(?:{})(?![0-9A-Za-z])"
_NUMBER_MIN: Final = 1000
"""Smaller numbers of the process now are translated only where the recorded text shows that they mean the process."""
_PLACES_MAX: Final = 1_000
"""In how many places of a text a small number may mean the process."""
_first: Final = os.getpid()
"""The process that loaded this module; units of a suite are replayed in forks of it."""


class Relocation:
    """Translates current texts to the recorded folders and process. False if neither is another one now.

    `then`, `now`: name of a folder (see `runtime.process.environment.find_folders`) → its path; `then` may be anything
    if the recording has none. `number`: that of the recorded process.
    """

    def __init__(self, then: Any, now: Mapping[str, str], number: Any = None) -> None:
        stated = then if isinstance(then, Mapping) else {}
        self.moved = {
            here: str(stated[name])
            for name, here in now.items()
            if stated.get(name) and stated[name] != here and "/" not in (stated[name], here)
            if (name, here) != (TEMPORARY, _SHARED)
        }
        self._here = now.get("cwd", "") if now.get("cwd") in self.moved else ""
        written: dict[str, str] = {}
        for is_ascii in (True, False):
            written.update({_in_json(h, is_ascii): _in_json(t, is_ascii) for h, t in self.moved.items()})
        numbers = _find_numbers(number)
        self._numbers = {now: then for now, then in numbers.items() if now >= _NUMBER_MIN}
        self._small = {now: then for now, then in numbers.items() if now < _NUMBER_MIN}
        numbered, self._whole = _number_replacer(self._numbers), _number_replacer(self._small)
        folders, in_json = _replacer(self.moved), _replacer(written)
        self._text: Callable[[str], str] = lambda text: numbered(folders(text))
        self._json: Callable[[str], str] = lambda text: numbered(in_json(text))

    @classmethod
    def of(cls, env: Mapping[str, Any], folders: Mapping[str, str]) -> Relocation:
        """The translation to the environment of a recording from these folders and this process."""
        return cls(env.get("folders"), folders, env.get(PROCESS_NUMBER))

    def __bool__(self) -> bool:
        return bool(self.moved or self._numbers or self._small)

    def describe(self) -> list[dict[str, str]]:
        """Return [{name, recorded, now}] for the agent's working folder, if it has moved."""
        return [{"name": FOLDER, "recorded": self.moved[self._here], "now": self._here}] if self._here else []

    def text(self, value: str) -> str:
        """Replace the current folders' names in a text with the recorded ones."""
        return self._text(value)

    def whole_text(self, value: str) -> str:
        """The same, with small numbers, which may mean something else."""
        return self._whole(self._text(value))

    def text_towards(self, then: str, now: str) -> str:
        """Replace the names in a text; return the recorded text if only the process's small number differs."""
        moved = self._text(now)
        return then if self.is_number_away(then, moved) else moved

    def is_number_away(self, then: str, now: str) -> bool:
        """Whether two texts differ in nothing but the small number of the process, which is another one now."""
        if not self._small or then == now or self._whole(now) == now:
            return False
        number = "|".join(map(str, self._small))
        pieces = re.split(_NUMBER.format(number), now)
        if len(pieces) > _PLACES_MAX:
            return False
        recorded = "|".join(map(str, {*self._small.values(), *self._small}))
        return re.fullmatch(f"(?:{recorded})".join(map(re.escape, pieces)), then) is not None

    def find_file(self, path: str) -> str:
        """The path now of a file in one of the recorded folders; other paths unchanged."""
        folders = sorted(((then, now) for now, then in self.moved.items()), key=lambda pair: len(pair[0]), reverse=True)
        for then, now in folders:
            if path.startswith(then + os.sep):
                return now + path[len(then) :]
        return path

    def value(self, value: Any) -> Any:
        """Replace those names and numbers in all of a JSON value; a list or object is copied."""
        return self._renumber(change_texts(value, self._text))

    def _renumber(self, value: Any) -> Any:
        if not self._numbers:
            return value
        if isinstance(value, dict):
            return {name: self._renumber(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._renumber(each) for each in value]
        return self._numbers.get(value, value) if type(value) is int else value

    def files(self, then: Any, now: Any) -> Any:
        """Replace those names in written files; if the resulting text equals the recorded one, so does its digest."""
        names = then if isinstance(then, Mapping) else {}

        def rename(name: str) -> str:
            moved, whole = self._text(name), self.whole_text(name)
            return whole if moved not in names and whole in names else moved

        return change_files(then, now, rename, self.text_towards) if self else now

    def spec(self, spec: Spec) -> Spec:
        """Replace those names in a call's description; return the same object if it contains none."""
        request = self._json(spec.request)
        fields = spec.key_fields if spec.key_fields is None else self.value(spec.key_fields)
        is_same = request == spec.request and fields == spec.key_fields
        if is_same:
            return spec
        amend = spec.amend
        patched = None if amend is None else lambda patches: self.spec(amend(patches))
        return replace(spec, request=request, key_fields=fields, amend=patched)


def _find_numbers(then: Any) -> dict[int, int]:
    """The numbers of this process → the recorded one; empty if they are the same, or the recording has none."""
    if type(then) is not int:
        return {}
    return {number: then for number in (os.getpid(), _first) if number != then}


def _number_replacer(numbers: Mapping[int, int]) -> Callable[[str], str]:
    """Return a function that replaces numbers in a text."""
    if not numbers:
        return str
    changes = {str(now): str(then) for now, then in numbers.items()}
    pattern = re.compile(_NUMBER.format("|".join(changes)))

    def change(text: str) -> str:
        if not any(number in text for number in changes):
            return text
        return pattern.sub(lambda match: changes[match.group()], text)

    return change


def _in_json(path: str, is_ascii: bool) -> str:
    return json.dumps(path, ensure_ascii=is_ascii)[1:-1]


def _replacer(names: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces names, the longest first; new names, which served texts already contain, stay."""
    if not names:
        return str
    changes = {**{name: name for name in names.values()}, **names}
    longest_first = sorted(changes, key=len, reverse=True)
    pattern = re.compile(f"{_BEFORE}(?:{'|'.join(map(re.escape, longest_first))}){_BEHIND}")

    def change(text: str) -> str:
        if not any(name in text for name in names):
            return text
        return pattern.sub(lambda match: changes[match.group()], text)

    return change
