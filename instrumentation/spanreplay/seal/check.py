"""Checks a recording against the root hash that its manifest states; pure."""

from __future__ import annotations

from spanreplay.call import Outcome, Recording
from spanreplay.seal.tree import hash_leaf, hash_root


def find_tampering(recording: Recording) -> str:
    """Why the calls are not the ones that the manifest was made of; '' if they are, or if there is no manifest.

    A missing call is incompleteness, not tampering: it is told by the counts. O(bytes of the recording).
    """
    manifest = recording.root.manifest
    stated, leaves = manifest.get("root"), manifest.get("leaves")
    if not isinstance(stated, str) or not isinstance(leaves, int):
        return ""
    finished = [c for c in recording.calls if c.outcome != Outcome.OPEN.value]
    if len(finished) < leaves:
        return ""
    if len(finished) > leaves:
        return f"{len(finished)} finished calls are here, the manifest counts {leaves}"
    actual = hash_root(hash_leaf(call) for call in finished)
    return "" if actual == stated else f"the calls hash to {actual[:16]}…, the manifest says {stated[:16]}…"
