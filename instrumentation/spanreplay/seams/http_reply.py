"""An HTTP response as a value and as recorded JSON; pure."""

from __future__ import annotations

import base64
import codecs
import json
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


@dataclass
class HttpReply:
    """A response as the agent saw it; chunks are (milliseconds since the request, decoded body bytes).

    `status` is 0 where no response came. `hops` are the responses before it: redirects, authentication.
    `extra` is what else a library's response object tells, JSON values by name.
    """

    status: int
    reason: str = ""
    http_version: str = "HTTP/1.1"
    headers: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    chunks: list[tuple[int, bytes]] = field(default_factory=list)
    end: str = "complete"
    error: dict[str, Any] | None = None
    hops: list[HttpReply] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitText:
    """Chunks of bytes as text: a character that was cut between chunks goes whole to the last of them.

    `cuts[i]` is how many bytes of the following texts belong to chunk i; `tail` is a character that never ended.
    """

    texts: list[str]
    cuts: list[int]
    tail: bytes = b""


def split_text(chunks: list[bytes]) -> SplitText | None:
    """Chunks as text, or None if together they are not UTF-8; `join_text` gives the same chunks back."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    texts: list[str] = []
    cuts: list[int] = []
    try:
        for chunk in chunks:
            texts.append(decoder.decode(chunk))
            cuts.append(len(decoder.getstate()[0]))
    except UnicodeDecodeError:
        return None
    return SplitText(texts, cuts, decoder.getstate()[0])


def encode_chunks(times_ms: list[int], split: SplitText) -> list[list[Any]]:
    """Text chunks as they are recorded: [ms, text], and what was cut where it was."""
    encoded: list[list[Any]] = [
        [ms, text, cut] if cut else [ms, text] for ms, text, cut in zip(times_ms, split.texts, split.cuts, strict=True)
    ]
    if split.tail:
        encoded[-1] = [*encoded[-1], split.tail.hex()]
    return encoded


def join_text(chunks: list[Any]) -> list[tuple[int, bytes]]:
    """The recorded chunks as (milliseconds, bytes)."""
    if any(isinstance(c[1], dict) for c in chunks):
        return [(int(c[0]), base64.b64decode(c[1]["b64"])) for c in chunks]
    pieces = [str(c[1]).encode("utf-8", "surrogatepass") for c in chunks]
    tail = bytes.fromhex(chunks[-1][3]) if chunks and len(chunks[-1]) > 3 else b""
    whole = b"".join(pieces) + tail
    found: list[tuple[int, bytes]] = []
    start = 0
    for chunk, end in zip(chunks, accumulate(map(len, pieces)), strict=True):
        cut = int(chunk[2]) if len(chunk) > 2 else 0
        stop = max(start, min(end + cut, len(whole)))
        found.append((int(chunk[0]), whole[start:stop]))
        start = stop
    return found


class Truncated(ValueError):
    """The response was too large to be recorded."""


def decode_reply(response: str) -> HttpReply:
    """A recorded response back as a value. Raises: Truncated; ValueError if it is not one."""
    value = json.loads(response)
    if isinstance(value, dict) and "truncated" in value:
        raise Truncated(f"{value['truncated']} characters")
    try:
        return _decode(value)
    except (KeyError, TypeError, IndexError, AttributeError) as exc:
        raise ValueError("not a recorded response") from exc


def _decode(value: dict[str, Any]) -> HttpReply:
    hops = [_decode(hop) for hop in value.get("hops", ())]
    if "status" not in value:
        return HttpReply(0, end="error", error=value["error"], hops=hops)
    return HttpReply(
        status=value["status"],
        reason=value.get("reason", ""),
        http_version=value.get("http_version", "HTTP/1.1"),
        headers=[(k, v) for k, v in value["headers"]],
        url=value.get("url", ""),
        chunks=join_text(value["chunks"]),
        end=value["end"],
        error=value.get("error"),
        hops=hops,
        extra=value.get("extra", {}),
    )
