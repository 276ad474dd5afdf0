"""What a request means: pure functions from the JSON on the wire to kind, key fields, messages, usage.

A seam says where a call crosses; a dialect says what it is. Dialects are found by the URL's path, so any host that
speaks the protocol works. Everything else is kind `http`.
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
