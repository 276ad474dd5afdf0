"""Gives the agent the recorded variables and `.env` files that are missing on this machine.

A laptop or a CI machine has no production keys, and without them an agent ends before its first call. Only what the
recorded run used is given (`runtime/process/used_variables.py`), with secrets as tokens. A live call that would send
such a token is refused (`sent_tokens.py`), and a program that runs live doesn't get recorded values. Values set on this
machine, in the environment or in a `.env` file, take precedence, and the verdict names those that differ.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from spanreplay.model import attributes as names
from spanreplay.redact.sealed_values import TOKEN_TEXT
from spanreplay.runtime.process import environment as env
from spanreplay.runtime.process.machine import file_mask, time_zone
from spanreplay.runtime.process.machine.file_mask import FileMask
from spanreplay.runtime.process.machine.time_zone import TimeZone
from spanreplay.runtime.process.used_variables import (
    ASSIGNMENT,
    CODE,
    CWD,
    ENV_FILES,
    FILE_BYTES_MAX,
    FILES_MAX,
    NAMES_MAX,
    VARIABLES,
    clean_env_text,
    clean_variable,
    is_env_file,
    may_be_given,
)
from spanreplay.runtime.process.uses import Uses

if TYPE_CHECKING:
    from spanreplay.model.call import Recording
    from spanreplay.redact import RunRedactor
    from spanreplay.replayer.sandbox.scratch import Scratch

_BASIC: Final = "basic "
_WHO: Final = frozenset({"USER", "LOGNAME", "USERNAME", "SHELL", "HOSTNAME", "COMPUTERNAME"})
"""Variables that the system sets, by which a program knows its user and its machine; nobody sets them for an agent."""
_MODE: Final = 0o600


class RecordedEnv:
    """The recorded variables in one replay: those that are given, and a comparison with those set on this machine."""

    def __init__(self, recording: Recording, *, is_wanted: bool = True) -> None:
        self._recording = recording
        self._is_wanted = is_wanted
        self.given: dict[str, str] = {}
        """Name → value of the variables put into the environment."""
        self._replaced: dict[str, tuple[str, str | None]] = {}
        """Variable that names the user or the machine → its value here, and the recorded one; None: it was not set."""
        self._missing: list[str] = []
        self._here: dict[str, tuple[str | None, str]] = {}
        """Variable set on this machine → its recorded value, redacted, and its current value, not redacted."""
        self._files_here: dict[str, tuple[str, str]] = {}
        """The same for `.env` files."""
        self._of_files: dict[str, str] = {}
        """Variable → its value in the `.env` files of this machine that the agent has read."""
        self._differing: list[str] = []
        self._unknown: list[str] = []
        self._files: dict[str, str] = {}
        """Full path → recorded path of the files that were given."""
        self._tokens: dict[str, str] = {}
        """Token → the variable or file that it came from."""
        self._zone = TimeZone(recording.root.env.get(time_zone.MEMBER))
        self._mask = FileMask(recording.root.env.get(file_mask.MEMBER))

    # ── Before the agent starts ─────────────────────────────────────────────────────────────────────
    def give(self, redactor: RunRedactor, *, is_member: bool = False) -> None:
        """Add missing variables to the environment; a process of the run (`is_member`) has inherited it."""
        if self._is_wanted:
            self._zone.give()
            self._mask.give()
        recorded = _read_variables(self._recording)
        set_by_files = set() if is_member else self._find_set_by_files()
        for name, value in recorded.items():
            here = os.environ.get(name)
            if here not in (None, value) and name in _WHO and self._is_wanted:
                self._replace(name, value)
            elif here is not None and not (is_member and here == value):
                self._here[name] = (value, here)
            elif value is not None and name not in set_by_files:
                self._give(name, value, redactor, is_member=is_member)
        for file in _read_files(self._recording):
            self._note_tokens(file["path"], file["content"], redactor)
            here = _read_text(_find_path(file, self._recording))
            if here is not None:
                self._files_here[file["path"]] = (file["content"], here)

    def _give(self, name: str, value: str, redactor: RunRedactor, *, is_member: bool) -> None:
        if not self._is_wanted:
            self._missing.append(name)
            return
        if is_member and name not in os.environ:  # the process that started this one has removed it
            return
        self._note_tokens(name, value, redactor)
        self.given[name] = os.environ[name] = value

    def _replace(self, name: str, value: str | None) -> None:
        self._replaced[name] = (os.environ[name], value)
        _set(name, value)

    def _note_tokens(self, origin: str, text: str, redactor: RunRedactor) -> None:
        redactor.recall(text)
        for match in TOKEN_TEXT.finditer(text):
            self._tokens.setdefault(match[0], origin)

    def _find_set_by_files(self) -> set[str]:
        """Return the variables set by those `.env` files of the recorded run that exist on this machine."""
        found: set[str] = set()
        for file in _read_files(self._recording):
            found.update(_read_values(_find_path(file, self._recording)))
        return found

    def lay(self, scratch: Scratch) -> None:
        """Put the missing `.env` files into an overlay that is not in place yet."""
        for file in _read_files(self._recording):
            path = scratch.settle(_find_path(file, self._recording))
            if scratch.exists(path):
                continue
            if not self._is_wanted:
                self._missing.append(file["path"])
                continue
            ours = scratch.above(path)
            scratch.real.makedirs(os.path.dirname(ours), exist_ok=True)  # noqa: PTH120 -- text
            with open(ours, "w", encoding="utf-8", newline="") as target:  # noqa: PTH123 -- no call
                target.write(file["content"])
            os.utime(ours, ns=(file["times"][0], file["times"][1]))
            os.chmod(ours, _MODE)  # noqa: PTH101 -- text
            self._files[path] = file["path"]

    # ── While it runs ───────────────────────────────────────────────────────────────────────────────
    def read_file(self, path: str) -> None:
        """Note that the agent reads a `.env` file; variables that it sets here replace given ones."""
        if not is_env_file(path) or {os.path.abspath(path), os.path.realpath(path)}.intersection(self._files):  # noqa: PTH100 -- text
            return
        found = _read_values(path)
        self._of_files.update(found)
        for name in found.keys() & self.given.keys():
            if os.environ.get(name) == self.given.pop(name):
                del os.environ[name]

    def list_tokens(self) -> dict[str, str]:
        """Return token → variable, or `.env` file, of those that the agent was given in place of secrets."""
        files = self._files.values()
        return {token: origin for token, origin in self._tokens.items() if origin in self.given or origin in files}

    def is_of_file(self, name: str) -> bool:
        """Whether a variable has its value from a `.env` file of this machine."""
        return name in self._of_files and os.environ.get(name) == self._of_files[name]

    def find_in_request(self, url: str, headers: Iterable[tuple[str, str]]) -> Uses | None:
        """Return which parts of the recorded environment a live request would use; None if nothing was given."""
        if not self.given and not self._tokens:
            return None
        return Uses(self._find_named(url), self._find_sent(headers))

    def _find_named(self, url: str) -> str:
        """Return the given variable that names this URL's server; '' if none does, or one set here does too."""
        server = urlsplit(url).netloc.rpartition("@")[2]
        named = [name for name, value in self.given.items() if server and server in value]
        if not named or any(server in value for name, value in os.environ.items() if name not in self.given):
            return ""
        return max(named, key=lambda name: (url.startswith(self.given[name]), len(self.given[name])))

    def _find_sent(self, headers: Iterable[tuple[str, str]]) -> str:
        """Return the variable or file whose token one of these headers contains; '' if none does."""
        for _, value in headers:
            for match in TOKEN_TEXT.finditer(_decode_basic(value)):
                if match[0] in self._tokens:
                    return self._tokens[match[0]]
        return ""

    def withhold(self, environ: Mapping[Any, Any] | None) -> dict[Any, Any] | None:
        """Return the environment for a program that runs live, without given values; None to leave it unchanged."""
        if not self.given and not self._replaced:
            return None
        now = os.environ if environ is None else environ
        kept = {name: value for name, value in now.items() if self.given.get(os.fsdecode(name)) != os.fsdecode(value)}
        mine = {name: here for name, (here, then) in self._replaced.items() if now.get(name) == then}
        return {**kept, **mine} if mine or len(kept) < len(now) else None

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """A block in which the given variables are removed from the environment."""
        held = {name: value for name, value in self.given.items() if os.environ.get(name) == value}
        mine = {name: here for name, (here, then) in self._replaced.items() if os.environ.get(name) == then}
        for name in held:
            del os.environ[name]
        os.environ.update(mine)
        try:
            yield
        finally:
            os.environ.update(held)
            for name in mine:
                _set(name, self._replaced[name][1])

    # ── At its end ──────────────────────────────────────────────────────────────────────────────────
    def compare(self, redactor: RunRedactor) -> list[str]:
        """Return the variables and files that differ on this machine; call at the end, when all secrets are known.

        Redacting a text earlier than the recorded run did would fix which parts of it count as secret.
        """
        pairs = [(name, then, clean_variable(redactor, name, now)) for name, (then, now) in self._here.items()]
        pairs += [(path, then, clean_env_text(redactor, now)) for path, (then, now) in self._files_here.items()]
        is_same_key = bool(pairs) and self._recording.root.env.get(names.REDACTION_KEY) == redactor.fingerprint
        changed = [(name, then or "", now) for name, then, now in pairs if then != now]
        hidden = [] if is_same_key else [name for name, then, now in changed if _is_hidden(then, now)]
        self._unknown = hidden
        self._differing = [name for name, _, _ in changed if name not in hidden]
        return self._differing

    def follow(self, before: RecordedEnv, redactor: RunRedactor) -> None:
        """Replace the environment of a shorter recording, while the agent runs."""
        before.take_back()
        self._files.update(before._files)
        self.give(redactor)

    def take_back(self) -> None:
        """Remove the given variables that are still set: the process continues."""
        self._zone.take_back()
        self._mask.take_back()
        for name, value in self.given.items():
            if os.environ.get(name) == value:
                del os.environ[name]
        for name, (here, then) in self._replaced.items():
            if os.environ.get(name) == then:
                os.environ[name] = here

    def describe(self) -> dict[str, list[str]]:
        """Return the environment member of a verdict."""
        found = {
            "given": sorted(self.given),
            "files": list(self._files.values()),
            "missing": self._missing,
            "differing": self._differing,
            "unknown": self._unknown,
            "machine": [*([f"time zone {self._zone.given}"] if self._zone.given else []), *sorted(self._replaced)],
        }
        return {name: list(each) for name, each in found.items() if each}


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _is_hidden(then: str, now: str) -> bool:
    """Whether two redacted texts differ only in tokens."""
    return "rdx-" in then and TOKEN_TEXT.sub("", then) == TOKEN_TEXT.sub("", now)


def _read_variables(recording: Recording) -> dict[str, str | None]:
    """Map names to values, leaving out variables that must not come from another machine."""
    found = recording.root.manifest.get(VARIABLES)
    items = list(found.items()) if isinstance(found, Mapping) else []
    were_set = [item for item in items if item[1] is not None]
    kept = [*were_set[:NAMES_MAX], *[item for item in items if item[1] is None][:NAMES_MAX]]
    return {
        str(name): value
        for name, value in kept
        if (value is None or (isinstance(value, str) and "\0" not in value))
        and may_be_given(str(name))
        and not {"=", "\0"}.intersection(str(name))
    }


def _read_files(recording: Recording) -> list[dict[str, Any]]:
    found = recording.root.manifest.get(ENV_FILES)
    return [each for each in found[:FILES_MAX] if _is_file(each)] if isinstance(found, list) else []


def _is_file(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("from") not in (CODE, CWD):
        return False
    path, content, times = (value.get(name) for name in ("path", "content", "times"))
    is_text = isinstance(path, str) and isinstance(content, str) and len(content) <= FILE_BYTES_MAX * 4
    is_relative = isinstance(path, str) and is_env_file(path) and "\0" not in path and not os.path.isabs(path)  # noqa: PTH117 -- text
    is_timed = isinstance(times, list) and len(times) == 2 and all(type(each) is int for each in times)
    return is_text and is_relative and is_timed


def _find_path(file: Mapping[str, Any], recording: Recording) -> str:
    """Return where a recorded `.env` file would be on this machine."""
    argv = [str(each) for each in recording.root.env.get("argv") or ()]
    folders = env.find_folders(argv)
    base = os.path.realpath(folders.get(file["from"]) or folders[CWD])
    return os.path.normpath(os.path.join(base, file["path"]))  # noqa: PTH118 -- text


def _read_values(path: str) -> dict[str, str]:
    """Return the variables that a `.env` file on this machine sets, and their values without quotes."""
    found = ASSIGNMENT.finditer(_read_text(path) or "")
    return {match["name"]: match["value"].strip().strip("\"'`") for match in found}


def _read_text(path: str) -> str | None:
    """Return the content of a `.env` file on this machine; None if it doesn't exist."""
    try:
        with open(path, "rb") as source:  # noqa: PTH123 -- ours, not the agent's call
            return source.read(FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return None


def _decode_basic(value: str) -> str:
    """Return a header's value; decode basic authentication."""
    if value[: len(_BASIC)].lower() != _BASIC:
        return value
    try:
        return base64.b64decode(value[len(_BASIC) :], validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return value
