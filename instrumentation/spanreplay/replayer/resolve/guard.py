"""Which files the kernel keeps a replay from changing."""

from __future__ import annotations

from typing import Any, NamedTuple


class Guard(NamedTuple):
    """Whether the kernel guards the files of this process; `why` not, else which folders are `free` to be written."""

    why: str = ""
    free: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """As a verdict says it."""
        if self.why:
            return {"files": "python", "why": self.why}
        return {"files": "kernel", "free": list(self.free)}
