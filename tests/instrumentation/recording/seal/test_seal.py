"""The Merkle root of a run, and the result of checking it."""

from __future__ import annotations

import dataclasses
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.recording.otlp.otlp import build_recording
from spanreplay.recording.seal.check import find_tampering
from spanreplay.recording.seal.leaves import KEPT_MAX, WAITING_BYTES_MAX, WAITING_MAX, Leaves
from spanreplay.recording.seal.tree import hash_leaf, hash_root, seal_leaf
from support.replay_calls import Asked, record_calls, seal
from support.runs import make_call, make_recording, make_request

# The test vectors of Certificate Transparency (RFC 6962): inputs of eight leaves, roots of the first n of them
CT_INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
CT_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def _leaf(content: bytes) -> str:
    return hashlib.sha256(b"\x00" + content).hexdigest()


def _root(leaves: list[str]) -> bytes:
    """RFC 6962, section 2.1, literally."""
    if len(leaves) == 1:
        return bytes.fromhex(leaves[0])
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + _root(leaves[:k]) + _root(leaves[k:])).digest()


@pytest.mark.parametrize("count", range(1, 9))
def test_n15_root_is_that_of_rfc_6962(count: int) -> None:
    """The first one to eight leaves give the published roots."""
    leaves = [_leaf(bytes.fromhex(text)) for text in CT_INPUTS[:count]]
    assert hash_root(leaves) == CT_ROOTS[count - 1]


@pytest.mark.parametrize("count", [1, WAITING_MAX - 1, WAITING_MAX, 2 * WAITING_MAX + 1])
def test_n15_leaves_that_waited_are_those_of_the_definition(count: int) -> None:
    """However many calls wait to be hashed, each has the leaf of its description and payloads, once."""
    leaves = Leaves()
    leaves.add(0, "f" * 64)
    for seq in range(1, count + 1):
        leaves.defer(seq, (b"%d 1\n" % seq, b"[]\n"), (b"{}", b"%d" % seq), 100)
    sealed = [(seq, seal_leaf(b"%d 1\n[]\n" % seq, b"{}", b"%d" % seq)) for seq in range(1, count + 1)]
    for _ in range(2):
        assert leaves.take() == [(0, "f" * 64), *sealed]


def test_n15_few_bytes_wait_to_be_hashed() -> None:
    """A large payload is hashed at once, so that it is not kept in memory."""
    leaves = Leaves()
    leaves.defer(1, (b"1\n",), (b"x" * WAITING_BYTES_MAX,), WAITING_BYTES_MAX + 2)
    assert not leaves._waiting
    leaves.defer(2, (b"2\n",), (b"x",), 3)
    assert len(leaves._waiting) == 1
    assert len(leaves.take()) == 2


def test_n15_leaves_of_many_threads_are_all_there() -> None:
    """Threads that hash each other's calls lose and duplicate none."""
    leaves = Leaves()
    count, per_thread = 8, 500

    def work(number: int) -> None:
        for seq in range(number * per_thread, (number + 1) * per_thread):
            leaves.defer(seq, (b"%d\n" % seq,), (b"request", b"response"), 20)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
    expected = [(seq, seal_leaf(b"%d\n" % seq, b"request", b"response")) for seq in range(count * per_thread)]
    assert leaves.take() == expected


def test_n15_what_comes_after_the_end_is_in_no_root() -> None:
    """A leaf that comes after close is refused, even if it is already hashed; earlier ones stay in the root."""
    leaves = Leaves()
    assert leaves.add(1, "f" * 64)
    assert leaves.defer(2, (b"2\n",), (b"x",), 3)
    leaves.close()
    root = leaves.root()
    assert not leaves.add(3, "e" * 64)
    assert not leaves.defer(4, (b"4\n",), (b"x",), 3)
    assert leaves.root() == root == (2, hash_root(["f" * 64, seal_leaf(b"2\n", b"x")]))


@given(st.integers(1, 70))
def test_n15_root_is_that_of_the_definition(count: int) -> None:
    """For any number of leaves the root equals the recursive definition's."""
    leaves = [_leaf(bytes([n])) for n in range(count)]
    assert hash_root(leaves) == _root(leaves).hex()


def test_empty_run_has_the_root_of_nothing() -> None:
    """The root without leaves is the hash of the empty string."""
    assert hash_root([]) == hashlib.sha256(b"").hexdigest()


SEALED = sorted({f.name for f in dataclasses.fields(CallRecord)} - {
    "trace_id", "span_id", "parent_span_id", "start_ns", "end_ns", "number",
})  # fmt: skip


@pytest.mark.parametrize("name", SEALED)
def test_n15_leaf_covers_every_field_but_ids_and_times(name: str) -> None:
    """Changing any other field changes the leaf; this also covers fields that are added later."""
    call = make_call("0" * 32, 5)
    value: Any = getattr(call, name)
    other: Any = {str: f"{value}x", int: 99, dict: {"n": 1}, tuple: (1,)}[type(value)]
    assert hash_leaf(dataclasses.replace(call, **{name: other})) != hash_leaf(call)


def test_n15_leaf_is_the_same_after_the_wire() -> None:
    """A record that was sent through OTLP keeps its leaf."""
    recording = make_recording()
    again = build_recording([make_request(recording)])
    assert [hash_leaf(c) for c in again.calls] == [hash_leaf(c) for c in recording.calls]


def test_leaf_hashes_any_text() -> None:
    """A lone surrogate in a payload does not lose the record."""
    assert len(hash_leaf(make_call("0" * 32, 1, request='"\ud800"', response="\udfff"))) == 64


def test_untouched_recording_is_not_tampered() -> None:
    """A sealed recording passes the check unchanged."""
    assert find_tampering(record_calls([Asked(1), Asked(2)])) == ""


def test_without_a_manifest_nothing_can_be_said() -> None:
    """A run that was killed has no root hash: it is incomplete, not tampered with."""
    assert find_tampering(record_calls([Asked(1)], manifest={})) == ""


def test_open_calls_are_no_leaves() -> None:
    """A call that never ended has no leaf, and does not affect the leaves of others."""
    recording = record_calls([Asked(1), Asked(2)])
    calls = (recording.calls[0], dataclasses.replace(recording.calls[1], outcome=Outcome.OPEN.value))
    assert find_tampering(seal(Recording(recording.root, calls))) == ""


def test_n15_each_way_to_forge_is_found() -> None:
    """Flipped, inserted and exchanged calls are named; lost calls show in the counts."""
    recording = record_calls([Asked(n) for n in range(4)])
    one, two, *rest = recording.calls
    flipped = (dataclasses.replace(one, response='{"value": 2}'), two, *rest)
    inserted = (one, two, *rest, dataclasses.replace(two, seq=77))
    exchanged = (dataclasses.replace(two, seq=1), dataclasses.replace(one, seq=2), *rest)
    assert "hash to" in find_tampering(Recording(recording.root, flipped))
    assert "5 finished calls are here, the manifest counts 4" in find_tampering(Recording(recording.root, inserted))
    assert "hash to" in find_tampering(Recording(recording.root, exchanged))
    assert find_tampering(Recording(recording.root, recording.calls[1:])) == ""


@pytest.mark.parametrize("still_open", [-1, 0, 7, 3 * KEPT_MAX, 5 * KEPT_MAX])
def test_p8_leaves_that_nothing_can_come_before_are_not_kept(still_open: int) -> None:
    """Leaves are kept singly only if a call that is still open may precede them; the root covers all."""
    count, ended = 5 * KEPT_MAX, 0
    leaves = Leaves(lambda: min(still_open, ended) if 0 <= still_open < ended else ended)
    for seq in range(count):
        if seq != still_open:
            leaves.defer(seq, (b"%d\n" % seq,), (b"request",), 10)
        ended = seq + 1
    later = count - still_open if 0 <= still_open < count else 0
    assert len(leaves._done) + len(leaves._waiting) <= max(later, KEPT_MAX + WAITING_MAX)
    if 0 <= still_open < count:
        leaves.defer(still_open, (b"%d\n" % still_open,), (b"request",), 10)
    expected = [seal_leaf(b"%d\n" % seq, b"request") for seq in range(count)]
    for _ in range(2):
        assert leaves.root() == (count, hash_root(expected))
