"""Reads the meaning of a request: pure functions from the JSON on the wire to kind, key fields, messages, usage.

A seam defines where a call crosses the boundary; a dialect defines what the call is. Dialects are selected by the URL's
path, so any host that speaks the protocol works. Everything else is kind `http`.
"""

from __future__ import annotations

from spanreplay.dialects._base import Dialect
from spanreplay.dialects._meaning import Message, RequestMeaning, ResponseMeaning, ToolCall, meta
from spanreplay.dialects._table import Exchange, find_dialect, read_realtime

__all__ = [
    "Dialect",
    "Exchange",
    "Message",
    "RequestMeaning",
    "ResponseMeaning",
    "ToolCall",
    "find_dialect",
    "meta",
    "read_realtime",
]
