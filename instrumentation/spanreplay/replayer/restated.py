"""Finds the recorded call of a request that differs only in folders, memory addresses or tokens of another key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.replayer.addresses import with_recorded_addresses

if TYPE_CHECKING:
    from spanreplay.model.call import CallRecord
    from spanreplay.replayer.index import Slot
    from spanreplay.replayer.resolve.shared_state import SharedState
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.runtime.calls.spec import Spec


def find_restated(session: SharedState, crossing: Crossing, slot: Slot) -> CallRecord | None:
    """Return the call with an equal key after rewriting the request in the recorded words, which it keeps."""
    index, relocation = session.index, session.relocation
    if relocation and crossing.restate(relocation.spec):
        found = index.find_exact(slot, crossing.key_hex, crossing.spec.call_id)
        if found is not None:
            return found
    call = index.find_in_slot(slot)
    if call is None:
        return None
    if relocation.is_number_away(call.request, crossing.spec.request):
        return call
    tokens, fingerprint = session.hidden.foreign, crossing.run.redactor.fingerprint

    if tokens.is_anonymous and tokens.text(call.request, crossing.spec.request) == call.request:
        return call

    def in_recorded_words(spec: Spec) -> Spec:
        return tokens.spec(with_recorded_addresses(spec, call.request), call.request, fingerprint)

    if not crossing.restate(in_recorded_words):
        return None
    return index.find_exact(slot, crossing.key_hex, crossing.spec.call_id)
