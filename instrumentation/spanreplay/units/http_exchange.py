"""The body of one HTTP request and the application's response, as calls of the unit.

http:body      (read)    once its last part has arrived
http:response  (write)   status, headers and body, when the last part is sent or the application returns
http:raised    (pure)    an exception that the application raised after the response
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.run import active_run
from spanreplay.units import given
from spanreplay.units.asgi_messages import BYTES, PARTS, Body, describe_headers
from spanreplay.units.unit_run import UnitRun

__all__ = [
    "BODY",
    "CANCELLED",
    "DISCONNECT",
    "ENCODING",
    "FIRST_CALL",
    "KIND",
    "OF_BODIES",
    "PART",
    "REQUEST",
    "ReceivedBody",
    "Response",
    "read_in",
]

T = TypeVar("T")
REQUEST, BODY, RESPONSE, RAISED = "request", "body", "response", "raised"
DISCONNECT, CANCELLED = "disconnect", "cancelled"
KIND: Final = Kind.HTTP.value
FIRST_CALL: Final = f"{KIND}:{REQUEST}"
_SERVER_ERROR: Final = 500
"""The lowest status that means the server has failed."""
PART: Final = "a request"
"""The name used when reporting an error of the recorder."""
ENCODING: Final = b"content-encoding"
OF_BODIES: Final = frozenset({b"content-length", b"transfer-encoding", b"expect"})
"""Headers of a request that has or may have a body."""


class ReceivedBody:
    """Records the body of a request."""

    def __init__(self, run: UnitRun) -> None:
        self._run = run
        self._body = Body()
        self._calls_before = -1
        self.is_noted = False
        self.encoding = ""
        """The Content-Encoding of the request."""

    @property
    def size(self) -> int:
        """Bytes received so far."""
        return self._body.size

    def add(self, part: bytes, *, is_last: bool) -> None:
        """Add a part, in the unit's lane."""
        if self.is_noted:
            return
        self._body.add(part)
        if self._calls_before < 0:
            self._calls_before = self._run.calls
        if is_last:
            self.note()

    def note(self, *, is_complete: bool = True) -> None:
        """Record the call, once, if any part has arrived; not complete: the application stopped reading early."""
        if self.is_noted or not self._body.count:
            return
        self.is_noted = True
        described = self._body.describe_packed(self.encoding)
        if not self._body.is_kept:
            self._run.count("truncated")
        elif BYTES in described:
            self._run.hole(f"the request's body is compressed ({self.encoding}): only its size and hash are kept")
        if self._run.calls != self._calls_before:
            self._run.hole("calls were made while the request's body was coming in: a replay has all of it before them")
        read_in(BODY, {**described, PARTS: self._body.lengths, **({} if is_complete else {"is_complete": False})})


class Response:
    """The response that an application has sent so far."""

    def __init__(self) -> None:
        self._status: int | None = None
        self._headers: list[dict[str, str]] = []
        self._body = Body()
        self._others: list[str] = []
        self.is_complete = False
        self.is_recorded = False
        self.is_cut_by_server = False
        """Whether the server chose the number of parts, not the application."""

    @property
    def parts(self) -> int:
        """The number of body parts sent."""
        return self._body.count

    @property
    def size(self) -> int:
        """The number of body bytes sent."""
        return self._body.size

    def begin(self, status: int, headers: Iterable[Iterable[bytes]]) -> None:
        """Set status and headers; a later call replaces them."""
        self._status, self._headers = status, describe_headers(headers)

    def add(self, part: bytes) -> None:
        """Add a part of the body."""
        self._body.add(part)

    def add_other(self, kind: str) -> None:
        """Note a message that is neither start nor body."""
        self._others.append(kind)

    def describe(self, raised: BaseException | None) -> dict[str, Any]:
        """Return the response as the arguments of a call."""
        found: dict[str, Any] = {}
        if self._status is not None:
            found |= {"status": self._status, "headers": self._headers}
        if self._body.count:
            encodings = [each["content-encoding"] for each in self._headers if "content-encoding" in each]
            found["body"] = self._body.describe(", ".join(encodings))
        if self._body.count > 1 and not self.is_cut_by_server:
            found[PARTS] = self._body.count
        if self._others:
            found["others"] = self._others
        if not self.is_complete:
            found["is_complete"] = False
        if raised is not None:
            found["raised"] = _name_type(raised)
        return found

    def record(self, raised: BaseException | None = None) -> None:
        """Record or compare the call, once. Raises: ReplayMiss if it differs from the recording."""
        if not self.is_recorded:
            self.is_recorded = True
            given.keep_answer(self._status, self._headers, self._body)
            if (self._status or 0) >= _SERVER_ERROR:
                _note_failure()
            function_call = FunctionCall(KIND, RESPONSE, Effect.WRITE.value, self.describe(raised), prints=False)
        elif isinstance(raised, Exception):
            function_call = FunctionCall(KIND, RAISED, Effect.PURE.value, {"type": _name_type(raised)}, prints=False)
        else:
            return
        call_sync(lambda: function_call, lambda: None)


def _note_failure() -> None:
    run = active_run()
    if isinstance(run, UnitRun):
        run.note_failure()


def _name_type(raised: BaseException) -> str:
    return f"{type(raised).__module__}.{type(raised).__qualname__}"


def read_in(name: str, value: T) -> T:
    """Record or replay an incoming value as a call in the current lane."""
    return call_sync(lambda: FunctionCall(KIND, name, Effect.READ.value, {}, prints=False), lambda: value)
