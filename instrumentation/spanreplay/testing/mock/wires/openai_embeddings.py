"""OpenAI's embeddings."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Final

from spanreplay.testing.mock.answers import Answer
from spanreplay.testing.mock.wires._wire import Json, count_tokens, event
from spanreplay.testing.mock.wires.openai_chat import OpenAIWire

DIMENSIONS: Final = 8
DIMENSIONS_MAX: Final = 16_384


class Embeddings(OpenAIWire):
    """POST /embeddings. Equal texts get equal vectors, in every process."""

    def whole(self, answer: Answer, body: Json, call_id: str) -> Json:
        """A list of vectors, as numbers or as base64 of little-endian float32."""
        asked: Any = body.get("input", "")
        # A list of numbers is one text, given as tokens
        texts = asked if isinstance(asked, list) and not (asked and isinstance(asked[0], int)) else [asked]
        size = min(int(body.get("dimensions") or len(answer.vector) or DIMENSIONS), DIMENSIONS_MAX)
        is_packed = body.get("encoding_format") == "base64"
        rows = [
            {"object": "embedding", "index": at, "embedding": _encode(_vector(answer, text, size), is_packed)}
            for at, text in enumerate(texts)
        ]
        tokens = answer.usage.prompt_tokens if answer.usage else sum(count_tokens(text) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": rows, "model": answer.model or body.get("model", ""), "usage": usage}

    def stream(self, answer: Answer, body: Json, call_id: str) -> list[str]:
        """One event, never requested by OpenAI's SDKs, because embeddings are not streamed."""
        return [event(self.whole(answer, body, call_id))]


def _vector(answer: Answer, text: Any, size: int) -> Sequence[float]:
    if answer.vector:
        return (answer.vector * (size // len(answer.vector) + 1))[:size]
    raw = hashlib.shake_256(str(text).encode("utf-8", "surrogatepass")).digest(2 * size)
    return [value / 2**15 for value in struct.unpack(f"<{size}h", raw)]


def _encode(vector: Sequence[float], is_packed: bool) -> Any:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if is_packed else list(vector)
