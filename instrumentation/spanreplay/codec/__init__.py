"""Python values as JSON and back, with their types, without pickle.

Plain JSON values encode to themselves; every other type is an object with a `$type` tag, one row per type in
`_table.py`. Decoding builds only known families of data classes, without running their `__init__`, and calls
nothing that a recording names, because a recording may come from elsewhere.
"""

from __future__ import annotations

from spanreplay.codec import _table as _table  # gives the engine its rows
from spanreplay.codec._arguments import bind_arguments, call_arguments
from spanreplay.codec._engine import decode, encode
from spanreplay.codec._errors import decode_exception, encode_exception
from spanreplay.model.errors import Unserializable

__all__ = [
    "Unserializable",
    "bind_arguments",
    "call_arguments",
    "decode",
    "decode_exception",
    "encode",
    "encode_exception",
]
