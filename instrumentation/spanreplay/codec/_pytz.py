"""Codec of pytz's time zones, which pandas 2 gives to times that it reads; used only if pytz is loaded or recorded."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from spanreplay.codec._engine import Decoder, Encoder, Row, package_of
from spanreplay.codec._lookup import library
from spanreplay.model.canonical import Refused

__all__ = ["PYTZ"]


def _is_pytz(kind: type) -> bool:
    return package_of(kind) == "pytz" and issubclass(kind, dt.tzinfo)


def _pack_zone(value: Any, _: Encoder) -> dict[str, Any]:
    pytz = library("pytz")
    if value.zone is None:
        return {"minutes": int(value.utcoffset(None).total_seconds()) // 60}
    whole = pytz.timezone(value.zone)
    if value is whole:
        return {"zone": value.zone}
    # One of a zone's offsets, as localize() sets it on a datetime
    offset, dst, name = value._utcoffset, value._dst, value._tzname
    if whole._tzinfos.get((offset, dst, name)) is not value:
        raise Refused(f"pytz time zone {value.zone!a} of other rules than the installed")
    return {"zone": value.zone, "offset": [offset.total_seconds(), dst.total_seconds(), name]}


def _unpack_zone(encoded: dict[str, Any], _: Decoder) -> Any:
    pytz = library("pytz")
    if "minutes" in encoded:
        return pytz.FixedOffset(int(encoded["minutes"]))
    whole = pytz.timezone(str(encoded["zone"]))
    if "offset" not in encoded:
        return whole
    offset, dst, name = encoded["offset"]
    return whole._tzinfos[(dt.timedelta(seconds=offset), dt.timedelta(seconds=dst), name)]


PYTZ: Final = Row("pytz", _is_pytz, _pack_zone, _unpack_zone)
