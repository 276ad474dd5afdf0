"""Compares requests, output and files that hold tokens of another redaction key than the recording's.

A token is a keyed hash of a secret, so on a machine with another key the same e-mail address has another token, and
nobody can tell whether the two hide the same value. What can be told is which hidden values are equal to each other:
the tokens of this machine are matched with the recorded ones, one to one, in the places where they stand, and a match
holds for the whole replay. A request that fits is the recorded one; the verdict says that hidden values were not
compared.

In an anonymous recording (`recording/anonymous.py`) the tokens stand for values that nothing hides here, such
as a name in the agent's prompt: there a token is matched with any text of one line and one JSON string, likewise.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.function_keys import LEAF_KEYSPECS, leaf_key_fields
from spanreplay.model.json_text import load
from spanreplay.model.own_threads import make_lock
from spanreplay.recording.derived import ANONYMOUS
from spanreplay.redact.sealed_values import TOKEN_TEXT
from spanreplay.replayer.recorded_words import change_files, change_texts

if TYPE_CHECKING:
    from spanreplay.model.call import Recording
    from spanreplay.runtime.calls.spec import Spec

__all__ = ["ForeignTokens"]

_MARK = "rdx-"
_LENGTH: Final = re.compile(r'(?i:\["content-length", ?"\d+"\]|"content-length": ?"\d+")')
_PLAIN_CHARACTERS_MAX: Final = 512
_ENDS: Final = ('"', "\n")
"""Characters that a hidden value does not contain: it ends with its JSON string, or with its line."""


class ForeignTokens:
    """The recorded token for each token of this machine's key. Thread-safe."""

    def __init__(self, recording: Recording) -> None:
        self._key = str(recording.root.env.get(names.REDACTION_KEY, ""))
        self.is_anonymous = ANONYMOUS in recording.root.env
        """Whether tokens may stand for texts that are not hidden here."""
        self._recording = recording
        self._recorded: frozenset[str] | None = None
        self._then: dict[str, str] = {}
        self._now: dict[str, str] = {}
        self._lock = make_lock()

    @property
    def is_used(self) -> bool:
        """Whether tokens of two keys were matched, so that the values behind them were not compared."""
        return bool(self._then)

    def is_foreign(self, fingerprint: str) -> bool:
        """Whether the recording was made with another key than the one that has this fingerprint."""
        return bool(self._key) and self._key != fingerprint

    def spec(self, spec: Spec, recorded: str, fingerprint: str) -> Spec:
        """Return a call's description with the recorded tokens; the same object if more than the tokens differ.

        `recorded` is the request as JSON.
        """
        if (
            not self.is_foreign(fingerprint)
            or self.text(recorded, spec.request) != recorded
            or spec.request == recorded
        ):
            return spec
        fields = spec.key_fields
        if fields is not None and spec.keyspec in LEAF_KEYSPECS:
            fields = leaf_key_fields(spec.keyspec, spec.name, load(recorded)["arguments"])
        elif fields is not None:
            fields = change_texts(fields, self._rename_text)
        return replace(spec, request=recorded, key_fields=fields)

    def text(self, then: str, now: str) -> str:
        """Return `then` if `now` differs from it only in tokens that match; otherwise `now` with the known matches."""
        if self.is_anonymous and _MARK in then:
            return self._plain_text(then, _with_length(then, now))
        if _MARK not in now:
            return now
        now = _with_length(then, now)
        theirs, ours = TOKEN_TEXT.findall(then), TOKEN_TEXT.findall(now)
        with self._lock:
            pairs = self._match(theirs, ours) if len(theirs) == len(ours) else None
            if pairs is not None and TOKEN_TEXT.sub(lambda m: pairs.get(m.group(), m.group()), now) == then:
                self._then.update(pairs)
                self._now.update({recorded: own for own, recorded in pairs.items()})
                return then
        return self._rename_text(now)

    def _plain_text(self, then: str, now: str) -> str:
        """Like `text`, where a recorded token may stand for any text."""
        theirs = TOKEN_TEXT.findall(then)
        with self._lock:
            ours = self._cut(TOKEN_TEXT.split(then), theirs, now)
            pairs = None if ours is None else self._match(theirs, ours)
            if pairs is None:
                return now
            self._then.update(pairs)
            self._now.update({recorded: own for own, recorded in pairs.items()})
            return then

    def _cut(self, pieces: list[str], theirs: list[str], now: str) -> list[str] | None:
        """The texts that stand where the tokens stood, between the pieces around them; None if the pieces differ."""
        if not now.startswith(pieces[0]) or not now.endswith(pieces[-1]):
            return None
        found, at = list[str](), len(pieces[0])
        for number, token in enumerate(theirs):
            is_last, known = number == len(theirs) - 1, self._now.get(token, "")
            piece = pieces[number + 1]
            if known and now.startswith(known + piece, at):
                end = at + len(known)
            elif now.startswith(token + piece, at):
                end = at + len(token)
            else:
                end = len(now) - len(piece) if is_last else now.find(piece, at + 1) if piece else -1
            own = now[at:end] if end > at else ""
            if not 0 < len(own) <= _PLAIN_CHARACTERS_MAX or any(each in own for each in _ENDS):
                return None
            found.append(own)
            at = end + len(piece)
        return found if at == len(now) else None

    def files(self, then: Any, now: Any) -> Any:
        """Return written files with the recorded tokens; if the resulting text is the recorded one, so is its hash."""
        return change_files(then, now, str, self.text)

    def _match(self, theirs: list[str], ours: list[str]) -> dict[str, str] | None:
        """Match tokens one to one, without contradicting earlier matches; None if that is impossible."""
        pairs: dict[str, str] = {}
        taken: dict[str, str] = {}
        for recorded, own in zip(theirs, ours, strict=True):
            if own == recorded:
                continue
            if own in self._find_recorded():  # the agent passes on another hidden value than it did
                return None
            known = {self._then.get(own, recorded), pairs.setdefault(own, recorded)}
            known_back = {self._now.get(recorded, own), taken.setdefault(recorded, own)}
            if known != {recorded} or known_back != {own}:
                return None
        return pairs

    def _find_recorded(self) -> frozenset[str]:
        """Return all tokens in the recording: a replay serves them to the agent."""
        if self._recorded is None:
            texts = (text for call in self._recording.calls for text in (call.request, call.response) if _MARK in text)
            self._recorded = frozenset(token for text in texts for token in TOKEN_TEXT.findall(text))
        return self._recorded

    def _rename_text(self, text: str) -> str:
        return TOKEN_TEXT.sub(lambda m: self._then.get(m.group(), m.group()), text) if _MARK in text else text


def _with_length(then: str, now: str) -> str:
    """`now` with the recorded length of its body: where a token stands for a value, the body has another length.

    A body that differs otherwise is found in its text.
    """
    recorded = _LENGTH.findall(then)
    if not recorded or len(_LENGTH.findall(now)) != len(recorded) or _MARK not in then:
        return now
    lengths = iter(recorded)
    return _LENGTH.sub(lambda _: next(lengths), now)
