"""Amazon's Nova models in InvokeModel: bodies as in Converse, with tools and parameters in the same places."""

from __future__ import annotations

from typing import Any, ClassVar

from spanreplay.dialects._wire import as_dict, as_dicts
from spanreplay.dialects.bedrock.converse import BedrockConverse

__all__ = ["BedrockNova"]

_OWN = frozenset({"inferenceConfig", "schemaVersion", "toolConfig"})


class BedrockNova(BedrockConverse):
    """POST …/model/MODEL/invoke with a Nova model's body."""

    name: ClassVar[str] = "bedrock.nova"
    keyspec: ClassVar[str] = "bedrock_nova/1"

    def accepts(self, body: Any) -> bool:
        """A request has messages with untyped content blocks, or a field that only Nova has."""
        fields = as_dict(body)
        if not isinstance(fields.get("messages"), list) or "anthropic_version" in fields:
            return False
        blocks = [b for m in as_dicts(fields["messages"]) for b in as_dicts(m.get("content"))]
        return bool(_OWN & fields.keys()) or (bool(blocks) and not any("type" in block for block in blocks))
