"""Whether a client is covered as a whole: with one module that is not as expected, the others are not patched either.

Half a seam would disturb the agent, and the modules of a client are patched one by one, as they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from spanreplay.runtime.patches import Patches

__all__ = ["covers", "is_covered"]

_failed: Final[set[str]] = set()
Install = Callable[[Any, Patches], None]


def is_covered(client: str) -> bool:
    """Whether none of a client's modules was found to be different from what is expected."""
    return client not in _failed


def covers(client: str) -> Callable[[Install], Install]:
    """Make a seam's function for one module note that the client is not covered if it fails."""

    def decorate(install: Install) -> Install:
        @wraps(install)
        def noting(module: Any, patches: Patches) -> None:
            try:
                install(module, patches)
            except Exception:
                _failed.add(client)
                raise

        return noting

    return decorate
