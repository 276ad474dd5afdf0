"""A named position in the log that survives a restart."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from spanreplay_collector.log.segment import Position, replace_file

logger = logging.getLogger(__name__)


class Cursor:
    """The position of one reader; owned by `SegmentLog`, whose lock guards `position`.

    `planned` is the end of the batch being passed on: a batch interrupted by a crash is repeated with the
    same bounds, hence with the same deduplication token.
    """

    def __init__(self, path: Path, *, lag_bytes_max: int | None) -> None:
        self.name = path.stem
        self.lag_bytes_max = lag_bytes_max
        self.is_new = not path.exists()
        self._path = path
        self.position, self.planned = _read(path)

    def persist(self) -> None:
        """Write the position to disk; durable when this returns. Raises: OSError."""
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
        # Start from the beginning: a repeated load is deduplicated, a skipped one would lose data.
        logger.warning("cursor %s cannot be read (%s); starting at the oldest record", path.name, exc)
        return Position(0, 0), None
    return position, planned
