"""Bodies as text: for any chunks, the recording gives back the same bytes in the same pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.wire.http_reply import HttpReply, Truncated, decode_reply, encode_chunks, join_text, split_text
from spanreplay.runtime.wire.http_wire import encode_reply
from support.in_process import MemoryProcessor, make_run


def make_spec() -> Spec:
    """An arbitrary call."""
    return Spec("http", "GET x", "read", "http/1", {}, "{}")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Split the bytes at these places."""
    ends = sorted({min(p, len(data)) for p in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def through_json(chunks: list[bytes]) -> list[bytes]:
    """The chunks that a recording gives back."""
    split = split_text(chunks)
    assert split is not None
    encoded = json.loads(json.dumps(encode_chunks(list(range(len(chunks))), split)))
    return [chunk for _, chunk in join_text(encoded)]


@given(st.text(alphabet=st.sampled_from("aé€😀")), st.lists(st.integers(0, 60)), st.integers(0, 4))
def test_s26_text_comes_back_in_the_same_pieces(text: str, places: list[int], missing: int) -> None:
    """For any cuts, also inside characters and with the last one torn off, the chunks have the same bytes."""
    data = text.encode()
    chunks = cut(data[: max(0, len(data) - missing)], places)
    assert through_json(chunks) == chunks


@given(st.lists(st.binary(max_size=6), max_size=5), st.sampled_from(["complete", "closed", "error"]))
def test_s26_any_reply_comes_back(bodies: list[bytes], end: str) -> None:
    """Status, headers, chunks and end of any reply come back, whether text or not."""
    reply = HttpReply(
        status=200,
        reason="OK",
        headers=[("content-type", "text/plain"), ("x-n", "1"), ("x-n", "2")],
        url="http://127.0.0.1/x",
        chunks=list(enumerate(bodies)),
        end=end,
        hops=[HttpReply(302, "Found", headers=[("location", "/x")], chunks=[(0, b"moved")])],
    )
    text, _ = encode_reply(make_run(MemoryProcessor()), reply, make_spec())
    assert decode_reply(text) == reply


def test_character_in_three_chunks_is_one_character() -> None:
    """A character that came byte by byte is in the text of the chunk that completed it."""
    split = split_text(["x😀y".encode()[:2], "x😀y".encode()[2:3], "x😀y".encode()[3:]])
    assert split is not None
    assert (split.texts, split.cuts, split.tail) == (["x", "", "😀y"], [1, 2, 0], b"")


def test_r1_text_that_was_left_inside_of_a_character_is_still_redacted() -> None:
    """A stream that was closed inside a character is still text, so its secrets are not kept as base64."""
    secret = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
    reply = HttpReply(200, chunks=[(0, f"key {secret} €".encode()[:-1])], end="closed")
    text, texts = encode_reply(make_run(MemoryProcessor()), reply, make_spec())
    assert secret not in text
    assert "rdx-" in texts[0]
    assert decode_reply(text).chunks[0][1].endswith("€".encode()[:-1])


def test_redacted_chunks_keep_their_number() -> None:
    """A secret that spans chunks is replaced, and the agent still gets the same number of chunks."""
    secret = b"Bearer sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7 done"
    reply = HttpReply(200, chunks=[(n, secret[n * 10 : n * 10 + 10]) for n in range(6)])
    text, _ = encode_reply(make_run(MemoryProcessor()), reply, make_spec())
    again = decode_reply(text)
    assert len(again.chunks) == 6
    assert b"Zx9Yw8" not in b"".join(chunk for _, chunk in again.chunks)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"truncated": 99}', Truncated),
        ("{}", ValueError),
        ('{"status": 200}', ValueError),
        ('{"status": 200, "headers": [], "chunks": [[1]], "end": "complete"}', ValueError),
        ("[1]", ValueError),
        ("nothing", ValueError),
    ],
    ids=["truncated", "empty", "half", "chunk", "list", "text"],
)
def test_damaged_responses_are_refused(text: str, error: Any) -> None:
    """Malformed responses are refused, and truncated ones are reported as such."""
    with pytest.raises(error):
        decode_reply(text)
