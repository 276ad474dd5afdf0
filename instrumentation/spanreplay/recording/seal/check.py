"""Checks a recording against the root hash that its manifest states; pure."""

from __future__ import annotations

from spanreplay.model.call import LOST, Outcome, Recording
from spanreplay.model.function_keys import DerivedKey, derive_key_hex, is_derivable
from spanreplay.recording.seal.tree import LEAF_VERSION, hash_leaf, hash_root


def find_tampering(recording: Recording) -> str:
    """Explain why the calls are not those that the manifest covers; '' if they are, or if there is no manifest.

    A missing call is incompleteness, not tampering: the counts show it. O(bytes of the recording).
    """
    manifest = recording.root.manifest
    stated, leaves = manifest.get("root"), manifest.get("leaves")
    if not isinstance(stated, str) or not isinstance(leaves, int):
        return ""
    version = manifest.get("leaf_version", 1)
    if version not in range(1, LEAF_VERSION + 1):
        return (
            f"the manifest names leaf version {version!r:.40}, this spanreplay checks up to {LEAF_VERSION}: upgrade it"
        )
    finished = [c for c in recording.calls if c.outcome != Outcome.OPEN.value]
    if len(finished) < leaves:
        return ""
    if len(finished) > leaves and manifest.get(LOST):
        return ""  # calls of a process that was killed: the run is incomplete, and says so
    if len(finished) > leaves:
        return f"{len(finished)} finished calls are here, the manifest counts {leaves}"
    actual = hash_root(hash_leaf(call, version) for call in finished)
    if actual != stated:
        return f"the calls hash to {actual[:16]}…, the manifest says {stated[:16]}…"
    return _find_forged_key(recording) if version > 1 else ""


def _find_forged_key(recording: Recording) -> str:
    """Explain why a key is not the one that its call's request implies; leaves do not cover such keys."""
    for call in recording.calls:
        if type(call.key) is DerivedKey or not is_derivable(call.keyspec, call.request):
            continue
        if call.key != derive_key_hex(call.keyspec, call.name, call.request):
            return f"the key of call {call.number} ({call.boundary}) is not the hash of its request"
    return ""
