"""A call in flight, as the parts of its record use it; `open_call.Crossing` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from spanreplay.model.call import CallRecord
    from spanreplay.runtime.answers import Answers
    from spanreplay.runtime.calls.spec import Revealed, Spec
    from spanreplay.runtime.run import Run


class InFlight(Protocol):
    """One call in flight."""

    run: Run
    spec: Spec
    seq: int
    index: int
    joint: int
    parent: Any
    """The call that it lies inside of, here or in another process; None without one."""
    parent_context: SpanContext
    span_id: int
    start_ns: int
    is_shown: bool
    is_key_implied: bool
    request_bytes: bytes | None
    reads: str
    opened_in: int
    clocks: list[int]
    served: CallRecord | None
    revealed: Revealed | None
    hidden_sent: int

    @property
    def answers(self) -> Answers:
        """The replay that serves it. Raises: AssertionError if there is none."""

    def describe_digests(self) -> str:
        """The digests of the parts of its key, as JSON."""

    def mark_printed(self) -> int:
        """Take a value of the clock for a row of printed text; return the row's part number."""
