"""Codecs of numpy arrays, scalars and dtypes; numpy is used only if it is loaded or a recording names it.

Numbers are written as bytes, and text as text, so that redaction can read it. An array keeps the order of its axes in
memory, because the last digits of sums depend on it; a slice is made contiguous.
"""

from __future__ import annotations

import base64
import re
import sys
from typing import Any, Final

from spanreplay.codec._engine import ROOM_BYTES_MAX, Decoder, Encoder, Row
from spanreplay.codec._lookup import library
from spanreplay.model.canonical import Refused

__all__ = ["ARRAY", "DTYPE", "SCALAR", "dtype_named", "flat_array", "from_base64", "to_base64"]

_NUMBER_KINDS: Final = "biufcmM"
"""bool, integers, floats, complex, times; all kinds except these, text and objects are refused: records, voids."""
_ITEM_KINDS: Final = "OUS"
_DTYPE: Final = re.compile(r"[<>|=]?(?:[?biufcmMOUS])\d{0,9}(?:\[\d{0,9}[A-Za-z]{1,2}\])?")
"""The forms of `dtype.str` for these kinds; numpy itself also reads many other notations."""
_X87_MANTISSA_BITS: Final = 63
_X87_BYTES: Final = 10


def _is_array(kind: type) -> bool:
    return kind is getattr(sys.modules.get("numpy"), "ndarray", None)


def _is_scalar(kind: type) -> bool:
    return _is_below(kind, "generic")


def _is_dtype(kind: type) -> bool:
    return _is_below(kind, "dtype")


def _is_below(kind: type, name: str) -> bool:
    base = getattr(sys.modules.get("numpy"), name, None)
    return isinstance(base, type) and issubclass(kind, base)


def to_base64(value: Any) -> str:
    """The bytes of a numeric array or scalar, as base64, in the order of the array's axes.

    Raises: Refused for a dtype that has no plain bytes.
    """
    dtype = value.dtype
    if dtype.kind not in _NUMBER_KINDS:
        raise Refused(f"numpy array of dtype {dtype.name}")
    raw = value.tobytes()
    part_bytes = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    if dtype.kind in "fc" and part_bytes > 8:
        raw = _without_padding(raw, dtype, part_bytes)
    return base64.b64encode(raw).decode("ascii")


def _without_padding(raw: bytes, dtype: Any, part_bytes: int) -> bytes:
    """Clear the padding of x86 long doubles: 10 bytes hold the value, the other 6 are uninitialised memory."""
    numpy: Any = sys.modules["numpy"]
    if not dtype.isnative:
        raise Refused(f"numpy array of dtype {dtype.name} in another byte order")
    if numpy.finfo(dtype).nmant != _X87_MANTISSA_BITS:
        return raw
    parts = numpy.frombuffer(raw, dtype=numpy.uint8).reshape(-1, part_bytes).copy()
    parts[:, _X87_BYTES:] = 0
    cleared: bytes = parts.tobytes()
    return cleared


def dtype_named(name: Any, more_kinds: str = "") -> Any:
    """Parse the `dtype.str` of numbers or times, or of the kinds in `more_kinds`.

    Raises: Refused for any other kind, TypeError if it is not a dtype.
    """
    if type(name) is not str or not _DTYPE.fullmatch(name):
        raise Refused(f"numpy dtype {str(name)[:60]!a}")
    dtype = library("numpy").dtype(name)
    if dtype.kind not in _NUMBER_KINDS + more_kinds:
        raise Refused(f"numpy array of dtype {dtype.name}")
    return dtype


def from_base64(text: Any) -> bytes:
    """Decode the bytes of numbers.

    Raises: Refused if they are unreadable, for example because redaction masked them on account of their name.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise Refused("numbers that cannot be read; redaction may have masked them for their name") from None


def flat_array(dtype: Any, encoded: Any) -> Any:
    """Build a one-dimensional array from the output of `to_base64` and a dtype of `dtype_named`; not writable."""
    raw = from_base64(encoded)
    return library("numpy").frombuffer(raw, dtype=dtype)


# ── arrays ──────────────────────────────────────────────────────────────────────────────────────────
def _pack_array(value: Any, enc: Encoder) -> dict[str, Any]:
    axes = _axes_in_memory(value)
    packed: dict[str, Any] = {"dtype": value.dtype.str, "shape": list(value.shape)}
    if axes != sorted(axes):
        packed["axes"] = axes
        value = value.transpose(axes)
    if value.dtype.kind not in _ITEM_KINDS:
        return {**packed, "b64": to_base64(value)}
    if value.nbytes > ROOM_BYTES_MAX:
        raise Refused(f"numpy array of more than {ROOM_BYTES_MAX} bytes of text")
    return {**packed, "items": enc.sequence(value.ravel().tolist())}


def _axes_in_memory(value: Any) -> list[int]:
    """The axes, slowest first; axes of length 1, whose stride means nothing, keep their place."""
    long = [axis for axis, length in enumerate(value.shape) if length > 1]
    if not value.size or any(value.strides[axis] == 0 for axis in long):
        return list(range(value.ndim))  # numpy sums broadcast elements as if they were stored
    slowest = iter(sorted(long, key=lambda axis: -abs(value.strides[axis])))
    return [next(slowest) if length > 1 else axis for axis, length in enumerate(value.shape)]


def _unpack_array(encoded: dict[str, Any], dec: Decoder) -> Any:
    shape = [int(length) for length in encoded["shape"]]
    axes = [int(axis) for axis in encoded.get("axes", range(len(shape)))]
    if "items" in encoded:
        flat = _items_array(dtype_named(encoded["dtype"], _ITEM_KINDS), dec.sequence(encoded["items"]), dec)
    else:
        flat = flat_array(dtype_named(encoded["dtype"]), encoded["b64"])
    in_memory = flat.reshape([shape[axis] for axis in axes])
    return in_memory.transpose([axes.index(axis) for axis in range(len(axes))]).copy(order="K")


def _items_array(dtype: Any, items: list[Any], dec: Decoder) -> Any:
    numpy = library("numpy")
    if dtype.kind not in _ITEM_KINDS:
        raise Refused(f"numpy array of dtype {dtype.name} with items")
    if dtype.kind != "O":
        if not all(type(item) is (str if dtype.kind == "U" else bytes) for item in items):
            raise Refused("something else where text belongs")
        # Redaction's replacement may be longer than the secret
        longest = max(map(len, items), default=0)
        chars = max(longest, dtype.itemsize // 4 if dtype.kind == "U" else dtype.itemsize)
        dtype = numpy.dtype(f"{dtype.byteorder}{dtype.kind}{chars}".replace("|", ""))
        dec.take(dtype.itemsize * len(items))
    array = numpy.empty(len(items), dtype=dtype)
    for index, item in enumerate(items):
        array[index] = item
    return array


# ── scalars and dtypes ──────────────────────────────────────────────────────────────────────────────
def _pack_scalar(value: Any, enc: Encoder) -> dict[str, Any]:
    kind = value.dtype.kind
    if kind == "U":
        return {"dtype": kind, "item": enc.encode(str.__str__(value))}
    if kind == "S":
        return {"dtype": kind, "item": enc.encode(bytes(memoryview(value)))}
    return {"dtype": value.dtype.str, "b64": to_base64(value)}


def _unpack_scalar(encoded: dict[str, Any], dec: Decoder) -> Any:
    if "item" not in encoded:
        return flat_array(dtype_named(encoded["dtype"]), encoded["b64"])[0]
    numpy = library("numpy")
    item = dec.decode(encoded["item"])
    if type(item) is str:
        return numpy.str_(item)
    if type(item) is bytes:
        return numpy.bytes_(item)
    raise Refused("something else where text belongs")


def _pack_dtype(value: Any, _: Encoder) -> dict[str, Any]:
    if value.kind not in _NUMBER_KINDS + _ITEM_KINDS:
        raise Refused(f"numpy dtype {value.name}")
    return {"dtype": value.str}


def _unpack_dtype(encoded: dict[str, Any], _: Decoder) -> Any:
    return dtype_named(encoded["dtype"], _ITEM_KINDS)


ARRAY: Final = Row("ndarray", _is_array, _pack_array, _unpack_array)
SCALAR: Final = Row("npscalar", _is_scalar, _pack_scalar, _unpack_scalar)
DTYPE: Final = Row("npdtype", _is_dtype, _pack_dtype, _unpack_dtype)
