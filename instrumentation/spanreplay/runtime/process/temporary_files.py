"""Temporary files as the standard library removes them."""

from __future__ import annotations

import os
from typing import Any

from spanreplay.runtime.patches import Patches


def replace_unlink(patches: Patches, closer: Any) -> None:
    """Have temporary files removed by `os.unlink` as it is now, not as it was when `tempfile` was imported."""
    for name in ("close", "cleanup"):
        real = vars(closer).get(name)
        if real is not None and "unlink" in real.__code__.co_varnames[: real.__code__.co_argcount]:

            def close(self: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
                return real(self, *args, **{"unlink": os.unlink, **kwargs})

            patches.replace(closer, name, close)
