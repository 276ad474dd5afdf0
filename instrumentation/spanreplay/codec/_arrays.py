"""Codecs of numpy arrays and scalars; numpy is used only where it is loaded, or named by a recording."""

from __future__ import annotations

import base64
import importlib
import sys
from typing import Any, Final

from spanreplay.canonical import Refused
from spanreplay.codec._engine import Decoder, Encoder, Row

__all__ = ["ARRAY", "SCALAR"]

_PLAIN_KINDS: Final = "biufcSUmM"
"""bool, integers, floats, complex, text and times; no objects, no records."""


def _is_array(kind: type) -> bool:
    return kind is getattr(sys.modules.get("numpy"), "ndarray", None)


def _is_scalar(kind: type) -> bool:
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    return isinstance(generic, type) and issubclass(kind, generic)


def _pack(value: Any, enc: Encoder) -> dict[str, Any]:
    dtype = value.dtype
    if dtype.kind == "O" and getattr(value, "shape", None):
        return {"dtype": "O", "shape": list(value.shape), "items": enc.sequence(value.ravel().tolist())}
    if dtype.kind not in _PLAIN_KINDS:
        raise Refused(f"numpy array of dtype {dtype.name}")
    packed = {"dtype": dtype.str, "b64": base64.b64encode(value.tobytes()).decode("ascii")}
    if _is_array(type(value)):
        packed["shape"] = list(value.shape)
    return packed


def _unpack_array(encoded: dict[str, Any], dec: Decoder) -> Any:
    numpy = importlib.import_module("numpy")
    shape = tuple(int(length) for length in encoded["shape"])
    if encoded["dtype"] == "O":
        items = dec.sequence(encoded["items"])
        array = numpy.empty(len(items), dtype=object)
        for index, item in enumerate(items):
            array[index] = item
        return array.reshape(shape)
    return _flat(numpy, encoded).reshape(shape).copy()


def _unpack_scalar(encoded: dict[str, Any], _: Decoder) -> Any:
    return _flat(importlib.import_module("numpy"), encoded)[0]


def _flat(numpy: Any, encoded: dict[str, Any]) -> Any:
    dtype = numpy.dtype(str(encoded["dtype"]))
    if dtype.kind not in _PLAIN_KINDS:
        raise Refused(f"numpy array of dtype {dtype.name}")
    return numpy.frombuffer(base64.b64decode(encoded["b64"], validate=True), dtype=dtype)


ARRAY: Final = Row("ndarray", _is_array, _pack, _unpack_array)
SCALAR: Final = Row("npscalar", _is_scalar, _pack, _unpack_scalar)
