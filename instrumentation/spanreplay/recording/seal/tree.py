"""Leaf hashes of calls and the Merkle root of a run (RFC 6962, §2.1); pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from spanreplay.model.call import CallRecord
from spanreplay.model.function_keys import is_derivable
from spanreplay.model.json_text import dump_ascii

LEAF_VERSION: Final = 2
"""The leaf version that is written; the manifest names it, and every older version can still be checked."""


def describe_constant(
    run_id: str,
    kind: str,
    name: str,
    effect: str,
    keyspec: str,
    lane: str,
    code: str,
    call_id: str,
    key: str,
    meta: Mapping[str, Any],
    redactions: Mapping[str, int],
    clocks: Sequence[int],
) -> str:
    """The fields of a record that many calls share, as one line of ASCII JSON; the spool writes the same text.

    The key is '' if the request implies it: it is checked against the request instead.
    """
    counts = sorted(redactions.items())
    return dump_ascii(
        [run_id, kind, name, effect, keyspec, lane, code, call_id, key, sorted(meta.items()), counts, clocks]
    )


def _describe(call: CallRecord) -> bytes:
    """All of a record except its payloads, ids and times, as two lines of ASCII text."""
    constant = describe_constant(
        call.run_id,
        call.kind,
        call.name,
        call.effect,
        call.keyspec,
        call.lane,
        call.code,
        call.call_id,
        "" if is_derivable(call.keyspec, call.request) else call.key,
        call.meta,
        call.redactions,
        call.clocks,
    )
    numbers = f"{call.seq} {call.end_seq} {call.index} {call.joint} {call.parent} {call.outcome}"
    return f"{numbers}\n{constant}\n".encode("ascii")


def seal_leaf(described: bytes, *payloads: bytes) -> str:
    """SHA-256 over a described call and its payloads, as 64 hexadecimal characters.

    Each payload enters as its own SHA-256, so that a proof survives the payload's erasure.
    """
    sha256 = hashlib.sha256
    return sha256(b"".join([b"\x002 ", described, *[sha256(payload).digest() for payload in payloads]])).hexdigest()


def hash_leaf(call: CallRecord, version: int = LEAF_VERSION) -> str:
    """The leaf of one finished call, by leaf version 1 or 2. Raises: ValueError for another version."""
    if version == 1:
        return _hash_leaf_1(call)
    if version != LEAF_VERSION:
        raise ValueError(f"leaf version {version!r}")
    payloads = [call.request, call.response]
    if call.reads or call.digests:
        payloads += [call.reads, call.digests]
    return seal_leaf(_describe(call), *(text.encode("utf-8", "surrogatepass") for text in payloads))


def _hash_leaf_1(call: CallRecord) -> str:
    record = dump_ascii(
        [
            1,
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
            # Other fields that a replay or a report reads: a field left out here could be forged
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


class Tree:
    """The Merkle tree over leaves in start order; keeps at most one hash per binary digit of its size."""

    __slots__ = ("_stack", "size")

    def __init__(self, above: Tree | None = None) -> None:
        """`above` is a tree that this one continues; it stays unchanged."""
        self._stack: list[tuple[int, bytes]] = [] if above is None else list(above._stack)
        self.size: int = 0 if above is None else above.size

    def add(self, leaf: str) -> None:
        """Append a leaf."""
        node, size, stack = bytes.fromhex(leaf), 1, self._stack
        while stack and stack[-1][0] == size:
            node = hashlib.sha256(b"\x01" + stack.pop()[1] + node).digest()
            size *= 2
        stack.append((size, node))
        self.size += 1

    def root(self) -> str:
        """The root; the empty tree hashes the empty string."""
        if not self._stack:
            return hashlib.sha256(b"").hexdigest()
        *rest, (_, node) = self._stack
        for _, left in reversed(rest):
            node = hashlib.sha256(b"\x01" + left + node).digest()
        return node.hex()


def hash_root(leaves: Iterable[str]) -> str:
    """The Merkle root over leaves in start order."""
    tree = Tree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()
