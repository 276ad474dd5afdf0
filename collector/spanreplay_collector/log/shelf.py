"""Which segments of the log exist, how much of each is durable, and how positions compare."""

from __future__ import annotations

import threading

from spanreplay_collector.log.segment import MAGIC, Position


class Shelf:
    """The segments of one log; thread-safe. `grown` is notified whenever a reader may find something new.

    `sizes` counts durable bytes only: readers don't see bytes after them in a file.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.grown = threading.Condition(self.lock)
        self.sizes: dict[int, int] = {}
        self.active = -1
        self.next_segment = 1

    @property
    def bytes_on_disk(self) -> int:
        """Total size of all segments in bytes."""
        with self.lock:
            return sum(self.sizes.values())

    @property
    def end(self) -> Position:
        """The position just after the last durable record."""
        with self.lock:
            if not self.sizes:
                return Position(self.next_segment, 0)
            newest = max(self.sizes)
            return self.normalize(Position(newest, self.sizes[newest]))

    def take_number(self) -> int:
        """Return the number of a new segment; never returns a number twice."""
        with self.lock:
            self.next_segment += 1
            return self.next_segment - 1

    def open_segment(self, segment: int) -> None:
        """Note that a segment was created and is now the active one."""
        with self.lock:
            self.active = segment
            self.sizes[segment] = len(MAGIC)

    def grow(self, size: int) -> None:
        """Note that `size` more bytes of the active segment are durable."""
        with self.lock:
            self.sizes[self.active] += size
            self.grown.notify_all()

    def close_segment(self) -> None:
        """Note that nothing more is written to the active segment."""
        with self.lock:
            self.active = -1
            self.grown.notify_all()

    def normalize(self, position: Position) -> Position:
        """Turn the end of a closed segment into the start of the next one."""
        with self.lock:
            if position.segment == self.active or position.offset < self.sizes.get(position.segment, 0):
                return position
            if position.offset == 0 and position.segment not in self.sizes:
                return position
            return Position(position.segment + 1, 0)

    def locate(self, position: Position) -> tuple[Position, int]:
        """Return the position, moved forward if its segment was deleted, and the durable size of its segment."""
        with self.lock:
            later = [segment for segment in self.sizes if segment >= position.segment]
            if later and min(later) > position.segment:
                position = Position(min(later), 0)
            return position, self.sizes.get(position.segment, 0)

    def count_bytes(self, start: Position, end: Position | None = None) -> int:
        """Number of durable bytes from a position up to another, or to the end."""
        with self.lock:
            return sum(
                max(0, (end.offset if end and end.segment == segment else size) - first)
                for segment, size in self.sizes.items()
                if start.segment <= segment and (end is None or segment <= end.segment)
                for first in [start.offset if start.segment == segment else 0]
            )

    def has_more(self, position: Position) -> bool:
        """Whether there is a record after a position."""
        with self.lock:
            return any(Position(segment, size) > position for segment, size in self.sizes.items())
