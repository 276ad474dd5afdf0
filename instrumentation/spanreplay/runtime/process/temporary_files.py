"""The standard library's removal of temporary files."""

from __future__ import annotations

import os
from typing import Any

from spanreplay.runtime.patches import Patches


def replace_unlink(patches: Patches, closer: Any) -> None:
    """Have temporary files removed by the current `os.unlink`, not by the one from when `tempfile` was imported."""
    for name in ("close", "cleanup"):
        real = vars(closer).get(name)
        if real is not None and "unlink" in real.__code__.co_varnames[: real.__code__.co_argcount]:

            def close(self: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
                return real(self, *args, **{"unlink": os.unlink, **kwargs})

            patches.replace(closer, name, close)
