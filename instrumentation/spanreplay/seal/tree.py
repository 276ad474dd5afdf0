"""Leaf hashes of calls and the Merkle root of a run (RFC 6962, §2.1); pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from spanreplay._json import dump_ascii
from spanreplay.call import CallRecord

LEAF_VERSION = 1


def hash_leaf(call: CallRecord) -> str:
    """SHA-256 over the canonical record of one finished call, as 64 hexadecimal characters.

    The payloads enter by their own SHA-256, so that a proof survives their erasure.
    """
    record = dump_ascii(
        [
            LEAF_VERSION,
            call.run_id,
            call.seq,
            call.end_seq,
            call.kind,
            call.name,
            call.lane,
            call.index,
            call.key,
            hashlib.sha256(call.request.encode("utf-8", "surrogatepass")).hexdigest(),
            hashlib.sha256(call.response.encode("utf-8", "surrogatepass")).hexdigest(),
            call.outcome,
            # What a replay or a report reads besides: where one of these could be changed, it would be
            call.keyspec,
            call.effect,
            call.parent,
            call.call_id,
            call.code,
            sorted(call.meta.items()),
            sorted(call.redactions.items()),
            call.joint,
            call.clocks,
            *([hashlib.sha256(call.reads.encode("utf-8", "surrogatepass")).hexdigest()] if call.reads else ()),
            *([["digests", call.digests]] if call.digests else ()),
        ],
    )
    return hashlib.sha256(b"\x00" + record.encode("ascii")).hexdigest()


def hash_root(leaves: Iterable[str]) -> str:
    """The Merkle root over leaves in start order; the empty tree hashes the empty string."""
    stack: list[tuple[int, bytes]] = []
    for leaf in leaves:
        node, size = bytes.fromhex(leaf), 1
        while stack and stack[-1][0] == size:
            node = hashlib.sha256(b"\x01" + stack.pop()[1] + node).digest()
            size *= 2
        stack.append((size, node))
    if not stack:
        return hashlib.sha256(b"").hexdigest()
    node = stack.pop()[1]
    while stack:
        node = hashlib.sha256(b"\x01" + stack.pop()[1] + node).digest()
    return node.hex()
