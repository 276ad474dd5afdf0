"""The connection of aiormq in a replay: its own code, above a stream whose other end answers in this process.

The other end opens and closes connections and channels. Whatever else a program asks is served above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from spanreplay.seams.machine.brokers.aio_pika_client.frames import make_frame
from spanreplay.seams.machine.brokers.amqp_methods import CAPABILITIES

__all__ = ["PROPERTIES", "StandInTransport"]

_HEADER: Final = b"AMQP"
_HEADER_BYTES: Final = 8
PROPERTIES: Final[Mapping[str, Any]] = {
    "capabilities": dict(CAPABILITIES),
    "product": "RabbitMQ",
}
"""What a server says of itself, where nothing was recorded of it."""
_TUNE: Final = {"channel_max": 2047, "frame_max": 131072, "heartbeat": 0}
_DEFAULTS: Final = {"message_count": 0, "consumer_count": 0, "active": True}
_ECHOED: Final = ("queue", "consumer_tag")


class StandInTransport:
    """In place of aiormq's factory of transports."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = told

    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, Any]:
        """Return the two ends of a stream that is connected to nobody."""
        reader = asyncio.StreamReader()
        return reader, _Writer(reader, self._told)


class _Writer:
    """The writing end: each frame is answered at once."""

    def __init__(self, reader: asyncio.StreamReader, told: Mapping[str, Any]) -> None:
        self._reader = reader
        self._told = told
        self._is_closed = False
        self.transport = self

    def write(self, sent: bytes) -> None:
        """Answer whole frames."""
        left = bytes(sent)
        if left.startswith(_HEADER):
            properties = dict(self._told.get("properties") or PROPERTIES)
            start = {"version_major": 0, "version_minor": 9, "server_properties": properties}
            self._answer(0, "Connection.Start", {**start, "mechanisms": "PLAIN AMQPLAIN EXTERNAL", "locales": "en_US"})
            left = left[_HEADER_BYTES:]
        while left:
            size, channel, frame = import_module("pamqp.frame").unmarshal(left)
            left = left[size:]
            self._reply(channel, frame)

    def _reply(self, channel: int, frame: Any) -> None:
        if frame.name == "Connection.StartOk":
            self._answer(0, "Connection.Tune", {**_TUNE, **(self._told.get("tune") or {}), "heartbeat": 0})
            return
        if not getattr(frame, "synchronous", False) or getattr(frame, "nowait", False):
            return
        answers = [name for name in frame.valid_responses if name.endswith(("Ok", "GetEmpty"))]
        if answers:
            names = (*_DEFAULTS, *_ECHOED)
            self._answer(
                channel, answers[-1], {**_DEFAULTS, **{n: getattr(frame, n) for n in names if hasattr(frame, n)}}
            )

    def _answer(self, channel: int, name: str, fields: Mapping[str, Any]) -> None:
        made = make_frame(name, fields)
        if not self._is_closed:
            self._reader.feed_data(import_module("pamqp.frame").marshal(made, channel))

    async def drain(self) -> None:
        """Wait for nothing."""

    def close(self) -> None:
        """End the stream."""
        if not self._is_closed:
            self._is_closed = True
            self._reader.feed_eof()

    abort = close

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._is_closed

    async def wait_closed(self) -> None:
        """Wait for nothing."""

    def can_write_eof(self) -> bool:
        """Whether one end can be closed alone: no."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection: nothing."""
        return default
