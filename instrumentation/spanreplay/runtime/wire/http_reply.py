"""An HTTP response as a value and as recorded JSON; pure."""

from __future__ import annotations

import codecs
import contextlib
import json
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from spanreplay.runtime.wire.aws_events import (
    AwsEvent,
    from_stored,
    is_event_stream,
    join_event,
    read_events,
    split_events,
    to_stored,
    to_text,
)
from spanreplay.runtime.wire.binary import stored_bytes, unstored_bytes

SWITCHED: Final = 101
"""The status of a response after which the connection carries another protocol."""
TAKEN_OVER: Final = "a connection was used for more than an HTTP response, which was not recorded"


@dataclass
class HttpReply:
    """A response as the agent saw it; chunks are (milliseconds since the request, decoded body bytes).

    `status` is 0 if no response came. `hops` are the responses before it: redirects, authentication. `extra` holds
    further attributes of a library's response object, JSON values by name.
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


def is_end_of_body(end: str, error: BaseException | None) -> bool:
    """Whether a body ended by itself, neither left nor cancelled: such an end is ordered like a completion."""
    return end != "closed" and (error is None or isinstance(error, Exception))


@dataclass(frozen=True)
class SplitText:
    """Chunks of bytes as text: a character that was split between chunks goes whole to the last of them.

    `cuts[i]` is how many bytes of the following texts belong to chunk i; `tail` is an unfinished character.
    """

    texts: list[str]
    cuts: list[int]
    tail: bytes = b""


def split_text(chunks: list[bytes]) -> SplitText | None:
    """Chunks as text, or None if together they are not UTF-8; `join_text` restores the same chunks."""
    if len(chunks) == 1:
        with contextlib.suppress(UnicodeDecodeError):
            return SplitText([chunks[0].decode("utf-8")], [0])
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
    """Text chunks as they are recorded: [ms, text], plus the cut if there is one."""
    encoded: list[list[Any]] = [
        [ms, text, cut] if cut else [ms, text] for ms, text, cut in zip(times_ms, split.texts, split.cuts, strict=True)
    ]
    if split.tail:
        encoded[-1] = [*encoded[-1], split.tail.hex()]
    return encoded


@dataclass(frozen=True)
class SplitEvents:
    """Chunks of bytes as AWS event messages: one that was split between chunks goes whole to the last of them.

    `cuts` and `tail` are as in SplitText.
    """

    events: list[list[AwsEvent]]
    cuts: list[int]
    tail: bytes = b""


def split_aws(chunks: list[bytes]) -> SplitEvents | None:
    """Chunks as event messages, or None if together they are not; `join_text` restores the same chunks."""
    found = split_events(b"".join(chunks))
    if found is None:
        return None
    events, tail = found
    ends = list(accumulate(len(join_event(event)) for event in events))
    grouped: list[list[AwsEvent]] = []
    cuts: list[int] = []
    taken = position = 0
    for chunk in chunks:
        position += len(chunk)
        first = taken
        while taken < len(events) and ends[taken] <= position:
            taken += 1
        grouped.append(events[first:taken])
        cuts.append(position - (ends[taken - 1] if taken else 0))
    return SplitEvents(grouped, cuts, tail)


def encode_events(times_ms: list[int], split: SplitEvents) -> list[list[Any]]:
    """Chunks of event messages as they are recorded: [ms, {"events": […]}], and cuts."""
    encoded: list[list[Any]] = []
    for ms, events, cut in zip(times_ms, split.events, split.cuts, strict=True):
        held = {"events": list(map(to_stored, events))}
        encoded.append([ms, held, cut] if cut else [ms, held])
    if split.tail:
        encoded[-1] = [*encoded[-1], split.tail.hex()]
    return encoded


def encode_raw(reply: HttpReply) -> dict[str, Any]:
    """An unredacted response as JSON in the recorded form; it is only ever sealed, never written."""
    if not reply.status:
        value: dict[str, Any] = {}
    else:
        times, chunks = [ms for ms, _ in reply.chunks], [chunk for _, chunk in reply.chunks]
        events = split_aws(chunks) if is_event_stream(reply.headers) else None
        split = split_text(chunks) if events is None else None
        if events is not None:
            stored = encode_events(times, events)
        elif split is not None:
            stored = encode_chunks(times, split)
        else:
            stored = [[ms, stored_bytes(chunk)] for ms, chunk in reply.chunks]
        value = {
            "status": reply.status,
            "reason": reply.reason,
            "http_version": reply.http_version,
            "headers": [list(pair) for pair in reply.headers],
            "url": reply.url,
            "chunks": stored,
            "end": reply.end,
        }
    if reply.extra:
        value["extra"] = reply.extra
    if reply.error is not None:
        value["error"] = reply.error
    if reply.hops:
        value["hops"] = [encode_raw(hop) for hop in reply.hops]
    return value


def stored_texts(chunks: list[Any]) -> list[str]:
    """The texts of recorded chunks, for a dialect or a reader; binary chunks are left out."""
    found: list[str] = []
    for chunk in chunks:
        if isinstance(chunk, list) and len(chunk) > 1:
            if isinstance(chunk[1], str):
                found.append(chunk[1])
            elif isinstance(chunk[1], dict) and "events" in chunk[1]:
                found.extend(to_text(from_stored(event)) for event in chunk[1]["events"])
    return found


def body_texts(reply: HttpReply) -> list[str]:
    """The texts of a reply's body, for a dialect."""
    chunks = [chunk for _, chunk in reply.chunks]
    if is_event_stream(reply.headers):
        return read_events(b"".join(chunks))
    split = split_text(chunks)
    return split.texts if split is not None else []


def _piece(stored: Any) -> bytes:
    if not isinstance(stored, dict):
        return str(stored).encode("utf-8", "surrogatepass")
    if "events" in stored:
        return b"".join(join_event(from_stored(event)) for event in stored["events"])
    return unstored_bytes(stored)


def join_text(chunks: list[Any]) -> list[tuple[int, bytes]]:
    """The recorded chunks as (milliseconds, bytes)."""
    pieces = [_piece(c[1]) for c in chunks]
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
    """The response was not recorded: it was too large, or contained a secret that could not be replaced."""


def decode_reply(response: str) -> HttpReply:
    """Decode a recorded response. Raises: Truncated; ValueError if it is not one."""
    value = json.loads(response)
    if isinstance(value, dict) and "truncated" in value:
        raise Truncated(str(value.get("why") or f"{value['truncated']} characters"))
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
