"""Seam: when and where a log record was made, according to the record: time, process, thread.

A library may log more or less in a replay (nothing connects, no connection pool is cleaned up), so records are matched
by logger and function, and an extra or a missing record is not a divergence: a record that was not logged while
recording shows the replay's clock.
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
    """Return the record's values, with its time shifted by `shift_ns`."""
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
        lane = crossing.lane  # the call's own lane ends with it, and reads recorded there would be lost
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
