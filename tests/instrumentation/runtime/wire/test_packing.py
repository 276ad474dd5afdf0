"""Compressed bodies are decompressed for recording, and compressed again to the same bytes."""

from __future__ import annotations

import base64
import gzip
import random
import zlib
from typing import Any

import pytest

from spanreplay.runtime.wire.packing import find_packing, pack, unpack

TEXT = (b'{"role": "user", "content": "sell 10 of ACME at ' + b"0123456789" * 40 + b'"}') * 50


def noise(size: int) -> bytes:
    """Incompressible bytes."""
    return random.Random(7).randbytes(size)


def raw(level: int, memory: int, wbits: int, plain: bytes) -> bytes:
    """A body as compressed by a sender that uses zlib."""
    packing = zlib.compressobj(level, zlib.DEFLATED, wbits, memory)
    return packing.compress(plain) + packing.flush()


@pytest.mark.parametrize("plain", [b"", b"x", TEXT, noise(100_000)], ids=["empty", "a letter", "text", "noise"])
@pytest.mark.parametrize("wbits", [15, 31], ids=["zlib", "gzip"])
@pytest.mark.parametrize(("level", "memory"), [(6, 8), (9, 8), (1, 8), (-1, 8), (6, 9)])
def test_r1_what_zlib_compressed_comes_back_exactly(plain: bytes, wbits: int, level: int, memory: int) -> None:
    """The compression level is found by trying."""
    content = raw(level, memory, wbits, plain)
    assert unpack(content, "gzip" if wbits == 31 else "deflate") == plain
    recipe = find_packing(content, plain)
    assert recipe is not None
    assert pack(plain, recipe) == content


def test_r1_the_time_in_a_header_comes_back() -> None:
    """`gzip.compress` writes the time into the header, `GzipFile` another operating system."""
    content = gzip.compress(TEXT, mtime=1_790_000_000)
    recipe = find_packing(content, TEXT)
    assert recipe is not None
    assert pack(TEXT, recipe) == content


@pytest.mark.parametrize(
    ("content", "is_as_long"),
    [
        (b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"body.json\0" + gzip.compress(TEXT, mtime=0)[10:], True),
        (raw(2, 8, 31, TEXT), True),
        (raw(2, 8, 15, TEXT), False),
        (gzip.compress(TEXT * 60, mtime=0), True),
    ],
    ids=["with a name", "another compressor", "another compressor, zlib", "too long to look"],
)
def test_r1_of_other_compressors_content_and_length_come_back(content: bytes, is_as_long: bool) -> None:
    """The length matters because a client that was told a body's length reads no more than that."""
    plain = unpack(content, "gzip" if content.startswith(b"\x1f") else "deflate")
    assert plain is not None
    recipe = find_packing(content, plain)
    assert recipe is not None
    again = pack(plain, recipe)
    assert unpack(again, "gzip" if content.startswith(b"\x1f") else "deflate") == plain
    assert not is_as_long or len(again) == len(content)


@pytest.mark.parametrize(
    "content", [gzip.compress(TEXT)[:-3], b"\x1f\x8b nothing", b""], ids=["cut", "damaged", "empty"]
)
def test_r1_what_is_no_whole_stream_has_no_recipe(content: bytes) -> None:
    """No recipe is guessed for a stream that is cut, damaged or empty."""
    assert find_packing(content, TEXT) is None


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"head": "AAAA", "size": 4},
        {"head": base64.b64encode(b"\x1f\x8b" + bytes(8)).decode(), "size": "much"},
        {"head": base64.b64encode(b"\x1f\x8b" + bytes(8)).decode(), "size": 9, "level": 77, "memory": 8},
        {"head": 7},
    ],
)
def test_r8_a_forged_recipe_is_refused(recipe: dict[str, Any]) -> None:
    """The error is one of those that `cut_body` catches."""
    with pytest.raises((ValueError, TypeError, LookupError)):
        pack(b"x", recipe)


def test_r8_a_forged_size_makes_no_large_body() -> None:
    """The padding is bounded."""
    head = base64.b64encode(b"\x1f\x8b" + bytes(8)).decode()
    assert len(pack(b"x", {"head": head, "size": 1 << 60})) < 100
