"""The kernel's protection of a replay: it denies changes to files, and connections."""

from __future__ import annotations

from typing import Any, NamedTuple


class Guard(NamedTuple):
    """Whether the kernel guards this process's files; `why` says why not, else `free` lists the writable folders."""

    why: str = ""
    free: tuple[str, ...] = ()
    is_offline: bool = False
    """Whether the kernel also denies connections."""

    def describe(self) -> dict[str, Any]:
        """Return the form that a verdict contains."""
        if self.why:
            return {"files": "python", "network": "python", "why": self.why}
        network = "kernel" if self.is_offline else "python"
        return {"files": "kernel", "network": network, "free": list(self.free)}
