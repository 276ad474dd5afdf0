"""How far a recorded stream was read; pure."""

from __future__ import annotations

import json

from spanreplay.model.call import CallRecord, Outcome


def count_parts(call: CallRecord) -> int:
    """Return how many parts of a stream the agent read when recorded: chunks, items, or messages of both sides."""
    try:
        response = json.loads(call.response)
        # A broken stream ended on the network's side, so its length says nothing about the reader. A conversation is
        # closed by its reader
        kinds = ("chunks", "items", "messages") if call.outcome == Outcome.OK.value else ("messages",)
        parts = next((response[each] for each in kinds if each in response), None)
    except (ValueError, AttributeError):
        return 0
    count = len(parts) if isinstance(parts, list) else 0
    # For a compressed body, `clocks` counts the network's pieces, of which there are more than the agent saw
    return min(count, len(call.clocks) - 1) if call.clocks and "chunks" in response else count
