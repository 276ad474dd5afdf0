"""How far a recorded stream was read; pure."""

from __future__ import annotations

import json

from spanreplay.model.call import CallRecord, Outcome


def count_parts(call: CallRecord) -> int:
    """How many parts of a stream the agent read when it was recorded: chunks, items, or messages of both sides."""
    try:
        response = json.loads(call.response)
        # What broke off broke off elsewhere; a conversation is given up by who reads it, and read that far
        kinds = ("chunks", "items", "messages") if call.outcome == Outcome.OK.value else ("messages",)
        parts = next((response[each] for each in kinds if each in response), None)
    except (ValueError, AttributeError):
        return 0
    count = len(parts) if isinstance(parts, list) else 0
    # Of a compressed body there are more pieces on the network, which are counted in `clocks`, than the agent saw
    return min(count, len(call.clocks) - 1) if call.clocks and "chunks" in response else count
