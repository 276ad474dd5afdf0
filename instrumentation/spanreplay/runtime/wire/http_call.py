"""One HTTP call through any transport library: recorded, or served.

A seam opens a call with `begin_call` and reports the results (`answered`, `broke`, `returned`, `failed`) or, if
`is_served`, asks for the recorded ones (`next_reply`, `end_of_body`). The client's own machinery (redirects, hooks,
cookies, authentication) runs in a replay too: only the layer below it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from spanreplay import codec
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Outcome
from spanreplay.model.errors import ReplayMiss, SpanreplayError, Unserializable
from spanreplay.model.json_text import dump
from spanreplay.recording.sampling.own_cpu import measured
from spanreplay.runtime.calls.cancel import await_cancellation, is_cancellation
from spanreplay.runtime.calls.open_call import Crossing, begin, is_plumbing, is_suppressed, plumbing
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.calls.turns import END, RESPONSE, WHOLE, await_turn, end_stream, wait_turn
from spanreplay.runtime.lanes import inside_call
from spanreplay.runtime.process.own_ports import asks_own
from spanreplay.runtime.run import Run, active_run
from spanreplay.runtime.wire.http_reply import HttpReply, Truncated, decode_reply, is_end_of_body
from spanreplay.runtime.wire.http_wire import (
    HttpExchange,
    describe_request,
    encode_reply,
    is_for_a_model,
    patch_content,
    read_meta,
)
from spanreplay.runtime.wire.sent_body import LargeBody, Taken
from spanreplay.runtime.wire.so_far import SoFar
from spanreplay.runtime.wire.telemetry import answer_report, is_telemetry

Headers = Iterable[tuple[str, str]]
_STREAM_TYPES: Final = ("event-stream", "eventstream", "ndjson", "stream+json")
CHUNK_ENDS: Final = "chunk_ends"
"""Member of a reply whose agent reads whole chunks of the transfer encoding: numbers of the pieces that end one."""


class Body:
    """The body of one response while the agent reads it; `reply.chunks` grows with it."""

    def __init__(self, call: HttpCall, reply: HttpReply) -> None:
        self.reply = reply
        self.end = ""
        self.error: BaseException | None = None
        self.at = ""
        """Where a library raised `error`, in its seam's words."""
        self._call = call
        self._is_joined = False
        self._pieces: list[bytes] = []

    def keep(self, piece: bytes, *, is_full: bool = False) -> None:
        """Keep the result of one read.

        `is_full`: as many bytes as were asked for, so the next read may be in the same chunk.
        """
        if not piece or self.end or not self._call.has_room(piece):
            return
        if not self._is_joined:
            self._seal()
            self.reply.chunks.append((self._call.elapsed_ms(), b""))
            self._call.mark()
        self._pieces.append(piece)
        self._is_joined = is_full

    def waiting(self) -> inside_call:
        """A block that waits for the network."""
        return self._call.waiting()

    def keep_end(self, piece: bytes) -> None:
        """Keep the result of a read that ended a chunk of the transfer encoding; it may be empty."""
        if self.end or not self._call.has_room(piece):
            return
        self._seal()
        self.reply.chunks.append((self._call.elapsed_ms(), piece))
        self._call.mark()
        self.reply.extra.setdefault(CHUNK_ENDS, []).append(len(self.reply.chunks) - 1)
        self._is_joined = False

    def let_go(self) -> None:
        """Drop the kept chunks."""
        self._pieces, self.reply.chunks = [], []

    def _seal(self) -> None:
        if self._pieces:
            ms, _ = self.reply.chunks[-1]
            self.reply.chunks[-1] = (ms, b"".join(self._pieces))
            self._pieces = []

    def finish(self, end: str, error: BaseException | None = None, *, is_alone: bool = True) -> None:
        """The body was read to its end (`complete`), broke (`error`) or was left (`closed`); the first report counts.

        `is_alone`: the end came in a read of its own, not in that of the last piece.
        """
        if not self.end:
            self._seal()
            self.end, self.error = end, error
            if is_alone and is_end_of_body(end, error):
                self._call.mark_end(self)
            self._call.ended(self)


class HttpCall:
    """One request; no method that is called while recording ever raises."""

    def __init__(self, describe: Callable[[Run, Any], tuple[Spec, HttpExchange]], *, is_stream: bool) -> None:
        self.is_stream = is_stream
        self.patched: bytes | None = None
        """The body to send instead, if a plan has changed the request."""
        self.crossing: Crossing | None = None
        self.is_black_hole = False
        self._describe = describe
        self._exchange = HttpExchange()
        self._bodies: list[Body] = []
        self._is_returned = False
        self._kept_bytes = 0
        self._is_cut = False
        """Whether the bodies of the responses are larger than the limit for recording."""
        self.sent: LargeBody | None = None
        """The request's body, if it is hashed while it is sent."""
        self._pending: deque[HttpReply] = deque()
        self._final: HttpReply | None = None
        self._start_ns = ids.monotonic_ns()
        self._so_far = SoFar()

    def note_sent(self, body: Taken) -> None:
        """Remember the body if its hash is known only after it was sent."""
        self.sent = body if isinstance(body, LargeBody) and not body.is_whole else None

    def open(self, *, is_for_model: bool = False) -> bool:
        """Register the call with its run; return False if it is not recorded. Raises: ReplayMiss."""
        self.crossing = begin(self._build_spec, is_for_model=is_for_model, is_http=True)
        if self.crossing is not None and self.crossing.served is not None:
            self._load(self.crossing)
        return self.crossing is not None

    def _build_spec(self, run: Run) -> Spec:
        spec, self._exchange = self._describe(run, ())
        if run.resolver.may_amend:
            spec.amend = partial(self._amend, run)
        return spec

    def _amend(self, run: Run, patches: Any) -> Spec:
        spec, self._exchange = self._describe(run, patches)
        return spec

    @property
    def is_served(self) -> bool:
        """Whether the answer comes from the recording."""
        return self.is_black_hole or (self.crossing is not None and self.crossing.served is not None)

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """A block that uses the network for this call; nothing below it is recorded again."""
        if self.crossing is None:
            yield
            return
        with self.crossing, plumbing():
            yield

    def waiting(self) -> inside_call:
        """A block that waits for the network: waking up there delivers an event from outside and is not a step."""
        return inside_call(self.crossing)

    # ── recording: what the seam tells ──────────────────────────────────────────────────────────────
    def elapsed_ms(self) -> int:
        """Milliseconds since the request."""
        return (ids.monotonic_ns() - self._start_ns) // 1_000_000

    def has_room(self, piece: bytes) -> bool:
        """Whether the next piece of a body is kept; counts its bytes. Above the limit nothing is kept."""
        self._kept_bytes += len(piece)
        if self._kept_bytes > config.BODY_BYTES_MAX:
            self.cut(self._kept_bytes)
        return not self._is_cut

    def cut(self, size: int) -> None:
        """Drop the bodies, which have `size` bytes so far; the call's record will say so."""
        self._kept_bytes = size
        if not self._is_cut:
            self._is_cut = True
            for body in self._bodies:
                body.let_go()

    def answered(self, reply: HttpReply) -> Body:
        """A response has come; there are several if the client follows redirects or authenticates."""
        body = Body(self, reply)
        self._bodies.append(body)
        if self.crossing is not None and self.crossing.clocks:
            del self.crossing.clocks[1:]  # the bodies of earlier responses are not part of the stream
        else:
            self.mark()
        return body

    def mark(self) -> None:
        """A part of a stream has come."""
        if self.is_stream and self.crossing is not None:
            self.crossing.mark()
            self._so_far.note(self.crossing, self.elapsed_ms(), self._read_so_far)

    def mark_end(self, body: Body) -> None:
        """A body has ended in a read of its own: the last part of the stream."""
        if self.is_stream and self.crossing is not None and self._bodies and self._bodies[-1] is body:
            self.crossing.mark()

    def _read_so_far(self) -> HttpReply | None:
        if not self._bodies or self._is_cut:
            return None
        reply = self._bodies[-1].reply
        return replace(reply, chunks=reply.chunks[:-1], hops=[body.reply for body in self._bodies[:-1]])

    def broke(self, exc: BaseException, at: str = "") -> None:
        """The network failed with this exception instead of a response."""
        body = Body(self, HttpReply(0))
        body.end, body.error, body.at = "error", exc, at
        self._bodies.append(body)

    def ended(self, body: Body) -> None:
        """A body ended; if it is the one that the agent reads, so does the call."""
        if self._is_returned and self._bodies and self._bodies[-1] is body:
            guard.guarded("recording a stream", self._finish, None)

    def returned(self) -> None:
        """The client is done: record the call now, or when its stream has been read."""
        if self.is_served:
            return
        self._is_returned = True
        last = self._bodies[-1] if self._bodies else None
        if last is None or last.end:
            guard.guarded("recording a response", self._finish, None)
        elif self.crossing is not None:
            self.crossing.on_abandon = lambda: last.finish("closed")

    def failed(self, exc: BaseException) -> None:
        """The client raised. The exception itself goes on unchanged."""
        if not self.is_served:
            guard.guarded("recording a failure", self._finish, exc)

    @measured
    def _finish(self, exc: BaseException | None) -> None:
        crossing = self.crossing
        if crossing is None:
            return
        if exc is not None and not self._bodies:
            self.broke(exc)
        self._settle_sent(crossing)
        bodies, self._bodies = self._bodies, []
        self._prefer(exc, bodies)
        *hops, reply = [self._to_reply(body) for body in bodies] or [HttpReply(0)]
        reply.hops = hops
        cause = exc or (bodies[-1].error if bodies else None)
        is_error = cause is not None or reply.error is not None or reply.status >= 400
        is_cancelled = cause is not None and not isinstance(cause, Exception)
        outcome = Outcome.CANCELLED if is_cancelled else Outcome.ERROR if is_error else Outcome.OK
        if self._is_cut:
            crossing.run.count("truncated")
            crossing.close(outcome, dump({"truncated": self._kept_bytes, "status": reply.status}))
            return
        text, texts = encode_reply(crossing.run, reply, crossing.spec)
        if reply.status:
            crossing.spec.meta.update(guard.guarded("reading a response", self._read_meta, reply, texts) or {})
        crossing.close(outcome, text, is_bounded=True)

    def _settle_sent(self, crossing: Crossing) -> None:
        """Put the hash of a body that was hashed while it was sent into the request and its key."""
        if self.sent is None:
            return
        if self.sent.is_whole:
            crossing.restate(lambda _: self._build_spec(crossing.run))
        else:
            crossing.spec.hole = f"only {self.sent.size} bytes of its request were sent, so it can't be compared"

    @staticmethod
    def _prefer(exc: BaseException | None, bodies: list[Body]) -> None:
        """Record the library's own timeout if it was caused by a cancellation."""
        if bodies and isinstance(exc, Exception) and is_cancellation(bodies[-1].error):
            bodies[-1].error = exc

    def _read_meta(self, reply: HttpReply, texts: list[str]) -> dict[str, Any]:
        types = [value for name, value in reply.headers if name.lower() == "content-type"]
        is_stream = any(kind in value for value in types for kind in _STREAM_TYPES)
        return read_meta(self._exchange, reply, texts, is_stream=is_stream)

    def _to_reply(self, body: Body) -> HttpReply:
        reply = body.reply
        body.finish("closed")
        reply.end = body.end
        if body.error is not None:
            reply.error, reply.end = self.describe_error(body.error), "error"
            if body.at:
                reply.error["at"] = body.at
        if not self.is_stream and len(reply.chunks) > 1:
            reply.chunks = [(reply.chunks[-1][0], b"".join(chunk for _, chunk in reply.chunks))]
        return reply

    def describe_error(self, exc: BaseException) -> dict[str, Any]:
        """An exception as JSON: class, message and, if it can be encoded, the complete exception."""
        cls = type(exc)
        described: dict[str, Any] = {"type": f"{cls.__module__}.{cls.__qualname__}", "message": str(exc)}
        with contextlib.suppress(Unserializable):
            described["value"] = codec.encode_exception(exc)
        return described

    # ── serving: what the seam asks ─────────────────────────────────────────────────────────────────
    def _load(self, crossing: Crossing) -> None:
        recorded = crossing.served
        if recorded is None:
            return
        crossing.spec.meta.update(recorded.meta)
        crossing.close(Outcome(recorded.outcome), recorded.response, is_bounded=True)
        try:
            reply = decode_reply(recorded.response)
        except Truncated as exc:
            message = f"the response of call {recorded.number} ({recorded.boundary}) was cut: {exc}"
            raise crossing.answers.at_hole(message) from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise self.broken(f"call {recorded.number} of the recording has no usable response") from exc
        self._pending.extend([*reply.hops, reply])
        self._final = reply

    def swallow(self, method: str, path: str) -> None:
        """Treat the call as another tool's telemetry: send nothing and answer that all is well."""
        self.is_black_hole = True
        headers, body = answer_report(method, path)
        self._pending.append(HttpReply(200, "OK", headers=[*headers.items()], chunks=[(0, body)]))

    @property
    def failing_at(self) -> str | None:
        """Where the next recorded failure was raised; None if a response comes next."""
        if not self._pending or self._pending[0].status:
            return None
        return str((self._pending[0].error or {}).get("at", ""))

    @property
    def has_hops(self) -> bool:
        """Whether responses are left after the one that was returned last."""
        return bool(self._pending)

    @property
    def _first_part(self) -> int:
        recorded = self.crossing.served if self.crossing is not None else None
        return RESPONSE if recorded is not None and recorded.clocks else WHOLE

    def next_reply(self) -> HttpReply:
        """Wait for the recorded response's turn and return it. Raises: the recorded exception, or ReplayMiss."""
        if self.crossing is not None and not self._is_returned:
            self._is_returned = True
            wait_turn(self.crossing, self._first_part)
        return self._pop()

    def _pop(self) -> HttpReply:
        if not self._pending:
            raise self._overrun()
        reply = self._pending.popleft()
        if not reply.status:
            raise self.restore_error(reply.error or {})
        return reply

    async def anext_reply(self) -> HttpReply:
        """`next_reply` on an event loop; waits for a recorded cancellation."""
        recorded = self.crossing.served if self.crossing is not None else None
        if self.crossing is not None and recorded is not None and not self._is_returned:
            self._is_returned = True
            if recorded.outcome != Outcome.CANCELLED.value:
                await await_turn(self.crossing, self._first_part, 0 if recorded.clocks else None)
        try:
            return self._pop()
        except asyncio.CancelledError as exc:
            await self.settle(exc)
            raise

    def wait_chunk(self, reply: HttpReply, number: int) -> None:
        """Block until a recorded chunk may go out."""
        if self.crossing is not None and reply is self._final:
            wait_turn(self.crossing, number + 1)

    async def await_chunk(self, reply: HttpReply, number: int) -> None:
        """Suspend until a recorded chunk may go out."""
        if self.crossing is not None and reply is self._final:
            await await_turn(self.crossing, number + 1, reply.chunks[number][0])

    def ends_alone(self, reply: HttpReply) -> bool:
        """Whether a recorded body ended in a read of its own."""
        recorded = None if self.crossing is None or reply is not self._final else self.crossing.served
        return recorded is not None and reply.end != "closed" and len(recorded.clocks) > len(reply.chunks) + 1

    def is_end_due(self, reply: HttpReply) -> bool:
        """Whether everything recorded before a body's end has come."""
        recorded = None if self.crossing is None else self.crossing.served
        if self.crossing is None or recorded is None or not self.ends_alone(reply):
            return True
        return self.crossing.answers.gate.is_turn(recorded.clocks[-1])

    def wait_end(self, reply: HttpReply) -> None:
        """Block until a recorded body may end."""
        if self.crossing is not None and self.ends_alone(reply):
            wait_turn(self.crossing, END)

    async def await_end(self, reply: HttpReply) -> None:
        """Suspend until a recorded body may end."""
        if self.crossing is not None and self.ends_alone(reply):
            await await_turn(self.crossing, END)

    def stream_over(self, reply: HttpReply) -> None:
        """A served body was read to its end, or left."""
        if self.crossing is not None and reply is self._final:
            end_stream(self.crossing)

    def end_of_body(self, reply: HttpReply) -> BaseException | None:
        """The exception raised after the last recorded chunk; None if there is none."""
        if reply.error is not None:
            return self.restore_error(reply.error)
        is_left = reply.end == "closed" and (self.crossing is None or not self.crossing.is_reused)
        return self._overrun() if is_left else None

    async def settle(self, exc: BaseException) -> None:
        """Wait for a recorded cancellation to happen again."""
        if is_cancellation(exc) and self.crossing is not None:
            await await_cancellation(self.crossing)

    def restore_error(self, error: dict[str, Any]) -> BaseException:
        """Rebuild the exception that `describe_error` encoded."""
        try:
            return codec.decode_exception(error["value"])
        except (SpanreplayError, ValueError, KeyError, TypeError):
            return self.broken(f"the recorded {error.get('type')} can't be rebuilt")

    def broken(self, message: str) -> ReplayMiss:
        """The error for our own failure; the replay is not identical any more."""
        return ReplayMiss(message) if self.crossing is None else self.crossing.run.resolver.broken(message)

    def _overrun(self) -> ReplayMiss:
        crossing = self.crossing
        message = "more was read than was recorded"
        return ReplayMiss(message) if crossing is None else crossing.run.resolver.overrun(crossing)


def is_recording() -> bool:
    """Whether there is a run that a call made here could belong to."""
    return active_run() is not None


def is_passed_on() -> bool:
    """Whether a request made here while recording belongs to a call above it and is passed on untouched."""
    run = active_run()
    return run is not None and run.resolver.connects and (is_suppressed() or is_plumbing(run))


def begin_call(
    method: str,
    url: str,
    headers: Headers,
    body: Taken,
    *,
    is_stream: bool = False,
    call_class: type[HttpCall] = HttpCall,
) -> HttpCall | None:
    """Open a call; None if it goes on untouched. Raises: ReplayMiss if the recording has no answer."""
    run = active_run()
    if run is None:
        return None

    def describe(run: Run, patches: Any) -> tuple[Spec, HttpExchange]:
        if not patches:
            return describe_request(run, method, url, headers, body)
        call.patched = patch_content(body, headers, patches)
        return describe_request(run, method, url, headers, call.patched)

    call = call_class(describe, is_stream=is_stream)
    call.note_sent(body)
    parts = urlsplit(url)
    is_doubtful = is_suppressed() or _is_own(parts)
    is_for_model = is_doubtful and is_for_a_model(method, url, body)
    if is_telemetry(method, parts.hostname or "", parts.path) or (is_suppressed() and not is_for_model):
        if not run.resolver.swallows_telemetry:
            return None
        call.swallow(method, parts.path)
        return call
    if is_plumbing(run) or is_doubtful > is_for_model:
        return None
    return call if call.open(is_for_model=is_for_model) else None


def _is_own(parts: SplitResult) -> bool:
    try:
        return asks_own(parts.hostname or "", parts.port)
    except ValueError:  # invalid port: the library reports it
        return False
