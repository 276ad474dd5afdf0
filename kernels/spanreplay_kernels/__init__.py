"""Batch-invariant kernels for self-hosted models; torch and triton only.

with spanreplay_kernels.invariant():  # torch's operations become batch-invariant
    model(**inputs)

The operations are in `ops`, the audit that a model runs nothing else in `switch.audit`, engine plug-ins in `engines`.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import Any, Final

__all__ = ["compile_model", "engaged", "invariant", "is_invariant"]

_HOMES: Final = MappingProxyType(
    {
        "compile_model": "switch.compiled",
        "engaged": "switch.registry",
        "invariant": "switch.mode",
        "is_invariant": "switch.registry",
    }
)
"""Public name → its module, imported at first use, so that a plan or a manifest can be read without torch."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
