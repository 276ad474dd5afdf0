"""A replay in another folder than that of its recording: the agent's own folders are taken for the recorded ones.

Requests and output name the folder that an agent lies in: a coding agent tells its model where it works, a tool is
given an absolute path. What was recorded below `/app` and is replayed below `/home/me/app` asks the same. Answers are
served as they were recorded and name the recorded folder, so that what is made of them names it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spanreplay.runtime.calls.spec import Spec

FOLDER: Final = "folder"
_BEFORE: Final = r"(?:(?<![\w.~-])|(?<=\\[bfnrt]))"
_BEHIND: Final = r"(?![\w-]|\.\w)"
"""What may not stand beside a folder's name: it would be another one's. In JSON a line's end is an escape."""


class Relocation:
    """Texts of now as they would have been in the recorded folders. False where every folder is where it was.

    `then`, `now`: name of a folder (see `env.find_folders`) → its path; of a recording that states none, anything.
    """

    def __init__(self, then: Any, now: Mapping[str, str]) -> None:
        stated = then if isinstance(then, Mapping) else {}
        self.moved = {
            here: str(stated[name])
            for name, here in now.items()
            if stated.get(name) and stated[name] != here and "/" not in (stated[name], here)
        }
        self._here = now.get("cwd", "") if now.get("cwd") in self.moved else ""
        written: dict[str, str] = {}
        for is_ascii in (True, False):
            written.update({_in_json(h, is_ascii): _in_json(t, is_ascii) for h, t in self.moved.items()})
        self._text = _replacer(self.moved)
        self._json = _replacer(written)

    def __bool__(self) -> bool:
        return bool(self.moved)

    def describe(self) -> list[dict[str, str]]:
        """[{name, recorded, now}] of the folder that the agent works in, if it is another one."""
        return [{"name": FOLDER, "recorded": self.moved[self._here], "now": self._here}] if self._here else []

    def text(self, value: str) -> str:
        """A text with the recorded folders' names."""
        return self._text(value)

    def value(self, value: Any) -> Any:
        """A JSON value with those names in all its texts; a list or object is copied."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(str(name)): self.value(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(each) for each in value]
        return value

    def files(self, then: Any, now: Any) -> Any:
        """What was written, by name, with those names; where that is the recorded text, so is its digest."""
        if not self.moved or not isinstance(then, Mapping) or not isinstance(now, Mapping):
            return now
        found: dict[str, Any] = {}
        for path, file in now.items():
            name, text = self._text(path), self._text(str(file.get("text", "")))
            found[name] = {**file, **({"text": text} if "text" in file else {})}
            recorded = then.get(name)
            if "text" in file and isinstance(recorded, Mapping) and recorded.get("text") == text:
                found[name]["sha256"] = recorded.get("sha256")
        return found

    def spec(self, spec: Spec) -> Spec:
        """A call's description with those names; the same object if it has none of them."""
        request = self._json(spec.request)
        fields = spec.key_fields if spec.key_fields is None else self.value(spec.key_fields)
        is_same = request == spec.request and fields == spec.key_fields
        if is_same:
            return spec
        amend = spec.amend
        patched = None if amend is None else lambda patches: self.spec(amend(patches))
        return replace(spec, request=request, key_fields=fields, amend=patched)


def _in_json(path: str, is_ascii: bool) -> str:
    return json.dumps(path, ensure_ascii=is_ascii)[1:-1]


def _replacer(names: Mapping[str, str]) -> Callable[[str], str]:
    """Replaces names, the longest first; what was served has the new ones already, and keeps them."""
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
