"""What the kernel keeps a replay from: changing files, connections."""

from __future__ import annotations

from typing import Any, NamedTuple


class Guard(NamedTuple):
    """Whether the kernel guards the files of this process; `why` not, else which folders are `free` to be written."""

    why: str = ""
    free: tuple[str, ...] = ()
    is_offline: bool = False
    """Whether it denies connections too."""

    def describe(self) -> dict[str, Any]:
        """As a verdict says it."""
        if self.why:
            return {"files": "python", "network": "python", "why": self.why}
        network = "kernel" if self.is_offline else "python"
        return {"files": "kernel", "network": network, "free": list(self.free)}
