"""Records what an AI agent did, and replays it byte for byte.

Most programs need nothing from here: `opentelemetry-instrument python agent.py` records them unchanged.
"""

from __future__ import annotations

from spanreplay._version import VERSION as __version__
from spanreplay.declared import boundary
from spanreplay.errors import ReplayMiss, SpanreplayError

__all__ = ["ReplayMiss", "SpanreplayError", "__version__", "boundary"]
