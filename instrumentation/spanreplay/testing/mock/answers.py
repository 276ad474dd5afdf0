"""The script of a mocked model: a queue of answers and failures; thread-safe, no I/O."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spanreplay.model.errors import ConfigError, ReplayMiss

ANSWERS_MAX: Final = 100_000
PLACEHOLDER: Final = "This is a mocked answer: add_response(...) sets another."
FAILURES: Final[Mapping[str, int]] = {
    "rate_limit": 429,
    "auth": 401,
    "timeout": 0,
    "server": 500,
    "overloaded": 529,
    "invalid_request": 400,
}
"""Kind of failure → HTTP status; 0: no answer at all."""


class MockExhausted(ReplayMiss):
    """A model was called in strict mode when no answer was left."""


@dataclass(frozen=True)
class TokenUsage:
    """The token usage that an answer reports."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Sum of prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class ToolCall:
    """One tool call that the model makes; `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str

    @property
    def value(self) -> Any:
        """The parsed arguments; text that is not JSON stays text."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments


@dataclass(frozen=True)
class Answer:
    """One answer, independent of the provider. `pieces` are the parts in which its text is streamed."""

    text: str = ""
    model: str = ""
    usage: TokenUsage | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    pieces: tuple[str, ...] = ()
    argument_pieces: tuple[str, ...] = ()
    vector: tuple[float, ...] = ()
    """For embeddings; if empty, a vector is made from each input's text."""


@dataclass(frozen=True)
class Failure:
    """An error of the provider, starting after `after_calls` answers, `times` times; None: for ever."""

    kind: str
    message: str
    after_calls: int = 0
    times: int | None = None

    @property
    def status(self) -> int:
        """HTTP status; 0 for a timeout."""
        return FAILURES[self.kind]


def read_tool_calls(calls: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """Parse tool calls in OpenAI's format, or flat: {"name": …, "arguments": …}. Raises: ConfigError with the call."""
    found = []
    for number, call in enumerate(calls):
        function = call.get("function", call)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"tool_calls[{number}] names no function",
                hint='write {"id": "call_1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}',
            )
        arguments = function.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append(ToolCall(str(call.get("id") or f"call_{number}"), name, text))
    return tuple(found)


@dataclass
class Script:
    """The queued answers in order, then the default or a placeholder; with failures in between."""

    is_strict: bool = False
    default: Answer | None = None
    answered: int = 0
    _answers: deque[Answer] = field(default_factory=deque)
    _failure: Failure | None = None
    _failed: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, answer: Answer) -> None:
        """Queue an answer. Raises: ConfigError above ANSWERS_MAX."""
        with self._lock:
            if len(self._answers) >= ANSWERS_MAX:
                raise ConfigError(f"more than {ANSWERS_MAX} answers are waiting", hint="use set_default_response()")
            self._answers.append(answer)

    def fail(self, failure: Failure) -> None:
        """Set the failure, replacing an earlier one."""
        with self._lock:
            self._failure, self._failed = failure, 0

    @property
    def left(self) -> int:
        """Number of queued answers that are left."""
        return len(self._answers)

    def next(self, asked: str) -> Answer | Failure:
        """The next answer or failure; `asked` names the call in errors. Raises: MockExhausted in strict mode."""
        with self._lock:
            failure = self._failure
            if failure is not None and self.answered >= failure.after_calls:
                if failure.times is None or self._failed < failure.times:
                    self._failed += 1
                    return failure
                self._failure = None
            if not self._answers and self.is_strict:
                raise MockExhausted(f"no answer is left for {asked}, and the mock is strict: add_response(...) first")
            self.answered += 1
            return self._answers.popleft() if self._answers else self.default or Answer(PLACEHOLDER)

    def reset(self) -> None:
        """Clear answers, failure, default and count."""
        with self._lock:
            self._answers.clear()
            self._failure, self.default, self.answered, self._failed = None, None, 0, 0
