"""Verifies a whole run: that nothing in it was changed, removed, added or moved, and who signed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spanreplay.model.call import LOST, Outcome, Recording
from spanreplay.recording.seal.anchor import Anchors, hash_run
from spanreplay.recording.seal.check import find_tampering
from spanreplay.recording.seal.signing import MEMBER, find_forgery

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

VERIFIED: Final = "verified"
UNSIGNED: Final = "unsigned"
TAMPERED: Final = "tampered"


@dataclass(frozen=True)
class Verified:
    """The result for a run: `status` is verified, unsigned or tampered; `reason` says why it is not verified."""

    run_id: str
    status: str
    reason: str = ""
    key: str = ""
    """Name of the key that the run is signed with."""
    calls: int = 0
    open_calls: int = 0
    """Calls that had not ended: their content is not signed, only their number."""
    anchored: str = ""
    """The time of the anchor that holds this very run."""


def verify(recording: Recording, keys: Mapping[str, Ed25519PublicKey], anchors: Anchors | None = None) -> Verified:
    """Check a run against its own root and, with keys, its signature, with anchors, these. O(bytes of the recording).

    Without keys an anchor is enough: it says what the run was, though not who recorded it.
    """
    open_calls = len(recording.calls) - _count_finished(recording)
    stated = recording.root.manifest.get(MEMBER)
    signature = stated if isinstance(stated, dict) else {}
    key = signature.get("key")

    at = ""

    def found(status: str, reason: str = "") -> Verified:
        name = key if isinstance(key, str) else ""
        return Verified(recording.run_id, status, reason, name[:64], len(recording.calls), open_calls)

    if not recording.root.manifest:
        return found(UNSIGNED, "its end was never recorded, and a run is signed at its end")
    reason = _find_changes(recording)
    if reason:
        return found(TAMPERED, reason)
    losses = _find_losses(recording)
    if losses:
        return found(UNSIGNED, losses)
    if anchors is not None:
        at, reason = _find_anchor(recording, anchors)
        if reason:
            return found(TAMPERED if at else UNSIGNED, reason)
        if not keys:
            return Verified(recording.run_id, VERIFIED, "", "", len(recording.calls), open_calls, at)
    if "value" not in signature:
        error = signature.get("error")
        return found(UNSIGNED, f"it could not be signed: {error}" if error else "it was recorded without a signing key")
    if not keys:
        return found(UNSIGNED, "its calls are those of its root; whose root that is, a public key tells: --key FILE")
    reason = find_forgery(recording.root, keys)
    return found(TAMPERED, reason) if reason else replace(found(VERIFIED), anchored=at)


def _find_anchor(recording: Recording, anchors: Anchors) -> tuple[str, str]:
    """The time at which this run was anchored, and why it is not the run of that time; '' if it is."""
    anchored = anchors.runs.get(recording.run_id)
    if anchored is None:
        return "", "it is not in the anchors"
    is_same = anchored.sha256 == hash_run(recording.root)
    return anchored.at, "" if is_same else f"it is not the run that was anchored on {anchored.at}"


def _find_changes(recording: Recording) -> str:
    """Explain why the calls are not those that the root record states; here a missing call is a change."""
    manifest = recording.root.manifest
    stated, leaves = manifest.get("calls"), manifest.get("leaves")
    if not isinstance(stated, int) or not isinstance(leaves, int) or not isinstance(manifest.get("root"), str):
        return "its manifest states no root"
    if not _has_losses(manifest):
        here, finished = len(recording.calls), _count_finished(recording)
        if here != stated:
            return f"{here} calls are here, the manifest counts {stated}"
        if finished != leaves:
            return f"{finished} finished calls are here, the manifest counts {leaves}"
    return find_tampering(recording)


def _find_losses(recording: Recording) -> str:
    """Explain why a run that lost calls while recording can't be verified: another missing call would not show."""
    manifest = recording.root.manifest
    if not _has_losses(manifest) or _count_finished(recording) == manifest["leaves"]:
        return ""
    return "it states that calls were lost when it was recorded, so that one more that is missing does not show"


def _has_losses(manifest: Mapping[str, object]) -> bool:
    return bool(manifest.get(LOST) or manifest.get("dropped"))


def _count_finished(recording: Recording) -> int:
    return sum(call.outcome != Outcome.OPEN.value for call in recording.calls)
