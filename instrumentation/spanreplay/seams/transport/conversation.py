"""A call in which both sides send several messages: a gRPC stream, a websocket. Recorded and served in order.

In a replay, each message that the agent sends is compared with the recorded one; a message that it received is released
once the agent has sent everything that came before it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from spanreplay.model import attributes as names
from spanreplay.model import config, guard, ids
from spanreplay.model.call import Outcome
from spanreplay.model.errors import ReplayMiss
from spanreplay.model.json_text import dump
from spanreplay.runtime.answers import Answers
from spanreplay.runtime.calls import chains
from spanreplay.runtime.calls.open_call import Crossing, begin, is_plumbing, is_suppressed, plumbing
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.order.waited import describe_change
from spanreplay.runtime.run import Run, active_run
from spanreplay.runtime.wire.binary import HoldsSecret, clean_message, clean_sent, stored_bytes, unstored_bytes
from spanreplay.runtime.wire.http_errors import CHAIN, rebuild
from spanreplay.runtime.wire.http_wire import UNREDACTABLE

T = TypeVar("T")
Message = str | bytes
SENT: Final = names.SENT
GOT: Final = "got"
QUIT: Final = "quit"
"""The agent stopped listening before the next message came: a timeout, a cancellation."""


class Quit(NamedTuple):
    """Marks the place among the messages where the agent stopped listening."""

    after_s: float
    """How long after the message before."""


class Conversation:
    """One call; thread-safe. Methods called while recording never raise."""

    def __init__(self, crossing: Crossing) -> None:
        self.crossing = crossing
        self._events: list[list[Any]] = []
        self._raw: dict[int, dict[str, str]] = {}
        """Received binary messages before redaction, by their position in `_events`."""
        self._bytes = 0
        self._refused = ""
        self.read_meta: Callable[[list[list[Any]]], dict[str, Any]] | None = None
        """Returns the meaning of the events, if they are those of a model."""
        self._is_finished = False
        self._start_ns = ids.monotonic_ns()
        self._changed = threading.Condition()
        self._waiters: list[Callable[[], Any]] = []
        self._said = 0
        self._heard = 0
        self._is_followed = False
        self._said_at_once = 0
        self._chain: dict[str, Any] | None = None
        self._restored: BaseException | None = None
        self.end, self.error, self.extra = "", {}, {}  # type: tuple[str, dict[str, Any], dict[str, Any]]
        if crossing.served is not None:
            self._load(crossing.served.response)
        else:
            crossing.on_abandon = lambda: self.finish("closed")

    @property
    def is_served(self) -> bool:
        """Whether the recording answers instead of the other side."""
        return self.crossing.served is not None

    def attempt(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call what uses the network or serves the recording; its exception has the same stacks in both."""
        return chains.attempt(self._raised, function, *args, **kwargs)

    async def aattempt(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """`attempt` for a coroutine function."""
        return await chains.aattempt(self._raised, function, *args, **kwargs)

    def _raised(self, exc: BaseException) -> BaseException:
        if not self.is_served:
            self._chain = guard.guarded("recording a stack", chains.describe, exc)
        elif exc is self._restored:
            self._restored = None
            chain, find_file = self.crossing.spec.meta.get(CHAIN), self.crossing.find_file
            guard.guarded("rebuilding a stack", chains.restore, exc, chain, find_file)
        return exc

    def restore_error(self) -> BaseException:
        """Rebuild the recorded exception."""
        found = rebuild(self.error) or self.broken(f"the recorded {self.error.get('type')} can't be rebuilt")
        self._restored = found
        return found

    @contextmanager
    def live(self) -> Iterator[None]:
        """A block that uses the network for this call; calls below it are not recorded again."""
        with self.crossing, plumbing():
            yield

    # ── recording ───────────────────────────────────────────────────────────────────────────────────
    def note(self, side: str, message: Message) -> None:
        """Note one message that has gone out (`sent`) or come in (`got`)."""
        guard.guarded("recording a message", self._note, side, message)

    def _note(self, side: str, message: Message) -> None:
        with self._changed:
            self._bytes += len(message)
            if not self._is_finished and not self.is_served and self._bytes <= config.BODY_BYTES_MAX:
                elapsed_ms = (ids.monotonic_ns() - self._start_ns) // 1_000_000
                self._events.append([side, elapsed_ms, self._encode(side, message)])

    def _encode(self, side: str, message: Message) -> Any:
        redact, counts = self.crossing.run.redactor, self.crossing.spec.redactions
        if isinstance(message, str):
            if side == GOT:
                return message  # redacted with all the others: a provider streams one text in many messages
            return redact.json_text(message, counts) if message[:1] in "{[" else redact.text(message, counts)
        if side == SENT:
            return stored_bytes(clean_sent(message, redact, counts))
        try:
            clean = clean_message(message, redact, counts)
            if clean != message:
                self._raw[len(self._events)] = stored_bytes(message)
            return stored_bytes(clean)
        except HoldsSecret:
            self._refused = UNREDACTABLE
            return ""

    def finish(
        self,
        end: str,
        *,
        error: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """End the call: `complete`, `closed` (left early) or `error`; only the first call counts."""
        guard.guarded("recording a conversation", self._finish, end, error, extra, outcome)

    def _finish(
        self, end: str, error: dict[str, Any] | None, extra: dict[str, Any] | None, outcome: Outcome | None
    ) -> None:
        with self._changed:
            if self._is_finished or self.is_served:
                return
            self._is_finished = True
        crossing = self.crossing
        found = outcome or (Outcome.ERROR if error else Outcome.OK)
        if self._bytes > config.BODY_BYTES_MAX:
            crossing.run.count("truncated")
            crossing.close(found, dump({"truncated": self._bytes}))
            return
        if self._refused:
            crossing.spec.hole = self._refused
            crossing.close(found, dump({"truncated": self._bytes, "why": self._refused}))
            return
        heard = [event for event in self._events if event[0] == GOT and isinstance(event[2], str)]
        texts = crossing.run.redactor.messages([event[2] for event in heard], crossing.spec.redactions)
        raw = [[*event[:2], self._raw.get(number, event[2])] for number, event in enumerate(self._events)]
        for event, text in zip(heard, texts, strict=True):
            event[2] = text
        if self.read_meta is not None:
            crossing.spec.meta.update(guard.guarded("reading a conversation", self.read_meta, self._events) or {})
        response: dict[str, Any] = {"messages": self._events, "end": end}
        crossing.spec.raw = {"messages": raw, "end": end}
        for name, part in (("error", error), ("extra", extra)):
            if part:
                crossing.spec.raw[name] = part
                response[name] = crossing.run.redactor.value(part, crossing.spec.redactions)
        if error and self._chain:
            crossing.spec.meta[CHAIN] = chains.redact(self._chain, crossing.run.redactor)
        crossing.close(found, dump(response))

    # ── serving ─────────────────────────────────────────────────────────────────────────────────────
    def _load(self, response: str) -> None:
        crossing, recorded = self.crossing, self.crossing.served
        if recorded is None:
            return
        crossing.spec.meta.update(recorded.meta)
        crossing.close(Outcome(recorded.outcome), response)
        try:
            value = json.loads(response)
            if "truncated" in value:
                why = value.get("why") or f"{value['truncated']} bytes"
                raise self._session.at_hole(
                    f"call {recorded.number} ({recorded.boundary}) was not recorded whole: {why}"
                )
            self._events = value["messages"]
            self.end = value["end"]
            self.error, self.extra = value.get("error", {}), value.get("extra", {})
        except (ValueError, KeyError, TypeError) as exc:
            raise self._session.broken(f"call {recorded.number} of the recording has no usable response") from exc
        self._sent = [event for event in self._events if event[0] == SENT]
        self._got: list[tuple[int, Message | Quit]] = []
        said = before_ms = 0
        for side, elapsed_ms, message in self._events:
            said += side == SENT
            if side != SENT:
                heard = _decode(message) if side == GOT else Quit((elapsed_ms - before_ms) / 1e3)
                self._got.append((said, heard))
            before_ms = elapsed_ms

    def follow(self, *, is_said_at_once: bool = False) -> None:
        """Keep noting the agent's progress; not for a single answer, which comes whether or not it is read.

        `is_said_at_once` is for a library that reads the agent's messages ahead of those that the agent receives.
        """
        self._is_followed = True
        self._said_at_once = len(self._sent) if is_said_at_once else 0
        self._note_progress()

    def _note_progress(self) -> None:
        if self._is_followed:
            said = self._said_at_once or min(self._said, len(self._sent))
            self._session.read_part(self.crossing, said + self._heard)

    @property
    def _session(self) -> Answers:
        return self.crossing.answers

    def say(self, message: Message) -> None:
        """Compare the agent's next message. Raises: ReplayMiss if it differs from the recorded one."""
        with self._changed:
            number = self._said
            self._said += 1
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()
        self._note_progress()
        now = self._encode(SENT, message)
        recorded = self._sent[number][2] if number < len(self._sent) else None
        if recorded != now and (recorded is not None or self.end != "closed"):
            raise self._session.changed_message(self.crossing, number, _text(recorded), _text(now))
        if recorded is None:
            raise self._session.overrun(self.crossing)

    @property
    def owed(self) -> int:
        """The number of messages the agent must still send before it receives the next one, or the end."""
        needed = self._got[self._heard][0] if self._heard < len(self._got) else len(self._sent)
        return max(0, needed - self._said)

    @property
    def is_over(self) -> bool:
        """Whether all messages have been delivered."""
        return self._heard >= len(self._got)

    def hear(self) -> Message | Quit | None:
        """Return the next message for the agent; None at the end. Waits until the agent has sent those before it."""
        with self._changed:
            if not self.is_over and self.owed:
                self._changed.wait_for(lambda: not self.owed, config.CANCEL_WAIT_MS / 1000)
        return self._take()

    async def hear_async(self) -> Message | Quit | None:
        """As `hear`, on an event loop."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + config.CANCEL_WAIT_MS / 1000
        while not self.is_over and self.owed and loop.time() < deadline:
            future: asyncio.Future[None] = loop.create_future()
            with self._changed:
                self._waiters.append(partial(loop.call_soon_threadsafe, _wake, future))
            await asyncio.wait([future], timeout=deadline - loop.time())
        return self._take()

    def _take(self) -> Message | Quit | None:
        if self.is_over:
            return None
        if self.owed:
            number = self._said
            raise self._session.changed_message(self.crossing, number, _text(self._sent[number][2]), "(nothing)")
        message = self._got[self._heard][1]
        self._heard += 1
        self._note_progress()
        return message

    def compare_limit(self, given_up: Quit, limit: float | None) -> None:
        """Note a wait for a message that was given up when recorded, and would last longer now."""
        why, served = describe_change(given_up.after_s, limit, has_expired=True), self.crossing.served
        if why and served is not None:
            self._session.gate.note_late(served.end_seq, why)

    def overrun(self) -> ReplayMiss:
        """Return the error for an agent that listens longer than when recorded."""
        return self._session.overrun(self.crossing)

    def broken(self, message: str) -> ReplayMiss:
        """Return the error for our own failure; the replay is no longer identical."""
        return self._session.broken(message)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _decode(message: Any) -> Message:
    return unstored_bytes(message) if isinstance(message, dict) else str(message)


def _text(message: Any) -> str:
    return message if isinstance(message, str) else dump(message)


def begin_conversation(build: Callable[[Run], Spec]) -> Conversation | None:
    """Open a call; None if it is passed through unrecorded. Raises: ReplayMiss if the recording has no answer."""
    run = active_run()
    if run is None or is_suppressed() or is_plumbing(run):
        return None
    crossing = begin(build)
    return None if crossing is None else Conversation(crossing)
