"""Stream a model's answer in chunks, and make many streams open at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, Final

Json = dict[str, Any]

PIECE_CHARS: Final = 12
GATHER_TIMEOUT_S: Final = 20.0


class Gathering:
    """Holds the first `count` streams after their first chunk until all have sent one; later streams pass.

    So all of them are open at once, whatever the thread schedule. Thread-safe.
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(max(count, 1))

    def wait(self) -> None:
        """Return once all streams have arrived, or after GATHER_TIMEOUT_S."""
        with self._lock:
            if self._left <= 0:
                return
            self._left -= 1
        try:
            self._barrier.wait(GATHER_TIMEOUT_S)
        except threading.BrokenBarrierError:
            return


def iter_chunks(completion: Json) -> Iterator[Json]:
    """Yield the `chat.completion.chunk` objects of an answer, the last one with its usage; pure."""
    (choice,) = completion["choices"]
    kept = ("id", "created", "model", "system_fingerprint")
    head = {"object": "chat.completion.chunk", **{name: completion[name] for name in kept}}

    def chunk(delta: Json, finish_reason: str | None = None) -> Json:
        shown = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "choices": [shown], "usage": None}

    message = choice["message"]
    yield chunk({"role": "assistant", "content": "" if message["content"] else None})
    for piece in _cut(message["content"] or ""):
        yield chunk({"content": piece})
    for index, call in enumerate(message.get("tool_calls") or []):
        named = {"name": call["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]})
        for piece in _cut(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    yield {**head, "choices": [], "usage": completion["usage"]}


def encode_event(payload: Json | None) -> bytes:
    """Encode one server-sent event; None is the end of the stream."""
    return b"data: " + (b"[DONE]" if payload is None else json.dumps(payload).encode()) + b"\n\n"


def _cut(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]
