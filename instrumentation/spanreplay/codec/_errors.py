"""Codec of exceptions: class by import path, args, attributes, cause, notes; no traceback.

Attributes without a codec (an HTTP response, a frame) are named in `dropped`; args without one refuse,
because they are what the exception says.
"""

from __future__ import annotations

from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

from spanreplay.canonical import Refused
from spanreplay.codec._engine import Decoder, Encoder, Row, decode, encode, type_name
from spanreplay.codec._lookup import class_path, load_class
from spanreplay.codec._validation import VALIDATION

__all__ = ["EXCEPTION", "decode_exception", "encode_exception"]

# What builtin exceptions hold outside of __dict__ and args.
_HELD: Final = (
    *("errno", "strerror", "filename", "filename2", "characters_written"),
    *("name", "path", "name_from", "obj", "code", "value"),
    *("msg", "lineno", "offset", "text", "end_lineno", "end_offset", "print_file_and_line"),
)
_HELD_IN_C: Final = ("pgcode", "pgerror")
"""What exceptions of C libraries hold, and take back by `__setstate__`: psycopg2's."""


def encode_exception(exc: BaseException) -> dict[str, Any]:
    """The JSON form of an exception.

    Raises: Unserializable if its class cannot be imported by path, or its args have no codec.
    """
    encoded: dict[str, Any] = encode(exc)
    return encoded


def decode_exception(encoded: Any) -> BaseException:
    """The exception of a form made by `encode_exception`, without traceback, its `__init__` not run.

    Raises: Unserializable for anything that is no exception.
    """
    if not isinstance(encoded, dict) or encoded.get("$type") not in (EXCEPTION.tag, VALIDATION.tag):
        raise Refused("something else where an exception belongs").located()
    exc = decode(encoded)
    assert isinstance(exc, BaseException)
    return exc


def _is_exception(kind: type) -> bool:
    return issubclass(kind, BaseException)


def _builtin_base(cls: type) -> type:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _pack_exception(exc: BaseException, enc: Encoder) -> dict[str, Any]:
    packed: dict[str, Any] = {"class": class_path(type(exc)), "args": enc.at("args", list(exc.args))}
    base = _builtin_base(type(exc))
    if isinstance(exc, OSError) and len(exc.args) == 2 and exc.filename is not None:
        # OSError keeps its file names out of args; its constructor wants them back there.
        names = [exc.filename] if exc.filename2 is None else [exc.filename, None, exc.filename2]
        packed["args"] = enc.at("args", [*exc.args, *names])
    held: dict[str, Any] = {name: getattr(exc, name, None) for name in _HELD if name in _slots(base)}
    held.update({name: getattr(exc, name) for name in _HELD_IN_C if hasattr(exc, name) and not _holds(exc, name)})
    state, dropped = _encodable(enc, {**{k: v for k, v in held.items() if v is not None}, **exc.__dict__})
    if state:
        packed["state"] = state
    if dropped:
        packed["dropped"] = dropped
    if exc.__cause__ is not None:
        packed["cause"] = enc.at("__cause__", exc.__cause__)
    if exc.__suppress_context__:
        packed["suppress_context"] = True
    return packed


def _holds(exc: BaseException, name: str) -> bool:
    return name in exc.__dict__


def _make(cls: type, base: Any, args: Any) -> BaseException:
    """An exception of this class, no Python code of the class having run."""
    if isinstance(cls.__new__, BuiltinFunctionType):  # of C: a library's own, else that of `base`
        made: BaseException = cls.__new__(cls, *args)
        return made
    other: BaseException = base.__new__(cls, *args)
    return other


def _slots(base: type) -> set[str]:
    return {name for cls in base.__mro__ if cls is not BaseException for name in vars(cls)}


def _encodable(enc: Encoder, attributes: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    state: dict[str, Any] = {}
    dropped: list[str] = []
    for name, value in attributes.items():
        try:
            state.update(enc.members({name: value}))
        except Refused:
            dropped.append(name)
    return state, sorted(dropped)


def _unpack_exception(encoded: dict[str, Any], dec: Decoder) -> BaseException:
    cls = load_class(encoded["class"])
    if not _is_exception(cls):
        raise Refused(f"{encoded['class']}, which is no exception")
    args = dec.sequence(encoded["args"])
    base: Any = _builtin_base(cls)
    try:
        # A builtin's own constructor fills its C fields; the class's own __init__ is never run.
        exc = _make(cls, base, args)
        if type(exc) is cls:
            base.__init__(exc, *args)
    except (TypeError, ValueError):
        exc = BaseException.__new__(cls)
    if type(exc) is not cls:
        raise Refused(f"{encoded['class']}, which its args turn into {type_name(type(exc))}")
    if not isinstance(exc, OSError):
        exc.args = tuple(args)
    held = _slots(base)
    of_c: dict[str, Any] = {}
    for name, value in dec.members(encoded.get("state", {})).items():
        if name in _HELD_IN_C and isinstance(getattr(cls, name, None), MemberDescriptorType | GetSetDescriptorType):
            of_c[name] = value
        elif name in _HELD and name in held:
            object.__setattr__(exc, name, value)
        else:
            exc.__dict__[name] = value
    if of_c:
        exc.__setstate__(of_c)
    cause = dec.decode(encoded.get("cause"))
    if cause is not None and not isinstance(cause, BaseException):
        raise Refused("something else where a cause belongs")
    exc.__cause__ = cause
    exc.__suppress_context__ = bool(encoded.get("suppress_context"))
    return exc


EXCEPTION: Final = Row("exception", _is_exception, _pack_exception, _unpack_exception)
