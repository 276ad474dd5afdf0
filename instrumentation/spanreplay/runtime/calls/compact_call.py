"""Writes a call in flight as a compact record of the spool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spanreplay.recording.spool.compact import CALL, IS_PARENT_REMOTE, IS_SHOWN

if TYPE_CHECKING:
    from spanreplay.runtime.calls.in_flight import InFlight


def encode_call(crossing: InFlight, constant: bytes, outcome: str, end_seq: int, end_ns: int, response: str) -> bytes:
    """A call in the given state as a compact record; one that has ended is added to its run's Merkle leaves.

    b'' if it is too late for that because the run has ended. `constant` is the call's `describe_constant` line.
    Raises: UnicodeEncodeError for a lone surrogate.
    """
    request = crossing.request_bytes
    if request is None:
        request = crossing.request_bytes = crossing.spec.request.encode()
    answer = response.encode() if response else b""
    reads = crossing.reads.encode() if crossing.reads else b""
    digests = b"" if crossing.is_key_implied else crossing.describe_digests().encode()
    parent = crossing.parent
    # Not f-strings: those take twice as long for numbers, and have to be encoded
    numbers = b"%d %d %d %d %d %b\n" % (
        crossing.seq,
        end_seq,
        crossing.index,
        crossing.joint,
        -1 if parent is None else parent.seq,
        outcome.encode("ascii"),
    )
    above = crossing.parent_context  # by index, because its properties are Python calls
    placed = b"%x %x %x %d %d %d %d %d %d\n" % (
        above[0],
        crossing.span_id,
        above[1],
        crossing.start_ns,
        end_ns,
        (IS_SHOWN if crossing.is_shown else 0) | (IS_PARENT_REMOTE if above[2] else 0),
        len(request),
        len(answer),
        len(reads),
    )
    payload = b"".join((CALL, numbers, constant, placed, request, answer, reads, digests))
    if outcome != "open":
        payloads = (request, answer, reads, digests) if reads or digests else (request, answer)
        if not crossing.run.leaves.defer(crossing.seq, (numbers, constant), payloads, len(payload)):
            return b""
    return payload
