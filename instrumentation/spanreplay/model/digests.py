"""Keyed digests of the parts of a request: they show where two requests differ when the payload is gone.

A plain hash of a short value can be guessed by trial, so these are HMACs with a key derived from the redaction key,
cut to 36 bits: enough to distinguish two parts, and never used to declare two requests equal. As JSON:

    {"model":"k3Jx0Q","messages":["content=…,role=…","content=…,role=…"],"temperature":"9sGf_a"}
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.json_text import dump
from spanreplay.model.keys import Key, digest_members

CHARACTERS: Final = 6
MEMO_ITEMS_MAX: Final = 4_000
_UNSAFE: Final = re.compile("[,=]")
ELEMENTS_MAX: Final = 500
"""In a longer list, only the last elements, this many, are distinguished."""


class Digester:
    """Makes the digests of one run. Thread-safe: races only repeat work."""

    def __init__(self, derive: Callable[[bytes], bytes]) -> None:
        self._derive = derive
        self._key = b""
        self._memo: dict[str, str] = {}

    def describe(self, key: Key, fields: Mapping[str, Any]) -> str:
        """The digests of a request as JSON text; a part that was seen before costs one look-up."""
        found: dict[str, Any] = {}
        for name, value in fields.items():
            digest = key.fields.get(name)
            if digest is None:
                continue
            if type(value) is list and f"{name}[0]" in key.fields:
                found[name] = self._describe_list(name, value, key.fields)
            elif type(value) is dict:
                members = {m: self._short(key.fields[at]) for m in value if (at := f"{name}.{m}") in key.fields}
                found[name] = members or self._short(digest)
            else:
                found[name] = self._short(digest)
        return dump(found)

    def _describe_list(self, name: str, items: list[Any], digests: Mapping[str, str]) -> list[str]:
        start = max(0, len(items) - ELEMENTS_MAX)
        memo = self._memo
        found: list[str] = [""] * start
        for at in range(start, len(items)):
            digest = digests[f"{name}[{at}]"]
            found.append(memo.get(digest) or self._element(digest, items[at]))
        return found

    def _element(self, digest: str, item: Any) -> str:
        text = self._short(digest)
        if type(item) is dict and len(item) > 1 and not _UNSAFE.search("".join(map(str, item))):
            text = ",".join(f"{member}={self._short(each)}" for member, each in digest_members(item).items())
        return self._keep(digest, text)

    def _short(self, digest: str) -> str:
        found = self._memo.get(digest)
        if found is None or "=" in found:
            self._key = self._key or self._derive(b"field digests")
            mac = hmac.digest(self._key, digest.encode(), "sha256")
            found = base64.urlsafe_b64encode(mac[:6])[:CHARACTERS].decode("ascii")
            self._keep(digest, found)
        return found

    def _keep(self, digest: str, text: str) -> str:
        memo = self._memo
        if len(memo) >= MEMO_ITEMS_MAX:
            for oldest in list(memo)[: MEMO_ITEMS_MAX // 2]:
                memo.pop(oldest, None)
        memo[digest] = text
        return text


def differing_paths(recorded: str, now: str) -> list[str]:
    """Paths at which two requests' digests differ: `messages[3].content`, `temperature`; [] if one is unreadable."""
    try:
        a, b = json.loads(recorded), json.loads(now)
    except ValueError:
        return []
    if not isinstance(a, dict) or not isinstance(b, dict):
        return []
    found: list[str] = []
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            found += _paths_of(name, a.get(name), b.get(name))
    return found


def _paths_of(name: str, a: Any, b: Any) -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        return [f"{name}.{m}" for m in sorted(a.keys() | b.keys()) if a.get(m) != b.get(m)]
    if not isinstance(a, list) or not isinstance(b, list):
        return [name]
    found: list[str] = []
    for at in range(max(len(a), len(b))):
        if at >= len(a) or at >= len(b):
            found.append(f"{name}[{at}]")
        elif a[at] != b[at]:
            found += [f"{name}[{at}]{member}" for member in _members_of(str(a[at]), str(b[at]))]
    return found


def _members_of(a: str, b: str) -> list[str]:
    before, after = (dict(part.rpartition("=")[::2] for part in text.split(",") if "=" in part) for text in (a, b))
    names = [f".{m}" for m in sorted(before.keys() | after.keys()) if before.get(m) != after.get(m)]
    return names or [""]
