"""Keys identify requests, and show where two requests differ.

A key is SHA-256 over the keyspec and the digests of the fields. A field that is a list or an object is
digested element by element, so that two keys show *where* they differ, and so that with `KeyMemo` a
conversation costs only its new messages.
"""

from __future__ import annotations

import hashlib
import marshal
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, Final

from spanreplay.model.canonical import Refused, sorted_names, to_bytes, write
from spanreplay.model.keyspec import KeySpec, keyspec
from spanreplay.model.own_threads import make_lock

__all__ = ["Key", "KeyMemo", "compute_key", "differing_fields", "digest_members"]

_SPLIT: Final = frozenset((dict, str, list))
MERKLE_ITEMS_MAX: Final = 4096
"""A longer list is digested as a whole."""
MEMO_BYTES_MAX: Final = 8 * 1024 * 1024
ELEMENT_BYTES: Final = 400
"""Memory that Python needs for a remembered element besides its own bytes."""
PREFIXES_MAX: Final = 16
"""Conversations of one field that are remembered as a whole; each sub-agent has its own."""

PREFIX_ITEMS_MIN: Final = 4
"""A shorter list is digested element by element, which costs less than finding it as a whole."""

_LIST_HEADER: Final = 5
"""Bytes before a list's first element in marshal's format: type and length."""
_INT_MAX: Final = 2**63


@dataclass(frozen=True)
class Key:
    """Identity of a request: `hex` is compared; `fields` shows where two requests differ.

    `fields` maps `model`, `messages`, `messages[3]`, `arguments.amount` to hexadecimal SHA-256 digests.
    """

    hex: str
    fields: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class _Leaf:
    """Digest of one element's text, in which opaque ids are numbered locally, and those ids."""

    digest: bytes
    ids: tuple[str, ...]


@dataclass(frozen=True)
class _Prefix:
    """A list digested before: its bytes, and the state after its last element."""

    blob: bytes
    length: int
    digests: dict[str, str]
    joined: Any
    numbers: dict[str, int]


class KeyMemo:
    """Digests made earlier in this run, of elements and of whole lists that may only have grown since.

    Thread-safe; beyond `bytes_max` the oldest are dropped. A growing conversation is found as a whole, in the time
    it takes to compare its bytes; an edited one is found element by element.
    """

    def __init__(self, bytes_max: int = MEMO_BYTES_MAX) -> None:
        self._leaves: dict[tuple[int, bytes], _Leaf] = {}
        self._prefixes: dict[str, tuple[_Prefix, ...]] = {}
        self._bytes = 0
        self._bytes_max = bytes_max
        self._lock = make_lock()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._leaves)

    def get(self, token: tuple[int, bytes]) -> _Leaf | None:
        """The leaf of an equal element, if it is still remembered."""
        leaf = self._leaves.get(token)
        if leaf is None:
            self.misses += 1
        else:
            self.hits += 1
        return leaf

    def put(self, token: tuple[int, bytes], leaf: _Leaf) -> None:
        """Keep a leaf; forget the oldest ones to stay within `bytes_max`."""
        size = len(token[1]) + ELEMENT_BYTES
        if size > self._bytes_max // 4:
            return
        with self._lock:
            if token in self._leaves:
                return
            self._leaves[token] = leaf
            self._bytes += size
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._leaves))
                del self._leaves[oldest]
                self._bytes -= len(oldest[1]) + ELEMENT_BYTES

    def find_prefix(self, slot: str, blob: bytes) -> _Prefix | None:
        """The newest known list of this slot with which the list in `blob` begins."""
        for prefix in self._prefixes.get(slot, ()):
            # marshal's elements delimit themselves: equal bytes after the header are equal elements.
            if blob.startswith(prefix.blob[_LIST_HEADER:], _LIST_HEADER):
                return prefix
        return None

    def put_prefix(self, slot: str, prefix: _Prefix, grown_from: _Prefix | None) -> None:
        """Keep a list instead of the one from which it grew; at most `PREFIXES_MAX` per slot."""
        if len(prefix.blob) > self._bytes_max // PREFIXES_MAX:
            return
        with self._lock:
            others = [each for each in self._prefixes.get(slot, ()) if each is not grown_from]
            self._prefixes[slot] = (prefix, *others[: PREFIXES_MAX - 1])


def compute_key(name: str, fields: Mapping[str, Any], memo: KeyMemo | None = None) -> Key:
    """The key of a request; `fields` are those that `keyspec.select` kept, redacted, JSON values only.

    Raises: Unserializable with the path (`$.messages[3].content`); ConfigError for an unknown keyspec.
    """
    spec = keyspec(name)
    numbers: dict[str, int] = {}
    digests: dict[str, str] = {}
    top: dict[str, str] = {}
    for field_name in sorted(fields):
        try:
            digest = _digest_field(spec, field_name, fields[field_name], memo, numbers, digests)
        except Refused as refused:
            refused.steps.append(field_name)
            raise refused.located() from None
        top[field_name] = digests[field_name] = digest.hex()
    text = b'{"fields":%b,"keyspec":"%b"}' % (_canonical_digests(top), name.encode())
    return Key(hashlib.sha256(text).hexdigest(), digests)


def _canonical_digests(digests: dict[str, str]) -> bytes:
    """Like `canonicalize`, for digests by name that are already in its order."""
    return to_bytes(["{", ",".join([f'{encode_basestring(k)}:"{v}"' for k, v in digests.items()]), "}"])


def differing_fields(recorded: Key, now: Key) -> list[str]:
    """Names of the innermost known parts that differ: `messages[3]` rather than `messages`."""
    names = [n for n in {**recorded.fields, **now.fields} if recorded.fields.get(n) != now.fields.get(n)]
    parents = {re.split(r"[.\[]", n, maxsplit=1)[0] for n in names if "." in n or "[" in n}
    return [n for n in names if n not in parents]


def digest_members(item: dict[str, Any]) -> dict[str, str]:
    """Digests of one element's members, opaque ids masked: they show where two elements differ, not whether."""
    found: dict[str, str] = {}
    for name, written in sorted_names(item):
        out: list[str] = []
        write({name: item[name]}, out, {}, False, 0)
        found[written] = hashlib.sha256(b"member:" + to_bytes(out)).hexdigest()
    return found


def _digest_field(
    spec: KeySpec,
    name: str,
    value: Any,
    memo: KeyMemo | None,
    numbers: dict[str, int],
    digests: dict[str, str],
) -> bytes:
    """Digest one field; also record the digests of its elements in `digests`."""
    is_renamed = name in spec.renamed
    if type(value) is list and _is_worth_splitting(value):
        return _digest_list(spec, name, value, memo, numbers, digests)
    if type(value) is dict and not is_renamed and "$type" not in value and len(value) <= MERKLE_ITEMS_MAX:
        members: dict[str, str] = {}
        for key, written in sorted_names(value):
            try:
                digest = _digest_element(spec, value[key], False, memo, numbers)
            except Refused as refused:
                refused.steps.append(key)
                raise
            members[written] = digests[f"{name}.{written}"] = digest.hex()
        return hashlib.sha256(b"dict:" + _canonical_digests(members)).digest()
    return _digest_element(spec, value, is_renamed, memo, numbers)


def _digest_list(
    spec: KeySpec,
    name: str,
    items: list[Any],
    memo: KeyMemo | None,
    numbers: dict[str, int],
    digests: dict[str, str],
) -> bytes:
    is_renamed = name in spec.renamed
    is_long = len(items) >= PREFIX_ITEMS_MIN
    blob = _marshal(items) if memo is not None and is_long and not (is_renamed and numbers) else None
    slot = f"{spec.name}:{name}"
    known = memo.find_prefix(slot, blob) if memo is not None and blob is not None else None
    joined = hashlib.sha256(b"list:") if known is None else known.joined.copy()
    own: dict[str, str] = {} if known is None else dict(known.digests)
    start = 0 if known is None else known.length
    if known is not None:
        numbers.update(known.numbers)
    for index in range(start, len(items)):
        try:
            digest = _digest_element(spec, items[index], is_renamed, memo, numbers)
        except Refused as refused:
            refused.steps.append(index)
            raise
        own[f"{name}[{index}]"] = digest.hex()
        joined.update(digest)
    if memo is not None and blob is not None and (known is None or start < len(items)):
        kept_numbers = dict(numbers) if is_renamed else {}
        memo.put_prefix(slot, _Prefix(blob, len(items), own, joined.copy(), kept_numbers), known)
    digests.update(own)
    return bytes(joined.digest())


def _marshal(value: Any) -> bytes | None:
    """Bytes that are equal only for equal JSON values of equal types; None if the value can't be marshalled.

    Version 2 of the format has no back references. Types that it accepts beyond JSON (bytes, sets) are refused when
    first digested, so they are never remembered.
    """
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return None


def _is_worth_splitting(items: list[Any]) -> bool:
    """Whether to digest by element; nobody looks for one element of a list of numbers (token ids, vectors)."""
    if len(items) > MERKLE_ITEMS_MAX:
        return False
    return not _SPLIT.isdisjoint(map(type, items[:8]))


def _digest_element(
    spec: KeySpec, value: Any, is_renamed: bool, memo: KeyMemo | None, numbers: dict[str, int]
) -> bytes:
    scalar = _digest_scalar(value)
    if scalar is not None:
        return scalar
    leaf = _find_leaf(spec, value, is_renamed, memo)
    if not leaf.ids:
        return leaf.digest
    order = ",".join(str(numbers.setdefault(each, len(numbers) + 1)) for each in leaf.ids)
    return hashlib.sha256(b"ids:" + leaf.digest + order.encode()).digest()


_SCALAR_CHARACTERS_MAX: Final = 64
_SCALARS_MAX: Final = 4096
_scalars: dict[str, bytes] = {}


def _digest_scalar(value: Any) -> bytes | None:
    """The digest that `_make_leaf` makes for a short text or an integer, cached; None for anything else."""
    kind = type(value)
    if kind is int:
        return hashlib.sha256(b"value:%d" % value).digest() if -_INT_MAX < value < _INT_MAX else None
    if kind is not str or len(value) > _SCALAR_CHARACTERS_MAX or not value.isascii():
        return None
    found = _scalars.get(value)
    if found is None:
        found = hashlib.sha256(b"value:" + encode_basestring(value).encode("ascii")).digest()
        if len(_scalars) < _SCALARS_MAX:
            _scalars[value] = found
    return found


def _find_leaf(spec: KeySpec, value: Any, is_renamed: bool, memo: KeyMemo | None) -> _Leaf:
    if memo is None or not (type(value) in (dict, list) or (type(value) is str and len(value) > 500)):
        return _make_leaf(value, is_renamed, spec.is_codec)
    blob = _marshal(value)
    if blob is None:
        return _make_leaf(value, is_renamed, spec.is_codec)
    token = (is_renamed + 2 * spec.is_codec, blob)
    leaf = memo.get(token)
    if leaf is None:
        leaf = _make_leaf(value, is_renamed, spec.is_codec)
        memo.put(token, leaf)
    return leaf


def _make_leaf(value: Any, is_renamed: bool, is_codec: bool) -> _Leaf:
    out: list[str] = []
    ids: dict[str, int] | None = {} if is_renamed else None
    write(value, out, ids, is_codec, 0)
    return _Leaf(hashlib.sha256(b"value:" + to_bytes(out)).digest(), tuple(ids or ()))
