"""OpenAI's /responses/compact: a model shortens a long conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from spanreplay.dialects._meaning import ResponseMeaning
from spanreplay.dialects.openai.responses import OpenAIResponses

__all__ = ["OpenAICompact"]


class OpenAICompact(OpenAIResponses):
    """POST …/responses/compact: returns the user's messages, and the rest as one item that only the model can read."""

    name: ClassVar[str] = "openai.responses.compact"
    keyspec: ClassVar[str] = "openai_compact/1"

    def fold(self, documents: Sequence[dict[str, Any]], is_stream: bool) -> ResponseMeaning:
        """Read the usage; the output is ignored: user messages aren't the model's, and the item is opaque."""
        document = documents[0] if documents else {}
        found = self.fold_response({**document, "output": []})
        return found._replace(is_complete=document.get("object") == "response.compaction")
