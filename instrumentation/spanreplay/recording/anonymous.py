"""Recordings for people who may not know who took part: chosen values are replaced by pseudonyms, everywhere.

A pseudonym is a token of a key that nobody keeps: equal values have equal pseudonyms in one export, and none in common
with another export. What the original seals with its key is left out, and so is whatever a value could be guessed from
by trial: hashes of changed texts, keys and digests of changed requests, the original's root hash.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spanreplay.model import attributes as names
from spanreplay.model.call import CallRecord, Recording
from spanreplay.model.errors import SpanreplayError
from spanreplay.model.function_keys import derive_key_hex, is_derivable
from spanreplay.model.json_text import dump, load
from spanreplay.recording.derived import ANONYMOUS, with_calls
from spanreplay.redact import Redactor
from spanreplay.redact.sealed_values import SEALED
from spanreplay.redact.tokens import KEY_BYTES, TOKEN, key_id_of

__all__ = ["VALUE_CHARACTERS_MIN", "Anonymous", "anonymise", "find_field_values"]

VALUE_CHARACTERS_MIN: Final = 3
VALUES_MAX: Final = 1000
_JSON_DEPTH_MAX: Final = 6
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_OF_THE_ORIGINAL: Final = ("signature", "failures")


class Anonymous:
    """Replaces chosen values by pseudonyms. `pseudonyms` has that of each value that was found."""

    def __init__(self, values: Collection[str]) -> None:
        """Raises: SpanreplayError for a value that is too short, or too many of them."""
        for value in values:
            if len(value.strip()) < VALUE_CHARACTERS_MIN or TOKEN.fullmatch(value.encode("utf-8", "surrogatepass")):
                raise SpanreplayError(
                    f"cannot hide {value!r}: it has less than {VALUE_CHARACTERS_MIN} characters, or is a token already",
                    hint="hide a longer text that contains it",
                )
        if len(values) > VALUES_MAX:
            raise SpanreplayError(f"{len(values):,} values to hide are too many; the limit is {VALUES_MAX:,}")
        key = os.urandom(KEY_BYTES)
        self._redactor = Redactor(key, key_id_of(key)).run()
        self._redactor.hide(values)
        self._tokens = {value: self._redactor.token(value) for value in values}
        ordered = sorted(values, key=lambda value: (-len(value), value))
        self._pattern = re.compile("|".join(map(_as_word, ordered))) if ordered else None
        self.pseudonyms: dict[str, str] = {}

    @property
    def fingerprint(self) -> str:
        """That of the pseudonyms' key."""
        return self._redactor.fingerprint

    def whole(self, text: str) -> str:
        """The pseudonym of a whole text; an empty one and one that is a token stay."""
        return (
            text if not text or TOKEN.fullmatch(text.encode("utf-8", "surrogatepass")) else self._redactor.token(text)
        )

    def text(self, text: str) -> str:
        """A text with pseudonyms."""
        return str(self._in_short_texts(self._redactor.text(text)))

    def json(self, text: str) -> str:
        """A JSON text with pseudonyms; the same text if it holds no value."""
        try:
            value = load(text)
        except ValueError:
            return self.text(text)
        changed = self.value(value)
        return text if changed == value else dump(changed)

    def value(self, value: Any) -> Any:
        """A JSON value with pseudonyms; a body that came in parts is read as a whole. Raises: SpanreplayError."""
        if isinstance(value, dict) and isinstance(value.get("chunks"), list):
            rest = {name: each for name, each in value.items() if name not in ("chunks", "hops")}
            hops = {"hops": [self.value(hop) for hop in value["hops"]]} if value.get("hops") else {}
            return {**self.value(rest), "chunks": self._chunks(value["chunks"]), **hops}
        if isinstance(value, dict) and isinstance(value.get("items"), list):
            value = {**value, "items": self._redactor.items(value["items"])}
        return self._in_short_texts(self._redactor.value(value))

    def _chunks(self, chunks: list[Any]) -> list[Any]:
        texts = [chunk[1] if isinstance(chunk[1], str) else "" for chunk in chunks]
        changed = [self._in_short_texts(text) for text in self._redactor.chunks(texts)]
        return [
            [chunk[0], text if isinstance(chunk[1], str) else self.value(chunk[1]), *chunk[2:]]
            for chunk, text in zip(chunks, changed, strict=True)
        ]

    def _in_short_texts(self, value: Any) -> Any:
        """Replace what redaction leaves alone because no secret is that short, and keep count of what was replaced."""
        if isinstance(value, str):
            found = value if self._pattern is None else self._pattern.sub(lambda m: self._tokens[m.group()], value)
            if "rdx-" in found:
                self.pseudonyms |= {each: token for each, token in self._tokens.items() if token in found}
            return found
        if isinstance(value, Mapping):
            return {self._in_short_texts(str(name)): self._in_short_texts(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._in_short_texts(each) for each in value]
        return value

    def check(self, recording: Recording) -> None:
        """Raises: SpanreplayError if a value is still in the recording, in a text or in bytes."""
        for place, text in _list_places(recording):
            readable = "\n".join(_read_texts(text))
            left = None if self._pattern is None else self._pattern.search(readable)
            if left is not None:
                raise SpanreplayError(
                    f"cannot hide {left.group()!r} in {place}: there it is part of data that is no text",
                    hint="export a run without such data, or leave this text out of what is hidden",
                )


def anonymise(recording: Recording, values: Collection[str]) -> tuple[Recording, Mapping[str, str]]:
    """A recording in which each of these values is a pseudonym, and the pseudonym of each value that was found.

    It has a run id and a root hash of its own and no signature. Users and sessions are always pseudonyms.
    Raises: SpanreplayError if a value can't be hidden everywhere.
    """
    root = recording.root
    people = {value for value in (root.user_id, root.session_id) if len(value.strip()) >= VALUE_CHARACTERS_MIN}
    anonymous = Anonymous(sorted({*values, *people}))
    calls = [_anonymise_call(call, anonymous) for call in recording.calls]
    env = {**anonymous.value(dict(root.env)), names.REDACTION_KEY: anonymous.fingerprint}
    manifest = {name: each for name, each in root.manifest.items() if name not in _OF_THE_ORIGINAL}
    changed = replace(
        root,
        run_id=_name(recording),
        env={**env, ANONYMOUS: len(anonymous.pseudonyms)},
        manifest=_rehash(manifest, anonymous.value(manifest)),
        user_id=anonymous.whole(root.user_id),
        session_id=anonymous.whole(root.session_id),
        apart=0,
    )
    made = with_calls(Recording(changed, ()), calls)
    anonymous.check(made)
    return made, anonymous.pseudonyms


def find_field_values(recording: Recording, fields: Collection[str]) -> set[str]:
    """The texts of all JSON members with these names, in requests and answers, also in JSON inside of texts."""
    found: set[str] = set()
    for call in recording.calls:
        for text in (call.request, call.response):
            _collect(text, frozenset(fields), found, 0)
    return {value for value in found if len(value) >= VALUE_CHARACTERS_MIN and not TOKEN.search(value.encode())}


def _anonymise_call(call: CallRecord, anonymous: Anonymous) -> CallRecord:
    request = anonymous.json(call.request)
    meta = {name: each for name, each in call.meta.items() if name != SEALED}
    key, digests = call.key, call.digests
    if request != call.request:  # a plain hash of a known text in which only a name is missing
        digests = ""
        if is_derivable(call.keyspec, request):
            key = derive_key_hex(call.keyspec, call.name, request)
        else:
            key = hashlib.sha256(dump([call.keyspec, call.name, request]).encode("utf-8", "surrogatepass")).hexdigest()
    return replace(
        call,
        key=key,
        digests=digests,
        request=request,
        response=anonymous.json(call.response) if call.response else call.response,
        meta=anonymous.value(meta),
        call_id=anonymous.text(call.call_id),
        reads=anonymous.json(call.reads) if call.reads else call.reads,
    )


def _rehash(before: Any, now: Any) -> Any:
    """The manifest with new hashes beside changed texts: the old ones tell whoever guesses whether they are right."""
    if isinstance(now, dict) and isinstance(before, dict):
        if isinstance(now.get("text"), str) and now["text"] != before.get("text"):
            content = now["text"].encode("utf-8", "surrogatepass")
            return {**now, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        return {name: _rehash(old, new) for (name, new), old in zip(now.items(), before.values(), strict=True)}
    return now


def _name(recording: Recording) -> str:
    """A new run id, UUIDv7, with the time of the original."""
    noise = os.urandom(10).hex()
    return f"{recording.run_id[:12]}7{noise[:3]}8{noise[3:18]}"


def _as_word(value: str) -> str:
    """A pattern of a value that is no part of a longer word."""
    before = r"(?<!\w)" if value[:1].isalnum() else ""
    behind = r"(?!\w)" if value[-1:].isalnum() else ""
    return f"{before}{re.escape(value)}{behind}"


def _list_places(recording: Recording) -> Iterator[tuple[str, str]]:
    root = recording.root
    yield "the environment of the run", dump(dict(root.env))
    yield "the end of the run", dump(dict(root.manifest))
    for call in recording.calls:
        yield (
            f"call {call.number} ({call.boundary})",
            dump([call.request, call.response, dict(call.meta), call.call_id, call.reads]),
        )


def _read_texts(text: str, depth: int = 0) -> Iterator[str]:
    """All texts of a JSON value, and of JSON inside of them; parts of a body are read as one text."""
    try:
        value = load(text)
    except ValueError:
        yield text
        return
    if isinstance(value, str):
        yield value
    for each in _list_texts(value):
        if each[:1] in ("{", "[") and depth < _JSON_DEPTH_MAX:
            yield from _read_texts(each, depth + 1)
        else:
            yield each
            yield _read_bytes(each)
    if isinstance(value, dict) and isinstance(value.get("chunks"), list):
        yield "".join(chunk[1] for chunk in value["chunks"] if isinstance(chunk[1], str))


def _read_bytes(text: str) -> str:
    """The content of a text that is base64, as far as it is text; '' for any other."""
    if len(text) % 4 or not _BASE64.fullmatch(text):
        return ""
    return base64.b64decode(text, altchars=b"-_" if "-" in text or "_" in text else None).decode("utf-8", "replace")


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from _list_texts(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _list_texts(each)


def _collect(text: str, fields: frozenset[str], found: set[str], depth: int) -> None:
    if text[:1] not in ("{", "[") or depth > _JSON_DEPTH_MAX:
        return
    try:
        value = load(text)
    except ValueError:
        return
    _collect_value(value, fields, found, depth)


def _collect_value(value: Any, fields: frozenset[str], found: set[str], depth: int) -> None:
    if isinstance(value, str):
        _collect(value, fields, found, depth + 1)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if name in fields:
                found.update(text for text in _list_texts(each) if not isinstance(each, Mapping) or text not in each)
            _collect_value(each, fields, found, depth)
        if isinstance(value.get("chunks"), list):
            _collect("".join(c[1] for c in value["chunks"] if isinstance(c[1], str)), fields, found, depth + 1)
    elif isinstance(value, Sequence):
        for each in value:
            _collect_value(each, fields, found, depth)
