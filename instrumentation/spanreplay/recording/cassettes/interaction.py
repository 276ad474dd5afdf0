"""One recorded HTTP exchange of a cassette, whatever tool wrote it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cassette", "Interaction"]


@dataclass(frozen=True)
class Interaction:
    """A request and its response; bodies are without the compression of the connection."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    status: int
    reason: str
    http_version: str
    reply_headers: tuple[tuple[str, str], ...]
    reply_body: bytes


@dataclass(frozen=True)
class Cassette:
    """The exchanges of one file, in its order; `tool` is the name of what wrote it."""

    tool: str
    interactions: tuple[Interaction, ...]
