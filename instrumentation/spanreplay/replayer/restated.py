"""Finds the recorded call of a request that differs only in this replay's folders or memory addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.replayer.addresses import with_recorded_addresses

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.replayer.index import RecordingIndex, Slot
    from spanreplay.replayer.relocation import Relocation
    from spanreplay.runtime.calls.open_call import Crossing


def find_restated(index: RecordingIndex, relocation: Relocation, crossing: Crossing, slot: Slot) -> CallRecord | None:
    """Return the call with an equal key after rewriting the request in the recorded words, which it keeps."""
    if relocation and crossing.restate(relocation.spec):
        found = index.find_exact(slot, crossing.key_hex, crossing.spec.call_id)
        if found is not None:
            return found
    call = index.find_in_slot(slot)
    if call is None or not crossing.restate(lambda spec: with_recorded_addresses(spec, call.request)):
        return None
    return index.find_exact(slot, crossing.key_hex, crossing.spec.call_id)
