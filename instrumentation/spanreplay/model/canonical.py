"""Canonical JSON (RFC 8785), of which keys are made.

`canonicalize` writes any value that json.loads can return in exactly one way, and refuses everything else with
its JSON path: no repr, no str() of an object ever reaches a key. Three choices go beyond the RFC, which covers
only I-JSON: integers are exact at any size (the RFC would round them to doubles), strings are NFC normalised,
and a lone surrogate is written as its escape.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Any, Final

from spanreplay.model.errors import Unserializable

__all__ = ["Refused", "canonicalize", "json_path", "sorted_names", "to_bytes", "write"]

DEPTH_MAX: Final = 400
"""Levels of nesting; a cycle ends here too."""

_EXACT_INT_MAX: Final = 2.0**53
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


# ── RFC 8785 ────────────────────────────────────────────────────────────────────────────────────────
class Refused(Exception):
    """A value that cannot be written, and the steps to it, innermost first; becomes Unserializable at the top."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.steps: list[str | int] = []

    def located(self) -> Unserializable:
        """The public error, with the JSON path."""
        return Unserializable(json_path(reversed(self.steps)), self.what)


def canonicalize(value: Any) -> bytes:
    """The one RFC 8785 form of a JSON value, UTF-8.

    Accepts exactly the types that json.loads returns (None, bool, int, float, str, list, dict), and tuples as lists.
    Raises: Unserializable with the JSON path for anything else, NaN, infinities, and nesting over DEPTH_MAX.
    """
    out: list[str] = []
    try:
        write(value, out, None, False, 0)
    except Refused as refused:
        raise refused.located() from None
    return to_bytes(out)


def json_path(steps: Iterable[str | int]) -> str:
    """`$.a.b[3]` for the steps 'a', 'b', 3."""
    text = "$"
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}"
        else:
            text += f"[{encode_basestring(step)}]"
    return text


def to_bytes(out: list[str]) -> bytes:
    """Join the pieces that `write` appended, as UTF-8."""
    text = "".join(out)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")  # a lone surrogate as \udxxx, which no text can spell


def write(value: Any, out: list[str], ids: dict[str, int] | None, is_codec: bool, depth: int) -> None:
    """Append the canonical text of `value`; with `ids`, opaque ids are replaced by their number in it."""
    kind = type(value)
    if kind is str:
        out.append(encode_basestring(value if value.isascii() else unicodedata.normalize("NFC", value)))
    elif kind is dict:
        _write_object(value, out, ids, is_codec, depth + 1)
    elif kind is list or kind is tuple:
        _write_array(value, out, ids, is_codec, depth + 1)
    elif value is None:
        out.append("null")
    elif value is True:
        out.append("true")
    elif value is False:
        out.append("false")
    elif kind is int:
        out.append(_format_int(value))
    elif kind is float:
        out.append(_format_float(value))
    else:
        raise Refused(f"{kind.__module__}.{kind.__qualname__}")


def _write_array(
    items: list[Any] | tuple[Any, ...], out: list[str], ids: dict[str, int] | None, is_codec: bool, depth: int
) -> None:
    if depth > DEPTH_MAX:
        raise Refused(f"nested deeper than {DEPTH_MAX} levels")
    separator = "["
    index = 0
    try:
        for index, item in enumerate(items):  # noqa: B007  the except clause names the element
            out.append(separator)
            write(item, out, ids, is_codec, depth)
            separator = ","
    except Refused as refused:
        refused.steps.append(index)
        raise
    out.append("]" if separator == "," else "[]")


def _write_object(
    members: dict[Any, Any], out: list[str], ids: dict[str, int] | None, is_codec: bool, depth: int
) -> None:
    if depth > DEPTH_MAX:
        raise Refused(f"nested deeper than {DEPTH_MAX} levels")
    if is_codec and members.get("$type") == "dict":
        members = _with_sorted_items(members)
    names = sorted_names(members)
    separator = "{"
    name = ""
    try:
        for name, written in names:
            value = members[name]
            out.append(f"{separator}{encode_basestring(written)}:")
            separator = ","
            if ids is None:
                write(value, out, None, is_codec, depth)
            elif name in _ID_FIELDS and type(value) is str and _is_opaque(name, value, members):
                out.append(f"id#{ids.setdefault(value, len(ids) + 1)}")  # unquoted: no string can spell it
            else:
                write(value, out, None if name in _OPAQUE_FIELDS else ids, is_codec, depth)
    except Refused as refused:
        refused.steps.append(name)
        raise
    out.append("}" if separator == "," else "{}")


def sorted_names(members: dict[Any, Any]) -> list[tuple[str, str]]:
    """(name, NFC name) in the order of UTF-16 code units, as the RFC requires."""
    is_ascii = True
    for name in members:
        if type(name) is not str:
            raise Refused(f"object key of type {type(name).__qualname__}")
        is_ascii = is_ascii and name.isascii()
    if is_ascii:
        return [(name, name) for name in sorted(members)]
    pairs = [(name, unicodedata.normalize("NFC", name)) for name in members]
    if len({written for _, written in pairs}) != len(pairs):
        raise Refused("object keys that are equal after NFC normalisation")
    pairs.sort(key=lambda pair: pair[1].encode("utf-16-be", "surrogatepass"))
    return pairs


def _with_sorted_items(members: dict[Any, Any]) -> dict[Any, Any]:
    """Sort the items of a codec dict: a recording keeps their insertion order, but a key must not depend on it."""
    items = members.get("items")
    if type(items) is not list:
        return members
    return {**members, "items": sorted(items, key=canonicalize)}


def _format_int(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # sys.set_int_max_str_digits
        raise Refused("int with too many digits") from None


def _format_float(value: float) -> str:
    """ECMAScript's Number.prototype.toString, which RFC 8785 prescribes."""
    if -_EXACT_INT_MAX < value < _EXACT_INT_MAX and value == math.trunc(value):
        return int.__repr__(int(value))
    if not math.isfinite(value):
        raise Refused(f"float {value!r}")
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


# ── Opaque ids ──────────────────────────────────────────────────────────────────────────────────────
# An id that a provider or a framework draws at random says only which call a result belongs to. Ids are numbered
# by first occurrence, so the reference is still checked. Nothing below arguments is touched: a customer's id has
# meaning.
_ID_FIELDS: Final = frozenset({"id", "tool_call_id", "call_id", "tool_use_id"})
_OPAQUE_FIELDS: Final = frozenset(
    {"input", "output", "arguments", "args", "kwargs", "parameters", "metadata", "response", "schema"}
    | {"input_schema", "json_schema"}
)
_CALL_TYPES: Final = frozenset(
    {"tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "function", "function_call"}
)
# OpenAI's calls, Google's calls, Google's results
_CALL_FIELDS: Final = frozenset({"function", "args", "response"})
_OPAQUE_ID: Final = re.compile(
    r"(?:call|toolu|srvtoolu|mcptoolu|fc|ctc|msg|rs|resp|ws|fs|ci|mcp|chatcmpl|run|item)[_-]\S+"
    r"|[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"
)


def _is_opaque(name: str, value: str, owner: dict[Any, Any]) -> bool:
    if name != "id":
        return True
    is_call = owner.get("type") in _CALL_TYPES or not owner.keys().isdisjoint(_CALL_FIELDS)
    return is_call or _OPAQUE_ID.fullmatch(value) is not None
