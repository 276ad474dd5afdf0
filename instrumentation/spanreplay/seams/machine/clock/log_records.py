"""Seam: what a log record says of when and where it was made: time, process, thread.

A library may log more or less in a replay (nothing connects, no pool is cleaned up), so records are known by logger and
function, and neither one more nor one less of them is a divergence: what was not logged then shows the replay's clock.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any, Final

from spanreplay.runtime.lanes import current_place
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, make_loose
from spanreplay.runtime.run import active_run

_SECONDS: Final = "created"
_SHOWN: Final = (_SECONDS, "msecs", "relativeCreated", "process", "thread", "threadName")
_NS: Final = 1_000_000_000


def _ns_of(values: Any) -> int:
    return int(values[0] * _NS)


@lru_cache(maxsize=1024)
def _source_of(logger: str, function: str) -> Source:
    return make_loose("clock", f"logging.{logger}.{function}", family="wall", to_ns=_ns_of)


def _shift(record: logging.LogRecord, shift_ns: int) -> list[Any]:
    """What the record shows, with its time so much later."""
    values = [getattr(record, name) for name in _SHOWN]
    values[0] = record.created + shift_ns / _NS
    values[1] = int(values[0] * 1000) % 1000 + 0.0
    return values


def _stamp(record: logging.LogRecord) -> None:
    run = active_run()
    if run is None or run.reads is None:
        return
    lane, crossing = current_place(run.root_lane)
    if crossing is not None:
        lane = crossing.lane  # its own ends with the call, and nothing would carry what it has read
    found = run.reads.read(
        lane,
        _source_of(record.name, record.funcName or ""),
        lambda: [getattr(record, name) for name in _SHOWN],
        lambda shift_ns: _shift(record, shift_ns),
    )
    vars(record).update(zip(_SHOWN, found, strict=False))


def install(module: Any, patches: Patches) -> None:
    """Patch `logging`."""

    def make(wrapped: Any, record: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        _stamp(record)

    patches.wrap(module.LogRecord, "__init__", make)
