"""Mocked models for tests, with no recording and no key: `with spanreplay.mock.MockLLM() as llm: …`."""

from __future__ import annotations

from spanreplay.mock.answers import Answer, MockExhausted, TokenUsage
from spanreplay.mock.llm import MockLLM

__all__ = ["Answer", "MockExhausted", "MockLLM", "TokenUsage"]
