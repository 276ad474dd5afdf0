"""Codec of exceptions: class by import path, args, attributes, cause, notes; no traceback.

Attributes without a codec (an HTTP response, a frame) are named in `dropped`; args without one are refused,
because they are the exception's message. Decoding runs only C constructors, on plain values and exceptions.
"""

from __future__ import annotations

import contextlib
import sys
from functools import lru_cache
from itertools import takewhile
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType
from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row, decode, encode, type_name
from spanreplay.codec._lookup import class_path, is_path, load_class
from spanreplay.codec._still import bases_of, fill, find, is_below, is_plain, namespace_of
from spanreplay.codec._validation import VALIDATION
from spanreplay.model.canonical import Refused

__all__ = ["EXCEPTION", "decode_exception", "encode_exception"]

# Attributes that builtin exceptions hold outside of __dict__ and args.
_HELD: Final = (
    *("errno", "strerror", "filename", "filename2", "characters_written"),
    *("name", "path", "name_from", "obj", "code", "value"),
    *("msg", "lineno", "offset", "text", "end_lineno", "end_offset", "print_file_and_line"),
)
_HELD_IN_C: Final = ("pgcode", "pgerror")
"""Attributes that exceptions of C libraries (psycopg2) hold and restore through `__setstate__`."""


def encode_exception(exc: BaseException) -> dict[str, Any]:
    """The JSON form of an exception.

    Raises: Unserializable if its class cannot be imported by path, or its args have no codec.
    """
    encoded: dict[str, Any] = encode(exc)
    return encoded


def decode_exception(encoded: Any) -> BaseException:
    """Rebuild an exception from the output of `encode_exception`, without traceback or running its own `__init__`.

    Raises: Unserializable for anything that is not an exception.
    """
    if not isinstance(encoded, dict) or encoded.get("$type") not in (EXCEPTION.tag, VALIDATION.tag):
        raise Refused("something else where an exception belongs").located()
    exc: BaseException = decode(encoded)
    return exc


_MODULE: Final = type.__dict__["__module__"]
BASES_MAX: Final = 20
"""So many bases of an exception are tried for a stand-in."""


def _is_exception(kind: type) -> bool:
    return is_below(kind, BaseException)


def _builtin_base(cls: type) -> type:
    return next(base for base in bases_of(cls) if _MODULE.__get__(base) == "builtins")


def _pack_exception(exc: BaseException, enc: Encoder) -> dict[str, Any]:
    packed: dict[str, Any] = {"class": class_path(type(exc)), "args": enc.at("args", list(exc.args))}
    base = _builtin_base(type(exc))
    if bases := _list_bases(type(exc)):
        packed["bases"] = bases
    if isinstance(exc, OSError) and len(exc.args) == 2 and exc.filename is not None:
        # OSError keeps its file names out of args; its constructor wants them back there.
        names = [exc.filename] if exc.filename2 is None else [exc.filename, None, exc.filename2]
        packed["args"] = enc.at("args", [*exc.args, *names])
    held: dict[str, Any] = {name: getattr(exc, name, None) for name in _HELD if name in _slots(base)}
    held.update({name: getattr(exc, name) for name in _HELD_IN_C if hasattr(exc, name) and not _holds(exc, name)})
    state, dropped = _encodable(enc, {**{k: v for k, v in held.items() if v is not None}, **exc.__dict__})
    if state:
        packed["state"] = state
    if any(each is exc for each in getattr(exc.__cause__, "args", ())):
        dropped = ["__cause__", *dropped]  # the cancellation that brought this exception to a task
    elif exc.__cause__ is not None:
        packed["cause"] = enc.at("__cause__", exc.__cause__)
    if dropped:
        packed["dropped"] = dropped
    if exc.__suppress_context__:
        packed["suppress_context"] = True
    return packed


def _list_bases(cls: type) -> list[str]:
    """The paths of a class's bases up to the builtin one, for a stand-in; [] if it is shown by code of its own."""
    of_libraries = list(takewhile(lambda each: _MODULE.__get__(each) != "builtins", bases_of(cls)))
    if any(name in namespace_of(each) for each in of_libraries for name in ("__str__", "__repr__")):
        return []
    bases = (*of_libraries[1:], _builtin_base(cls)) if of_libraries else ()
    return [f"{each.__module__}:{each.__qualname__}" for each in bases]


def _find_class(encoded: dict[str, Any]) -> type:
    """The class of an exception, or a stand-in that its nearest bases are below.

    A tool may be the only code that loads a module, and a replay doesn't run it: nobody here can name that class.
    """
    path = encoded["class"]
    module, _, qualname = path.partition(":") if is_path(path) else ("", "", "")
    bases = encoded.get("bases")
    if type(bases) is not list or not module or module in sys.modules:
        return load_class(path)
    for each in bases[:BASES_MAX]:
        with contextlib.suppress(Refused):
            base = load_class(each)
            if _is_exception(base) and _is_derived_silently(base):
                names = {"__module__": module, "__qualname__": qualname}
                return type(qualname.rpartition(".")[2], (base,), names)
    return load_class(path)


def _is_derived_silently(base: type) -> bool:
    """Whether a class can be made below this one without running code: of a metaclass, or `__init_subclass__`."""
    return type(base) is type and not any("__init_subclass__" in namespace_of(each) for each in bases_of(base)[:-1])


def _holds(exc: BaseException, name: str) -> bool:
    return name in exc.__dict__


def _make(cls: type, base: Any, args: list[Any]) -> BaseException:
    """Make an exception of this class without running Python code of the class or of its args."""
    own = find(cls, "__new__")
    try:
        if not _may_construct(args):
            return _checked(base.__new__(cls), cls)
        # The constructor of the builtin or C library fills its C fields; the class's own __init__ is never run.
        made = _checked((own if isinstance(own, BuiltinFunctionType) else base.__new__)(cls, *args), cls)
        base.__init__(made, *args)
        return made
    except (TypeError, ValueError):
        return _checked(base.__new__(cls), cls)


def _checked(made: BaseException, cls: type) -> BaseException:
    if type(made) is not cls:
        raise Refused(f"{type_name(cls)}, which its args turn into {type_name(type(made))}")
    return made


def _may_construct(args: list[Any]) -> bool:
    """Whether C constructors may inspect the args: plain values, or an exception group's text and exceptions."""
    is_pair = len(args) == 2 and type(args[0]) is str and type(args[1]) is list
    return is_plain(args) or (is_pair and all(_is_exception(type(each)) for each in args[1]))


@lru_cache(maxsize=128)  # one per builtin exception
def _slots(base: type) -> set[str]:
    return {name for cls in bases_of(base) if cls is not BaseException for name in namespace_of(cls)}


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
    cls = _find_class(encoded)
    if not _is_exception(cls):
        raise Refused(f"{encoded['class']}, which is not an exception")
    args = dec.sequence(encoded["args"])
    base: Any = _builtin_base(cls)
    exc = _make(cls, base, args)
    if not is_below(cls, OSError):
        _ARGS.__set__(exc, tuple(args))
    elif not _may_construct(args):
        _ARGS.__set__(exc, tuple(args[:2] if len(args) > 2 else args))  # file names are not part of its args
    _restore_state(exc, base, dec.members(encoded.get("state", {})))
    cause = dec.decode(encoded.get("cause"))
    if cause is not None and not _is_exception(type(cause)):
        raise Refused("something else where a cause belongs")
    _CAUSE.__set__(exc, cause)
    _SUPPRESS.__set__(exc, bool(encoded.get("suppress_context")))
    return exc


def _restore_state(exc: BaseException, base: type, state: dict[str, Any]) -> None:
    held, own, of_c = _slots(base), {}, {}
    for name, value in state.items():
        found = find(type(exc), name)
        if name in _HELD_IN_C and isinstance(found, MemberDescriptorType | GetSetDescriptorType):
            of_c[name] = value
        elif name in _HELD and name in held:
            find(base, name).__set__(exc, value)
        else:
            own[name] = value
    fill(exc, own)
    if of_c:
        _set_state_of_c(exc, of_c)


def _set_state_of_c(exc: BaseException, state: dict[str, Any]) -> None:
    """Restore state through a `__setstate__` written in C; one written in Python is not called."""
    for base in bases_of(type(exc)):
        found = namespace_of(base).get("__setstate__")
        if isinstance(found, MethodDescriptorType) and base is not BaseException and is_plain(state):
            found.__get__(exc)(state)
            return


_ARGS: Final = BaseException.__dict__["args"]
_CAUSE: Final = BaseException.__dict__["__cause__"]
_SUPPRESS: Final = BaseException.__dict__["__suppress_context__"]
EXCEPTION: Final = Row("exception", _is_exception, _pack_exception, _unpack_exception)
