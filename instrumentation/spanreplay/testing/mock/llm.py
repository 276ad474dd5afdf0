"""Mocked models: a test sets the answers, runs the agent, and inspects the requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.errors import ConfigError
from spanreplay.testing.mock.answers import FAILURES, Answer, Failure, Script, TokenUsage, read_tool_calls

if TYPE_CHECKING:
    from spanreplay.testing.mock.block import MockBlock

PROVIDERS: Final = {"openai": "openai", "anthropic": "anthropic", "gemini": "google.genai", "google": "google.genai"}
CALLS_MAX: Final = 100_000
_KEYS: Final = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")


class MockLLM:
    """A mocked model: `with MockLLM() as llm: llm.add_response("Paris"); …; assert llm.call_count == 1`.

    It answers at the transport: the SDK builds its typed objects, streams and errors itself, frameworks on top of it
    run unchanged, and clients created before the block are mocked too. Every provider is answered in its own format;
    `provider` restricts the mock to one. Other HTTP requests and all sockets are denied; tools run. The block sets API
    keys that are missing in the environment, so that clients can be created. Only one block at a time per process.
    """

    def __init__(self, provider: str = "", *, is_strict: bool = False) -> None:
        if provider and provider not in PROVIDERS:
            raise ConfigError(f"no mock of provider {provider!r}", hint=f"one of: {', '.join(PROVIDERS)}")
        self._sdk = PROVIDERS.get(provider, "")
        self._script = Script(is_strict=is_strict)
        self._ledger: list[dict[str, Any]] = []
        self._usage: list[TokenUsage] = []
        self._live: tuple[str, ...] = ()
        self._block: MockBlock | None = None
        self._keys_set: list[str] = []
        self._lock = threading.RLock()

    # ── what it will say ────────────────────────────────────────────────────────────────────────────
    def add_response(
        self,
        content: str = "",
        *,
        model: str = "",
        token_usage: TokenUsage | None = None,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        stream_chunks: Sequence[str] = (),
        tool_call_chunks: Sequence[str] = (),
        embedding: Sequence[float] = (),
    ) -> MockLLM:
        """Queue an answer: a text, tool calls, or both; `stream_chunks` are its parts if it is streamed.

        Without `model` the answer names the requested model. Raises: ConfigError.
        """
        if stream_chunks and "".join(stream_chunks) != content:
            raise ConfigError("stream_chunks don't join to the content", hint='"".join(stream_chunks) == content')
        self._script.add(
            Answer(
                text=content,
                model=model,
                usage=token_usage,
                tool_calls=read_tool_calls(tool_calls),
                pieces=tuple(stream_chunks),
                argument_pieces=tuple(tool_call_chunks),
                vector=tuple(map(float, embedding)),
            )
        )
        return self

    def add_responses(self, *contents: str) -> MockLLM:
        """Queue several text answers."""
        for content in contents:
            self.add_response(content)
        return self

    def set_default_response(self, content: str, *, model: str = "") -> MockLLM:
        """Set the answer for an empty queue."""
        self._script.default = Answer(content, model)
        return self

    def simulate_error(
        self, error_type: str, *, message: str = "", after_calls: int = 0, times: int | None = None
    ) -> MockLLM:
        """Fail as the provider does, for ever or `times` times, after `after_calls` answers. Raises: ConfigError.

        The SDK does not retry it: the error reaches the application at once. A `timeout` has no response that could
        disable retries: create the client with `max_retries=0`, or let it fail often enough.
        """
        if error_type not in FAILURES:
            raise ConfigError(f"no such error {error_type!r}", hint=f"one of: {', '.join(FAILURES)}")
        self._script.fail(Failure(error_type, message or f"mocked {error_type} error", after_calls, times))
        return self

    def set_strict_mode(self, enabled: bool = True) -> MockLLM:
        """Fail if no answer is set, instead of answering with a placeholder."""
        self._script.is_strict = enabled
        return self

    def allow(self, *patterns: str) -> MockLLM:
        """Let calls through to the network: `http:GET api.example.com`, with `*` and `?`. Call it before the block."""
        if self._block is not None:
            raise ConfigError("allow() comes before the block", hint="MockLLM().allow('http:*')")
        self._live += patterns
        return self

    def reset(self) -> None:
        """Clear answers, failures and recorded requests."""
        with self._lock:
            self._script.reset()
            self._ledger.clear()
            self._usage.clear()

    # ── what it was asked ───────────────────────────────────────────────────────────────────────────
    @property
    def request_ledger(self) -> list[dict[str, Any]]:
        """Every request with its `outcome`: `success`, or the kind of error."""
        with self._lock:
            return [dict(entry) for entry in self._ledger]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every request as it was sent: model, messages, tools, parameters."""
        return [{name: value for name, value in e.items() if name != "outcome"} for e in self.request_ledger]

    @property
    def last_call(self) -> dict[str, Any] | None:
        """The newest request; None before the first."""
        return self.calls[-1] if self._ledger else None

    @property
    def call_count(self) -> int:
        """Number of requests that were answered."""
        return self._script.answered

    @property
    def pending(self) -> int:
        """Number of queued answers that are left."""
        return self._script.left

    @property
    def total_tokens(self) -> int:
        """Total tokens of all answers with a set usage."""
        with self._lock:
            return sum(usage.total_tokens for usage in self._usage)

    @property
    def model(self) -> Any:
        """A LangChain chat model that uses this mock. Raises: ImportError without langchain-openai."""
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(model="mock-model")

    def _answer(self, boundary: str, request: dict[str, Any]) -> Answer | Failure:
        answer = self._script.next(boundary)
        outcome = answer.kind if isinstance(answer, Failure) else "success"
        with self._lock:
            if len(self._ledger) < CALLS_MAX:
                self._ledger.append({**request, "outcome": outcome})
            if isinstance(answer, Answer) and answer.usage is not None:
                self._usage.append(answer.usage)
        return answer

    # ── the block ───────────────────────────────────────────────────────────────────────────────────
    def __enter__(self) -> MockLLM:
        from spanreplay.replayer.resolve.plan import build_plan
        from spanreplay.testing.mock.block import MockBlock

        block = MockBlock(self._answer, build_plan(live=self._live), self._sdk)
        block.__enter__()
        self._block = block
        for name in _KEYS:
            if not os.environ.get(name):
                os.environ[name] = "mocked"
                self._keys_set.append(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in self._keys_set:
            os.environ.pop(name, None)
        self._keys_set.clear()
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(kind, exc, traceback)
