"""Redact a text that arrives in chunks: join, redact, and split again at the same places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spanreplay.redact.document import PASSES_MAX, Counts, TextEdit

__all__ = ["redact_chunks"]


class FindsEdits(Protocol):
    """The parts of a redactor that a text in chunks needs."""

    def find_edits(self, text: str, counts: Counts | None = None) -> Sequence[TextEdit]:
        """Make one pass over a text and return the edits it needs, in the text's offsets."""

    def fail_closed(self, cause: BaseException, text: str) -> str:
        """Count a failure and return the token that replaces the text."""


def redact_chunks(run: FindsEdits, chunks: Sequence[str], counts: Counts | None = None) -> list[str]:
    """Redact the joined chunks; return the result in as many chunks as given.

    A token goes whole into the chunk in which its secret starts; all other characters stay in their chunks.
    Redacting chunk by chunk would miss a secret that is cut in two. Fails closed: one token, then empty chunks.
    """
    current = list(chunks)
    try:
        for _ in range(PASSES_MAX):
            edits = run.find_edits("".join(current), counts)
            if not edits:
                return current
            current = split_again(current, edits)
        raise RecursionError("redaction does not settle")
    except Exception as exc:  # noqa: BLE001 - fails closed
        token = run.fail_closed(exc, "".join(chunks))
        return [token] + [""] * (len(chunks) - 1)


def split_again(chunks: Sequence[str], edits: Sequence[TextEdit]) -> list[str]:
    """Apply edits of the joined chunks to the chunks."""
    made: list[str] = []
    chunk_start = 0
    remaining = iter(edits)
    edit = next(remaining, None)
    for chunk in chunks:
        chunk_end = chunk_start + len(chunk)
        pieces = []
        position = chunk_start
        while edit is not None and edit.start < chunk_end:
            if edit.start >= chunk_start:
                pieces.append(chunk[position - chunk_start : edit.start - chunk_start])
                pieces.append(edit.text)
            if edit.end > chunk_end:  # the secret continues in the next chunk
                position = chunk_end
                break
            position = max(position, edit.end)
            edit = next(remaining, None)
        pieces.append(chunk[position - chunk_start :])
        made.append("".join(pieces))
        chunk_start = chunk_end
    return made
