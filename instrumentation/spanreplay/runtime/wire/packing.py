"""Compressed bodies: unpacked when they are recorded, since redaction can't find secrets in compressed bytes.

Bodies that a replay gives to the agent again are compressed again. Most senders use zlib; their bytes are reproduced
exactly from the level and the header that they used. For other compressors the content is reproduced, and the length
too unless they compress better.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model import config

__all__ = ["PACKED", "find_packing", "pack", "unpack"]

PACKED: Final = "packed"
"""Member of a described body that says how it was compressed."""
_ENCODINGS: Final = {"gzip": b"\x1f\x8b", "x-gzip": b"\x1f\x8b", "deflate": b"\x78"}
"""Encodings that are unpacked → the bytes that they begin with."""
_LEVELS: Final = (6, 9, 1)
_MEMORY: Final = (8, 9)
_TRIED_BYTES: Final = 64 * 1024
"""A level whose beginning differs is not tried on the rest."""
_EXACT_BYTES_MAX: Final = 1024 * 1024
"""For longer contents the level is not searched: the agent waits meanwhile."""
_PLAIN_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_HAS_COMMENT: Final = 0x10


def unpack(content: bytes, encoding: str) -> bytes | None:
    """The uncompressed content, also of a beginning; None for an encoding or a size that is not unpacked here.

    Content that does not begin like its encoding is returned unchanged: it will be compressed after us.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return content
    if encoding not in _ENCODINGS:
        return None
    if not content.startswith(_ENCODINGS[encoding]):
        return content
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        found = unpacking.decompress(content, config.BODY_BYTES_MAX + 1)
    except zlib.error:
        return None
    return None if len(found) > config.BODY_BYTES_MAX or unpacking.unused_data else found


def find_packing(content: bytes, plain: bytes) -> dict[str, Any] | None:
    """The recipe with which `pack` makes `content` from `plain`; None if it is not a complete gzip or zlib stream."""
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        is_whole = unpacking.decompress(content, len(plain) + 1) == plain and unpacking.eof
    except zlib.error:
        return None
    if not is_whole:
        return None
    is_gzip = content.startswith(_ENCODINGS["gzip"])
    head = content[:10] if is_gzip else content[:2]
    found: dict[str, Any] = {"head": base64.b64encode(head).decode("ascii"), "size": len(content)}
    if (not is_gzip or head[3] == 0) and len(plain) <= _EXACT_BYTES_MAX:
        for memory in _MEMORY:
            for level in _LEVELS:
                recipe = {**found, "level": level, "memory": memory}
                if _begins_so(content, plain, recipe) and pack(plain, recipe) == content:
                    return recipe
    return found


def pack(plain: bytes, recipe: Mapping[str, Any]) -> bytes:
    """`plain` compressed as `recipe` says; without a level, padded to the recorded length if possible.

    Raises: ValueError for a recipe that `find_packing` did not make.
    """
    head = base64.b64decode(recipe["head"], validate=True)
    is_gzip = head.startswith(_ENCODINGS["gzip"])
    if len(head) != (10 if is_gzip else 2) or not head.startswith((_ENCODINGS["gzip"], _ENCODINGS["deflate"])):
        raise ValueError("the header of a compressed body is damaged")
    if is_gzip:
        tail = zlib.crc32(plain).to_bytes(4, "little") + (len(plain) & 0xFFFFFFFF).to_bytes(4, "little")
    else:
        tail = zlib.adler32(plain).to_bytes(4, "big")
    if "level" in recipe:
        return head + _deflate(plain, recipe) + tail
    middle = _deflate(plain, {"level": 9, "memory": 9})
    if not is_gzip:
        return b"\x78\xda" + middle + tail
    missing = int(recipe["size"]) - len(_PLAIN_HEAD) - len(middle) - len(tail)
    if not 0 < missing <= config.BODY_BYTES_MAX:
        return _PLAIN_HEAD + middle + tail
    comment = b" " * (missing - 1) + b"\0"
    return _PLAIN_HEAD[:3] + bytes([_HAS_COMMENT]) + _PLAIN_HEAD[4:] + comment + middle + tail


def _deflate(plain: bytes, recipe: Mapping[str, Any]) -> bytes:
    packing = _compressor(recipe)
    packed: bytes = packing.compress(plain) + packing.flush()
    return packed


def _begins_so(content: bytes, plain: bytes, recipe: Mapping[str, Any]) -> bool:
    head = len(base64.b64decode(recipe["head"]))
    beginning: bytes = _compressor(recipe).compress(plain[:_TRIED_BYTES])
    return content[head : head + len(beginning)] == beginning


def _compressor(recipe: Mapping[str, Any]) -> Any:
    return zlib.compressobj(int(recipe["level"]), zlib.DEFLATED, -zlib.MAX_WBITS, int(recipe["memory"]))
