"""Records what an AI agent did, and replays it byte for byte.

Most programs need nothing from here: `opentelemetry-instrument python agent.py` records them unchanged.
"""

from __future__ import annotations

from spanreplay._version import VERSION
from spanreplay.declared import boundary
from spanreplay.errors import ReplayMiss, SpanreplayError

__all__ = ["VERSION", "ReplayMiss", "SpanreplayError", "boundary"]
__version__ = VERSION
