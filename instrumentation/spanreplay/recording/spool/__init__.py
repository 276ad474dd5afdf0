"""The spool: recordings in a directory, appended by agents, read by commands, shipped to a collector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.recording.spool.frames import iter_frames
from spanreplay.recording.spool.writer import SpoolWriter

if TYPE_CHECKING:
    from spanreplay.recording.spool.processor import SpoolSpanProcessor, encode_span
    from spanreplay.recording.spool.reader import SpoolCatalog
    from spanreplay.recording.spool.shipper import Shipper, ShipReport, ship_all
    from spanreplay.recording.spool.target import Target, read_target

__all__ = [
    "ShipReport",
    "Shipper",
    "SpoolCatalog",
    "SpoolSpanProcessor",
    "SpoolWriter",
    "Target",
    "encode_span",
    "iter_frames",
    "read_target",
    "ship_all",
]

_LAZY = {
    "ShipReport": "shipper",
    "Shipper": "shipper",
    "SpoolCatalog": "reader",
    "SpoolSpanProcessor": "processor",
    "Target": "target",
    "encode_span": "processor",
    "read_target": "target",
    "ship_all": "shipper",
}


def __getattr__(name: str) -> object:
    """Import names that pull in the SDK or http.client on first access."""
    if name not in _LAZY:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"spanreplay.recording.spool.{_LAZY[name]}"), name)
