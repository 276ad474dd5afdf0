"""An HTTP response as a value and as recorded JSON; pure."""

from __future__ import annotations

import base64
import codecs
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class HttpReply:
    """A response as the agent saw it; chunks are (milliseconds since the request, decoded body bytes)."""

    status: int
    reason: str
    http_version: str
    headers: list[tuple[str, str]]
    url: str
    chunks: list[tuple[int, bytes]] = field(default_factory=list)
    end: str = "complete"
    error: dict[str, Any] | None = None


def split_text(chunks: list[bytes]) -> tuple[list[str] | None, list[int]]:
    """Chunks as text, or None if together they are not UTF-8.

    A character that was cut between two chunks goes whole to the second one; `cuts[i]` says how many bytes of the
    next text belong to chunk i, so that `join_text` gives the same chunks back.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    texts: list[str] = []
    cuts: list[int] = []
    try:
        for i, chunk in enumerate(chunks):
            texts.append(decoder.decode(chunk, final=i == len(chunks) - 1))
            cuts.append(len(decoder.getstate()[0]))
    except UnicodeDecodeError:
        return None, []
    return texts, cuts


def join_text(chunks: list[Any]) -> list[tuple[int, bytes]]:
    """The recorded chunks as (milliseconds, bytes)."""
    found: list[tuple[int, bytes]] = []
    skip = 0
    encoded = [
        base64.b64decode(c[1]["b64"]) if isinstance(c[1], dict) else str(c[1]).encode("utf-8", "surrogatepass")
        for c in chunks
    ]
    for i, chunk in enumerate(chunks):
        cut = int(chunk[2]) if len(chunk) > 2 else 0
        ahead = encoded[i + 1][:cut] if cut and i + 1 < len(encoded) else b""
        found.append((int(chunk[0]), encoded[i][skip:] + ahead))
        skip = len(ahead)
    return found


def decode_reply(response: str) -> HttpReply:
    """A recorded response back as a value. Raises: ValueError, KeyError if it is not one."""
    value = json.loads(response)
    if "status" not in value:
        return HttpReply(0, "", "", [], "", [], "error", value["error"])
    return HttpReply(
        status=value["status"],
        reason=value.get("reason", ""),
        http_version=value.get("http_version", "HTTP/1.1"),
        headers=[(k, v) for k, v in value["headers"]],
        url=value.get("url", ""),
        chunks=join_text(value["chunks"]),
        end=value["end"],
        error=value.get("error"),
    )
