"""A named place in the log that survives a restart."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from spanreplay_collector.log.segment import Position, replace_file

logger = logging.getLogger(__name__)


class Cursor:
    """How far one reader has come; owned by `SegmentLog`, whose lock guards `position`.

    `planned` is the end of the batch that is being handed on: a batch that was cut short by a crash is
    repeated with the same bounds, hence with the same deduplication token.
    """

    def __init__(self, path: Path, *, lag_bytes_max: int | None) -> None:
        self.name = path.stem
        self.lag_bytes_max = lag_bytes_max
        self.is_new = not path.exists()
        self._path = path
        self.position, self.planned = _read(path)

    def persist(self) -> None:
        """Write the place down; durable when this returns. Raises: OSError."""
        planned = list(self.planned) if self.planned else None
        replace_file(self._path, json.dumps({"position": list(self.position), "planned": planned}).encode() + b"\n")


def _read(path: Path) -> tuple[Position, Position | None]:
    try:
        stored = json.loads(path.read_bytes())
        position = Position(*map(int, stored["position"]))
        planned = Position(*map(int, stored["planned"])) if stored["planned"] else None
    except FileNotFoundError:
        return Position(0, 0), None
    except (ValueError, KeyError, TypeError) as exc:
        # From the start again: a repeated load is deduplicated, a skipped one would be a loss.
        logger.warning("cursor %s cannot be read (%s); starting at the oldest record", path.name, exc)
        return Position(0, 0), None
    return position, planned
