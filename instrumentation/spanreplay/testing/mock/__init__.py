"""Mocked models for tests, without recordings or API keys: `with spanreplay.testing.mock.MockLLM() as llm: …`."""

from __future__ import annotations

from spanreplay.testing.mock.answers import Answer, MockExhausted, TokenUsage
from spanreplay.testing.mock.llm import MockLLM

__all__ = ["Answer", "MockExhausted", "MockLLM", "TokenUsage"]
