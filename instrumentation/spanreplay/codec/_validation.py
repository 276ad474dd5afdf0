"""Codec of pydantic's ValidationError, which has no args: it is rebuilt from its lines, with pydantic's own texts."""

from __future__ import annotations

import enum
import sys
from typing import Any, Final, get_args

from spanreplay.codec._engine import Decoder, Encoder, Row
from spanreplay.codec._lookup import library
from spanreplay.codec._still import ABSENT, is_below, is_plain
from spanreplay.model.canonical import Refused

__all__ = ["VALIDATION"]


def _core() -> Any:
    return sys.modules.get("pydantic_core")


def _is_validation_error(kind: type) -> bool:
    return kind is getattr(_core(), "ValidationError", None)


def _pack_validation_error(exc: Any, enc: Encoder) -> dict[str, Any]:
    title, lines, mode, hides_input = exc.__reduce__()[1]
    return {
        "title": title,
        "lines": [_pack_line(line, enc) for line in lines],
        "mode": mode,
        "hides_input": hides_input,
    }


def _pack_line(line: Any, enc: Encoder) -> dict[str, Any]:
    core, kind, given = _core(), line["type"], line["input"]
    packed: dict[str, Any] = {"loc": enc.encode(list(line["loc"]))}
    if isinstance(given, core.ArgsKwargs):  # from a function whose arguments pydantic validates
        packed["call"] = enc.at("input", [list(given.args), given.kwargs or {}])
    else:
        packed["input"] = enc.at("input", given)
    if isinstance(kind, core.PydanticCustomError):
        packed["custom"] = [kind.type, kind.message_template, enc.at("ctx", kind.context)]
        return packed
    if not _is_known(kind):  # a custom error, in versions of pydantic that don't mark it
        packed["custom"] = [kind, line["msg"], enc.at("ctx", line.get("ctx"))]
        return packed
    packed["type"] = kind
    if "ctx" in line:
        packed["ctx"] = enc.at("ctx", line["ctx"])
    return packed


def _is_known(kind: str) -> bool:
    from pydantic_core.core_schema import ErrorType

    return kind in get_args(ErrorType)


def _unpack_validation_error(encoded: dict[str, Any], dec: Decoder) -> Any:
    core = library("pydantic_core")
    lines = [_unpack_line(line, dec, core) for line in encoded["lines"]]
    try:
        return core.ValidationError.from_exception_data(
            encoded["title"], lines, encoded["mode"], encoded["hides_input"]
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise Refused(f"a ValidationError that this version of pydantic does not know: {exc}") from exc


def _unpack_line(line: dict[str, Any], dec: Decoder, core: Any) -> dict[str, Any]:
    loc = dec.sequence(line["loc"])
    if not all(type(each) in (str, int) for each in loc):
        raise Refused("something else where the steps to a field belong")
    unpacked: dict[str, Any] = {"loc": tuple(loc)}
    if "call" in line:
        args, kwargs = dec.decode(line["call"])
        if type(args) is not list or type(kwargs) is not dict:
            raise Refused("something else where arguments belong")
        unpacked["input"] = core.ArgsKwargs(tuple(args), kwargs)
    else:
        unpacked["input"] = dec.decode(line["input"])
    if "custom" in line:
        kind, template, context = line["custom"]
        unpacked["type"] = core.PydanticCustomError(kind, template, _context(context, dec))
        return unpacked
    unpacked["type"] = line["type"]
    if "ctx" in line:
        unpacked["ctx"] = _context(line["ctx"], dec)
    return unpacked


def _context(encoded: Any, dec: Decoder) -> Any:
    """The values that are filled into an error's text; pydantic's own texts inspect them."""
    context = dec.decode(encoded)
    values = context.values() if type(context) is dict else () if context is None else (ABSENT,)
    if not all(is_plain(each) or is_below(type(each), BaseException, enum.Enum) for each in values):
        raise Refused("something else where the context of an error belongs")
    return context


VALIDATION: Final = Row("validation_error", _is_validation_error, _pack_validation_error, _unpack_validation_error)
