"""Records what an AI agent did, and replays it byte for byte.

Most programs need nothing from here: `opentelemetry-instrument python agent.py` records them unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanreplay.model.errors import ReplayMiss, SpanreplayError
from spanreplay.model.version import VERSION
from spanreplay.runtime.calls.declared import boundary

if TYPE_CHECKING:
    from spanreplay.activate.blocks import Plan, record, replay
    from spanreplay.seams import human
    from spanreplay.testing.perturbations import perturbations
    from spanreplay.units import run

__all__ = [
    "VERSION",
    "Plan",
    "ReplayMiss",
    "SpanreplayError",
    "boundary",
    "human",
    "perturbations",
    "record",
    "replay",
    "run",
]
__version__ = VERSION

_LAZY = {
    "Plan": "spanreplay.activate.blocks",
    "human": "spanreplay.seams.human",
    "perturbations": "spanreplay.testing.perturbations",
    "record": "spanreplay.activate.blocks",
    "replay": "spanreplay.activate.blocks",
    "run": "spanreplay.units",
}
"""Public name → its module, imported at first use, so that a module that only declares boundaries stays light."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = import_module(_LAZY[name])
    return found if name == "human" else getattr(found, name)
