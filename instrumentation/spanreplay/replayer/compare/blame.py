"""Finds what first introduced a changed value: evidence by value if there is some, otherwise other changes.

Nothing is guessed. Evidence is a place that contains the changed text itself (`value`), or something that changed as
well (`beside`). A divergence without either has no cause, and its report says that the cause is unknown. Evidence from
the code's history is added by the command (`report/codeblame.py`), which may run git; an agent's process may not.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import ids
from spanreplay.model.call import CallRecord
from spanreplay.model.lane_names import name_number
from spanreplay.replayer.compare.leading import RAISED
from spanreplay.replayer.compare.moving_parts import is_time
from spanreplay.replayer.compare.output_text import output_text
from spanreplay.replayer.divergence import Cause, Diff, Divergence, with_causes
from spanreplay.replayer.index import RecordingIndex
from spanreplay.replayer.relocation import FOLDER
from spanreplay.replayer.resolve.hidden import REDACTION
from spanreplay.runtime.caller.places import DEVICES
from spanreplay.runtime.process import hash_secret
from spanreplay.runtime.process.environment import RANDOM, show_command
from spanreplay.runtime.process.outside_io import unwatched

if TYPE_CHECKING:
    from spanreplay.replayer.compare.findings import Findings
    from spanreplay.replayer.resolve.hidden import Hidden
    from spanreplay.runtime.run import Run

BLAMED_MAX: Final = 20
CAUSES_MAX: Final = 6
FILES_MAX: Final = 200
FILE_BYTES_MAX: Final = 1024 * 1024
FRAGMENT_CHARACTERS_MIN: Final = 3
"""Shorter texts are found everywhere by chance."""
_UPSTREAM_MAX: Final = 500
_NAMES_MAX: Final = 10
_WORD: Final = re.compile(r"\w+")
_ABSENT: Final = "(absent)"
_TYPE: Final = "$type"
_CANNOT_IMPORT: Final = ("the agent raised ModuleNotFoundError ", "the agent raised ImportError ")
_PYTHON: Final = "python"
"""Name of the interpreter among a run's folders."""


def changed_text(diff: Diff) -> tuple[str, str]:
    """Return (recorded, now): the words in which two texts differ, or both values as text."""
    a, b = _as_text(diff.recorded), _as_text(diff.now)
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    # Whole words: one or two shared digits prove nothing
    if _is_word(a[head : head + 1]) or _is_word(b[head : head + 1]):
        while head > 0 and _is_word(a[head - 1]):
            head -= 1
    if any(_is_word(text[len(text) - tail - 1 : len(text) - tail]) for text in (a, b) if len(text) - tail > head):
        while tail > 0 and _is_word(a[-tail]):
            tail -= 1
    return a[head : len(a) - tail].strip(), b[head : len(b) - tail].strip()


def _is_word(character: str) -> bool:
    return character != "" and (character.isalnum() or character in "_-.,$€%@/:")


def _as_text(value: Any) -> str:
    if value == _ABSENT or value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Blame:
    """The evidence of one replay; built once, after it has ended."""

    def __init__(
        self,
        *,
        calls: Sequence[CallRecord],
        index: RecordingIndex,
        findings: Findings,
        hidden: Hidden,
        run: Run,
        env: Mapping[str, Any],
        differing: Sequence[str],
        drift: Sequence[Mapping[str, Any]],
        live: Sequence[str],
        tokens: Mapping[str, str],
    ) -> None:
        """`tokens`: those that the agent was given in place of secrets in variables → the variable."""
        self._calls = calls
        self._index = index
        self._findings = findings
        self._hidden = hidden
        self._run = run
        self._env = env
        self._differing = differing
        self._drift = drift
        self._live = live
        self._tokens = tokens

    def explain(self, divergences: list[Divergence]) -> list[Divergence]:
        """Return the divergences, with causes added to those that are not downstream."""
        found: list[Divergence] = []
        blamed = 0
        for divergence in divergences:
            if divergence.is_downstream or divergence.cause or blamed >= BLAMED_MAX:
                found.append(divergence)
                continue
            blamed += 1
            explained = with_causes(divergence, self._find(divergence)[:CAUSES_MAX])
            if explained.causes and explained.causes[0].kind == REDACTION:
                name = explained.causes[0].ref if explained.causes[0].ref in self._tokens.values() else ""
                remedy = f"set {name} here" if name else self._hidden.remedy(self._run.redactor.fingerprint)
                explained = replace(explained, hint=remedy)
            elif explained.causes and (explained.causes[0].ref, explained.causes[0].strength) == (_PYTHON, "value"):
                explained = replace(explained, hint=f"name it: spanreplay replay {self._describe_command()}")
            found.append(explained)
        return found

    def _find(self, divergence: Divergence) -> list[Cause]:
        changed = [changed_text(diff)[1] for diff in divergence.diff[:3]]
        hidden = list(self._hidden.explain(divergence, changed, self._run.redactor.fingerprint))
        causes = [*self._by_python(divergence), *(cause for cause in hidden if cause.strength == "value")]
        # A changed output was made by the call itself: its content comes from nowhere else in the agent
        if divergence.kind != "output_changed":
            for diff in divergence.diff[:3]:
                causes += self._by_value(divergence, diff)
        causes += hidden
        causes += self._by_hashes(divergence)
        causes += self._beside(divergence)
        causes += self._by_tokens(divergence, changed)
        return list({(c.kind, c.ref, c.evidence): c for c in causes}.values())

    def _by_tokens(self, divergence: Divergence, changed: Sequence[str]) -> Iterable[Cause]:
        """Yield the variables of which the agent got a token: those with a part of it in a change, or all."""
        recorded = " ".join(str(diff.recorded) for diff in divergence.diff)
        texts = [text.lower() for text in changed if len(text) >= FRAGMENT_CHARACTERS_MIN]
        shown = {
            name: None
            for token, name in self._tokens.items()
            if token not in recorded and any(token in text or text in token for text in texts)
        }
        names = list(shown) or sorted(set(self._tokens.values()))
        if names:
            evidence = f"the agent was given a token in place of {', '.join(names[:_NAMES_MAX])}, which redaction hides"
            yield Cause(REDACTION, evidence, "value" if shown else "beside", names[0])

    def _by_python(self, divergence: Divergence) -> Iterable[Cause]:
        """Yield the Python that runs the agent now, if it is another one and can't import what the agent imports."""
        if divergence.kind == RAISED and divergence.message.startswith(_CANNOT_IMPORT):
            then, now = _find_python(self._env), _find_python(self._run.environment)
            if then and now and then != now:
                yield Cause(
                    "versions", f"the agent was recorded with {then}, and runs now with {now}", "value", _PYTHON
                )

    def _describe_command(self) -> str:
        """The recorded command: the recording, and the words after it."""
        run_id = self._calls[0].run_id if self._calls else "RUN"
        return f"{run_id} -- {shlex.quote(_find_python(self._env))} {show_command(self._env)}"

    def _by_value(self, divergence: Divergence, diff: Diff) -> Iterable[Cause]:
        if diff.path.rpartition(".")[2] == _TYPE:  # says how a value is written
            return
        recorded, now = changed_text(diff)
        yield from self._from_outputs(divergence, recorded, now)
        if len(now) < FRAGMENT_CHARACTERS_MIN:
            return
        yield from self._from_arguments(now)
        yield from self._from_environment(now)
        yield from self._from_files(recorded, now)
        yield from self._from_ignored(divergence, now)
        if is_time(diff):
            live = [name for name in self._live if name.startswith(("clock", "*"))]
            ref = live[0] if live else ""
            why = f"the clock is live ({ref})" if live else "an unrecorded clock was read"
            yield Cause("clock", f"both values are times: {why}", "value" if live else "beside", ref)

    def _from_outputs(self, divergence: Divergence, recorded: str, now: str) -> Iterable[Cause]:
        """Yield an earlier call whose output contains the text."""
        for seq, (number, boundary, before, after) in self._findings.outputs.items():
            if seq >= divergence.seq or len(now) < FRAGMENT_CHARACTERS_MIN or now not in output_text("", after):
                continue
            if before and recorded and recorded not in output_text("", before):
                continue
            what = "its output has changed" if before else "new in this replay"
            yield Cause(
                "upstream_output",
                f"{_quote(now)} is in the output of {name_number(number)} ({boundary}): {what}",
                "value",
                str(seq),
            )
            return
        served = [c for c in self._calls if c.seq in self._index.used and c.seq < divergence.seq][-_UPSTREAM_MAX:]
        if len(now) < FRAGMENT_CHARACTERS_MIN:
            return
        for call in reversed(served):
            text = output_text(call.request, call.response)
            if now in text:
                other = " instead of another value" if recorded and recorded in text else ""
                yield Cause(
                    "upstream_output",
                    f"{_quote(now)} is in the output of {name_number(call.number)} ({call.boundary}), which is as "
                    f"recorded: the code now takes the value from there{other}",
                    "value",
                    call.span_id,
                )
                return

    def _from_arguments(self, now: str) -> Iterable[Cause]:
        recorded = self._env.get("argv")
        argv = self._run.environment.get("argv")
        if not isinstance(recorded, list) or not isinstance(argv, list):
            return
        for argument in argv[1:]:
            if argument not in recorded and _holds(str(argument), now):
                yield Cause(
                    "argument",
                    f"{_quote(now)} is in the command line, which has changed since the recording",
                    "value",
                    "argv",
                )
                return

    def _from_environment(self, now: str) -> Iterable[Cause]:
        for name in self._differing:
            value = self._run.redactor.text(os.environ.get(name, ""))
            if _holds(value, now):
                yield Cause(
                    "environment",
                    f"{_quote(now)} is in the environment variable {name}, which differs from the recording",
                    "value",
                    name,
                )

    def _from_files(self, recorded: str, now: str) -> Iterable[Cause]:
        """Yield a file of the agent's code tree, such as a prompt, that it reads itself: only the read is recorded."""
        files = self._run.written
        for path in [] if files is None else files.list_code_read()[:FILES_MAX]:
            text = "" if path.startswith(DEVICES) else _read_text(path)
            if now in text and not (recorded and recorded in text):
                name = ids.shorten(path)
                instead = f", and {_quote(recorded)} is not" if recorded else ""
                yield Cause("code", f"{_quote(now)} is in {name}, which the agent reads{instead}", "value", name)
                return

    def _by_hashes(self, divergence: Divergence) -> Iterable[Cause]:
        """Yield the order of a set of texts, if the same words are in a different order and hashes were different."""
        seed = str(self._env.get("hash_seed", ""))
        if not seed or (seed == self._run.environment.get("hash_seed") and seed != RANDOM):
            return
        if seed == RANDOM and hash_secret.is_as_recorded(self._env, self._run.redactor):
            return
        before, now = [_as_text(d.recorded) for d in divergence.diff], [_as_text(d.now) for d in divergence.diff]
        old, new = _words_of(before), _words_of(now)
        if old != new and Counter(old) == Counter(new):
            why = hash_secret.explain(self._env, self._run.redactor) if seed == RANDOM else f"PYTHONHASHSEED was {seed}"
            evidence = f"the same words are in another order, as when a set of strings is iterated: {why}"
            yield Cause("hash_seed", evidence, "beside", "PYTHONHASHSEED")

    def _from_ignored(self, divergence: Divergence, now: str) -> Iterable[Cause]:
        for each in self._findings.ignored:
            place = next((d.path for d in each.diff if now in _as_text(d.now)), "")
            if each.seq < divergence.seq and place:
                where = f"{_quote(now)} is in {place} of {name_number(each.call)} ({each.boundary})"
                evidence = f"{where}, which differs but is not part of its key"
                yield Cause("ignored_field", evidence, "value", each.recorded_span_id)

    def _beside(self, divergence: Divergence) -> Iterable[Cause]:
        """Yield other changes that are not tied to this value, the likeliest first: folders' names are translated."""
        drift = sorted(self._drift, key=lambda each: each["name"] == FOLDER)
        for each in drift:
            if each["name"] == _PYTHON and _minor_of(each["recorded"]) != _minor_of(each["now"]):
                yield _of_version(each)
        if self._differing:
            names = ", ".join(self._differing[:_NAMES_MAX])
            yield Cause(
                "environment", f"environment variables that differ from the recording: {names}", "beside", names
            )
        for each in drift:
            if each["name"] == FOLDER:
                yield Cause(
                    "environment", f"the agent works in {each['now']}, not {each['recorded']}", "beside", FOLDER
                )
            elif each["name"] not in ("git_sha", "argv"):
                yield _of_version(each)
            elif each["name"] == "argv":
                evidence = f"the command line has changed; it was: {show_command(self._env)}"
                yield Cause("argument", evidence, "beside", "argv")


def _of_version(drift: Mapping[str, Any]) -> Cause:
    evidence = f"{drift['name']} was {drift['recorded']}, now it is {drift['now']}"
    return Cause("versions", evidence, "beside", str(drift["name"]))


def _minor_of(version: Any) -> list[str]:
    return str(version).split(".")[:2]


def _find_python(env: Mapping[str, Any]) -> str:
    """The interpreter of a run; '' if its recording does not say."""
    folders = env.get("folders")
    return str(folders.get(_PYTHON, "")) if isinstance(folders, Mapping) else ""


def _read_text(path: str) -> str:
    """Return the text of a small file; '' if it is unreadable, too large or no file: a pipe would block the verdict."""
    try:
        with unwatched():
            if not os.path.isfile(path):  # noqa: PTH113 -- pathlib's queries would count as the agent's here
                return ""
            with open(path, "rb") as file:  # noqa: PTH123 -- the same
                content = file.read(FILE_BYTES_MAX + 1)
    except OSError:
        return ""
    return content.decode("utf-8", "replace") if len(content) <= FILE_BYTES_MAX else ""


def _words_of(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in _WORD.findall(text)]


def _holds(text: str, fragment: str) -> bool:
    """Whether one text contains the other: a prompt contains an argument, or an argument contains the change."""
    if len(text) < FRAGMENT_CHARACTERS_MIN:
        return False
    return fragment in text or text in fragment


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
