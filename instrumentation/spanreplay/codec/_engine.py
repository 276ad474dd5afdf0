"""Encodes and decodes values: plain JSON here, every other type through the table's rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from spanreplay.model.canonical import Refused

__all__ = ["TAG", "Decoder", "Encoder", "Row", "decode", "encode"]

TAG: Final = "$type"
DEPTH_MAX: Final = 100
"""Levels of Python values."""
JSON_DEPTH_MAX: Final = 220
"""Levels of lists and objects; a dict whose keys are not strings takes two."""
VALUES_MAX: Final = 2_000_000
"""Values in one encoded argument or result."""
ROOM_BYTES_MAX: Final = 64 * 1024 * 1024
"""An array reserves the size of its longest text for each text; a recording must not fill the memory that way."""
_WIDE_INT: Final = 2**63
_ABSENT: Final = object()
PLAIN_DEPTH_MAX: Final = 6
PLAIN_ITEMS_MAX: Final = 64


@dataclass(frozen=True)
class Row:
    """The codec of one family of types.

    `matches` looks only at a type; `pack` returns the members beside the tag; `unpack` gets the whole JSON object.
    """

    tag: str
    matches: Callable[[type], bool]
    pack: Callable[[Any, Encoder], dict[str, Any]]
    unpack: Callable[[dict[str, Any], Decoder], Any]


def encode(value: Any) -> Any:
    """The JSON form of a Python value; `decode` gives back an equal value of the same type.

    Raises: Unserializable at the path of the first value without a codec, of a cycle, or beyond a limit.
    """
    plain = _copy_plain(value, 0)
    if plain is not _ABSENT:
        return plain
    try:
        return Encoder().encode(value)
    except Refused as refused:
        raise refused.located() from None
    except RecursionError:
        raise Refused("nested deeper than the interpreter's stack").located() from None


def decode(encoded: Any) -> Any:
    """The Python value of a JSON form made by `encode`; safe on hostile input.

    Imports only libraries of a fixed list, never a path from the input, and calls no method of a decoded object.
    Raises: Unserializable for unknown tags, classes that are not data classes, and malformed input.
    """
    try:
        return Decoder().decode(encoded)
    except Refused as refused:
        raise refused.located() from None
    except RecursionError:
        raise Refused("nested deeper than the interpreter's stack").located() from None


def _copy_plain(value: Any, depth: int) -> Any:
    """Fast path: encode a small value of plain JSON types and ASCII names; `_ABSENT` for any other value."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _ABSENT
    if kind is int:
        return value if -_WIDE_INT <= value < _WIDE_INT else _ABSENT
    if value is None or kind is bool:
        return value
    if kind is float:
        return value if value - value == 0.0 else _ABSENT
    if depth == PLAIN_DEPTH_MAX or (kind is not dict and kind is not list) or len(value) > PLAIN_ITEMS_MAX:
        return _ABSENT
    if kind is list:
        items = []
        for item in value:
            # Most items are texts: copied without a function call
            copied = item if type(item) is str and item.isascii() else _copy_plain(item, depth + 1)
            if copied is _ABSENT:
                return _ABSENT
            items.append(copied)
        return items
    members = {}
    for name, member in value.items():
        if type(name) is not str or not name.isascii() or name == TAG:
            return _ABSENT
        kind = type(member)
        if (kind is str and member.isascii()) or (kind is int and -_WIDE_INT <= member < _WIDE_INT):
            members[name] = member
            continue
        copied = _copy_plain(member, depth + 1)
        if copied is _ABSENT:
            return _ABSENT
        members[name] = copied
    return members


class Encoder:
    """One encoding; tracks the values being encoded, so that cycles are detected."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._values = 0

    def encode(self, value: Any) -> Any:
        """JSON of one value."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str and is_clean_text(value):
            return value
        if kind is int and -_WIDE_INT <= value < _WIDE_INT:
            return value
        if kind is float and value - value == 0.0:  # finite
            return value
        self._values += 1
        if self._values > VALUES_MAX:
            raise Refused(f"more than {VALUES_MAX} values")
        if id(value) in self._open:
            raise Refused(f"cycle through {type_name(kind)}")
        if len(self._open) >= DEPTH_MAX:
            raise Refused(f"nested deeper than {DEPTH_MAX} levels")
        self._open.add(id(value))
        try:
            return self._encode_container(kind, value)
        finally:
            self._open.discard(id(value))

    def at(self, step: str | int, value: Any) -> Any:
        """JSON of a member; a refusal has `step` in its path."""
        try:
            return self.encode(value)
        except Refused as refused:
            refused.steps.append(step)
            raise

    def sequence(self, items: Iterable[Any]) -> list[Any]:
        """JSON of each element."""
        result: list[Any] = []
        try:
            for item in items:
                result.append(self.encode(item))
        except Refused as refused:
            refused.steps.append(len(result))
            raise
        return result

    def members(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """JSON of each member."""
        result: dict[str, Any] = {}
        name = ""
        try:
            for name, value in list(named.items()):
                if type(name) is not str or not is_clean_text(name):
                    raise Refused(f"attribute name {name!a}")
                result[name] = self.encode(value)
        except Refused as refused:
            refused.steps.append(name)
            raise
        return result

    def pairs(self, items: Iterable[tuple[Any, Any]]) -> list[list[Any]]:
        """JSON of key-value pairs whose keys need not be strings."""
        result = []
        for index, (key, value) in enumerate(items):
            step = key if type(key) is str else index
            result.append([self.at(index, key), self.at(step, value)])
        return result

    def _encode_container(self, kind: type, value: Any) -> Any:
        if kind is list:
            return self.sequence(value)
        if kind is dict and _is_plain(value):
            return self.members(value)
        row = find_row(kind)
        if row is None:
            raise Refused(type_name(kind))
        return {TAG: row.tag, **row.pack(value, self)}


class Decoder:
    """One decoding."""

    def __init__(self) -> None:
        self._depth = 0
        self._values = 0
        self._room_bytes = 0

    def take(self, room_bytes: int) -> None:
        """Count memory that a value takes beyond the size of its encoding.

        Raises: Refused above ROOM_BYTES_MAX in one argument or result.
        """
        self._room_bytes += room_bytes
        if self._room_bytes > ROOM_BYTES_MAX:
            raise Refused(f"more than {ROOM_BYTES_MAX} bytes of text")

    def decode(self, encoded: Any) -> Any:
        """The value of one JSON form."""
        kind = type(encoded)
        if kind is not list and kind is not dict:
            if encoded is None or kind in (str, bool, int, float):
                return encoded
            raise Refused(f"{type_name(kind)} in an encoded value")
        self._depth += 1
        self._values += 1
        if self._depth > JSON_DEPTH_MAX:
            raise Refused(f"nested deeper than {JSON_DEPTH_MAX} levels")
        if self._values > VALUES_MAX:
            raise Refused(f"more than {VALUES_MAX} values")
        try:
            if kind is list:
                return self.sequence(encoded)
            tag = encoded.get(TAG, _ABSENT)
            if tag is _ABSENT:
                return self.members(encoded)
            return self._unpack(tag, encoded)
        finally:
            self._depth -= 1

    def sequence(self, encoded: Any) -> list[Any]:
        """The value of each element."""
        if type(encoded) is not list:
            raise Refused(f"{type_name(type(encoded))} where a list belongs")
        result: list[Any] = []
        try:
            for item in encoded:
                result.append(self.decode(item))
        except Refused as refused:
            refused.steps.append(len(result))
            raise
        return result

    def members(self, encoded: Any) -> dict[str, Any]:
        """The value of each member."""
        if type(encoded) is not dict:
            raise Refused(f"{type_name(type(encoded))} where an object belongs")
        result: dict[str, Any] = {}
        name = ""
        try:
            for name, value in encoded.items():
                result[name] = self.decode(value)
        except Refused as refused:
            refused.steps.append(name)
            raise
        return result

    def pairs(self, encoded: Any) -> list[tuple[Any, Any]]:
        """Key-value pairs."""
        result = []
        for pair in self.sequence(encoded):
            if type(pair) is not list or len(pair) != 2:
                raise Refused("something else where a key-value pair belongs")
            result.append((pair[0], pair[1]))
        return result

    def _unpack(self, tag: Any, encoded: dict[str, Any]) -> Any:
        row = rows_by_tag().get(tag) if type(tag) is str else None
        if row is None:
            raise Refused(f"unknown tag {str(tag)[:60]!r}; was it recorded by a newer spanreplay?")
        try:
            return row.unpack(encoded, self)
        except Refused:
            raise
        except MemoryError:
            raise Refused(f"{tag} that takes more memory than there is") from None
        except Exception as exc:  # any error that a malformed recording causes is a refusal
            raise Refused(f"malformed {tag} ({type(exc).__name__})") from exc


def type_name(kind: type) -> str:
    """Import path of a type, for messages."""
    return f"{kind.__module__}.{kind.__qualname__}"


def package_of(kind: type) -> str:
    """The package that a type claims to come from."""
    return str(kind.__module__).partition(".")[0]  # a class may hold any object there


def is_clean_text(text: str) -> bool:
    """Whether the text is valid Unicode, without lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(value: dict[Any, Any]) -> bool:
    if TAG in value:
        return False
    return all(type(name) is str and (name.isascii() or is_clean_text(name)) for name in value)


_ROW_OF: WeakKeyDictionary[type, Row] = WeakKeyDictionary()
_NO_ROW: WeakKeyDictionary[type, int] = WeakKeyDictionary()
"""Type that no row matched → number of modules loaded then: rows see only loaded libraries."""


def find_row(kind: type) -> Row | None:
    """The table's row for a type; the first that matches wins."""
    row = _ROW_OF.get(kind)
    if row is None and _NO_ROW.get(kind) != len(sys.modules):
        row = next((row for row in rows_by_tag().values() if row.matches(kind)), None)
        if row is not None:
            _ROW_OF[kind] = row
        else:
            _NO_ROW[kind] = len(sys.modules)
    return row


_rows: Final[dict[str, Row]] = {}


def set_table(rows: Iterable[Row]) -> None:
    """Set the rows of the table, in its order."""
    _rows.update((row.tag, row) for row in rows)


def rows_by_tag() -> dict[str, Row]:
    """The table, in its order."""
    return _rows
