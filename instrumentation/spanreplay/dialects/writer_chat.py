"""Writer's chat: OpenAI's bodies on a different path."""

from __future__ import annotations

from typing import Any, ClassVar

from spanreplay.dialects._wire import as_dict
from spanreplay.dialects.openai.chat import OpenAIChat

__all__ = ["WriterChat"]


class WriterChat(OpenAIChat):
    """POST …/v1/chat with messages; Cohere's older chat on this path has a single message."""

    name: ClassVar[str] = "writer.chat"
    keyspec: ClassVar[str] = "writer_chat/1"
    system: ClassVar[str] = "writer"

    def accepts(self, body: Any) -> bool:
        """A request has messages for a model."""
        fields = as_dict(body)
        return bool(fields.get("messages")) and super().accepts(body) and isinstance(fields.get("model"), str)
