"""One HTTP call through any transport library: recorded, or served.

A seam opens a call with `begin_call`. Within `attempt` it asks the network or, if `is_served`, the recording
(`next_reply`, `end_of_body`); it reports the results (`answered`, `returned`, `failed`). The client's own machinery
(redirects, hooks, cookies, authentication) runs in a replay too: only the layer below it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from spanreplay.model import config, guard, ids
from spanreplay.model.call import Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.model.json_text import dump
from spanreplay.recording.sampling.own_cpu import measured
from spanreplay.runtime.calls import chains
from spanreplay.runtime.calls.cancel import await_cancellation, is_cancellation
from spanreplay.runtime.calls.open_call import Crossing, begin, is_plumbing, is_suppressed, plumbing
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.calls.turns import END, RESPONSE, WHOLE, await_turn, end_stream, wait_turn
from spanreplay.runtime.lanes import inside_call
from spanreplay.runtime.process.own_ports import asks_own
from spanreplay.runtime.run import Run, active_run
from spanreplay.runtime.wire.http_body import Body
from spanreplay.runtime.wire.http_errors import attach_chains, describe, find_chain, note_chains, rebuild
from spanreplay.runtime.wire.http_reply import SWITCHED, TAKEN_OVER, HttpReply, Truncated, decode_reply
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
from spanreplay.runtime.wire.timeouts import Timeout

T = TypeVar("T")
Headers = Iterable[tuple[str, str]]
_STREAM_TYPES: Final = ("event-stream", "eventstream", "ndjson", "stream+json")


class HttpCall:
    """One request; no method that is called while recording ever raises."""

    def __init__(self, describe: Callable[[Run, Any], tuple[Spec, HttpExchange]], *, is_stream: bool) -> None:
        self.is_stream = is_stream
        self.patched: bytes | None = None
        """The body to send instead, if a plan has changed the request."""
        self.asked: dict[str, Any] = {}
        """Attributes of the library's exceptions that are the replay's own: the request."""
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
        self._restored: tuple[BaseException, dict[str, Any]] | None = None
        """The recorded exception that was rebuilt last, and its description."""
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

    def ask(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of the library that uses the network for this call."""
        with self.live():
            return function(*args, **kwargs)

    def attempt(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call what asks the network or serves the recording; its exception has the same stacks in both."""
        return chains.attempt(self._raised, function, *args, **kwargs)

    async def aattempt(self, at: str, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """`attempt` for a coroutine function; `at`: where the library raises an exception, in its seam's words."""
        return await chains.aattempt(partial(self._raised, at=at), function, *args, **kwargs)

    def _raised(self, exc: BaseException, at: str = "") -> BaseException:
        if self.is_served:
            return self.restack(exc)
        self.broke(exc, at, guard.guarded("recording a stack", chains.describe, exc))
        return exc

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
        if reply.status == SWITCHED and self.crossing is not None:
            self.crossing.spec.hole = TAKEN_OVER
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

    def broke(self, exc: BaseException, at: str = "", chain: dict[str, Any] | None = None) -> None:
        """The network failed with this exception instead of a response."""
        body = Body(self, HttpReply(0))
        body.end, body.error, body.at, body.chain = "error", exc, at, chain
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
        guard.guarded("recording a stack", note_chains, bodies, crossing)
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
            bodies[-1].error, bodies[-1].is_timed_out = exc, True

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
        """An exception as JSON, without its stacks."""
        return describe(exc)

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
        attach_chains(self._pending, recorded.meta)
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

    def take_failure(self) -> BaseException:
        """The recorded failure, without waiting for its turn."""
        try:
            self._pop()
        except BaseException as exc:  # noqa: BLE001 -- it is the result
            return exc
        raise AssertionError("a response comes next")

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
        if reply.status == SWITCHED:
            raise self.taken_over()
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
        found = self.rebuild_error(error) or self.broken(f"the recorded {error.get('type')} can't be rebuilt")
        for name in set(self.asked).intersection((error.get("value") or {}).get("dropped") or ()):
            setattr(found, name, self.asked[name])
        self._restored = (found, error)
        return found

    def rebuild_error(self, error: dict[str, Any]) -> BaseException | None:
        """The exception without its stacks; None if it can't be rebuilt."""
        return rebuild(error)

    def restack(self, exc: BaseException, reply: HttpReply | None = None) -> BaseException:
        """The exception that was rebuilt last, with its recorded stacks, if it led to this one.

        The library's code above a served wire may have made another one of it, as it did when recorded. A cancellation
        comes from the event loop; `reply`: what was being served then.
        """
        (restored, error), self._restored = self._restored or (None, {}), None
        if is_cancellation(exc):
            pending = reply or (self._pending[0] if self._pending and not self._pending[0].status else None)
            restored, error = exc, error or (pending and pending.error) or {}
        chain = find_chain(error, is_cancelled=is_cancellation(exc))
        if restored is None or not chain or not chains.is_behind(exc, restored):
            return exc
        if self.crossing is not None:
            guard.guarded("rebuilding a stack", chains.restore, restored, chain, self.crossing.find_file)
        return restored

    def broken(self, message: str) -> ReplayMiss:
        """The error for our own failure; the replay is not identical any more."""
        return ReplayMiss(message) if self.crossing is None else self.crossing.run.resolver.broken(message)

    def taken_over(self) -> BaseException:
        """Return the error for a program that goes on to use the connection itself, past its recorded response."""
        return ReplayMiss(TAKEN_OVER) if self.crossing is None else self.crossing.answers.at_hole(TAKEN_OVER)

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
    timeout: Timeout | None = None,
    is_stream: bool = False,
    call_class: type[HttpCall] = HttpCall,
) -> HttpCall | None:
    """Open a call; None if it goes on untouched. Raises: ReplayMiss if the recording has no answer."""
    run = active_run()
    if run is None:
        return None

    def describe(run: Run, patches: Any) -> tuple[Spec, HttpExchange]:
        if not patches:
            return describe_request(run, method, url, headers, body, timeout)
        call.patched = patch_content(body, headers, patches)
        return describe_request(run, method, url, headers, call.patched, timeout)

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
