"""The table of the providers' wires, by name of the dialect that reads them; each is imported on first use."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Final

from spanreplay.testing.mock.wires._wire import Wire

__all__ = ["NAMES", "Wire", "find_wire"]

_ROWS: Final = {
    "openai.chat.completions": ("openai_chat", "Chat"),
    "openai.responses": ("openai_responses", "Responses"),
    "openai.embeddings": ("openai_embeddings", "Embeddings"),
    "anthropic.messages": ("anthropic_messages", "Messages"),
    "google.generate_content": ("google_generate", "Generate"),
}
NAMES: Final = tuple(_ROWS)


@lru_cache(maxsize=64)
def find_wire(name: str) -> Wire | None:
    """The wire for a boundary's name; None if there is none."""
    row = _ROWS.get(name)
    if row is None:
        return None
    made: Wire = getattr(importlib.import_module(f"spanreplay.testing.mock.wires.{row[0]}"), row[1])()
    return made
