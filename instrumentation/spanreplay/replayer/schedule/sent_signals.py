"""Sends a replay the signals that reached a handler of the program when recorded, each where it came.

A signal has a turn like every completion. Where the main thread runs an event loop, the loop sends it between the same
two callbacks. During a recorded call, it is sent before the call's answer goes out. Anywhere else, the main thread is
followed, instruction by instruction, from the completion before to the instruction that was interrupted; if it does not
get there, the signal comes before its next call. The handler itself is run by Python, as for every signal.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not in the stubs; the functions of signal are wrapped
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, Final

from spanreplay.model.call import CallRecord, Outcome
from spanreplay.model.own_threads import make_lock
from spanreplay.replayer.schedule.pace import thread_of
from spanreplay.runtime.order.loops import running_loop
from spanreplay.runtime.order.order import LoopClock, Order
from spanreplay.runtime.order.received_signals import Received, is_of_program, written
from spanreplay.runtime.order.signal_names import IN_LOOP, IN_PAUSE, Arrival, CodePlace, find_signals

_LANE: Final = "main"
_LOCK_S: Final = 0.2
_SEARCH_S: Final = 2.0
"""How long the main thread is followed: code that has changed may never come to the place."""
_main: Final = threading.main_thread()


class SentSignals:
    """The signals of one replay that are still to be sent; sends them to the main thread. Thread-safe."""

    def __init__(self, gate: Order, calls: Sequence[CallRecord]) -> None:
        self._gate = gate
        self._lock = make_lock()
        self._left = deque(find_signals(gate.timers or {}, _LANE))
        self._begun = sorted(call.seq for call in calls if not thread_of(call.lane)) if self._left else []
        """The numbers of the main thread's calls."""
        self._last_begun = -1
        wanted = {arrival.call for arrival in self._left} - {-1}
        self._calls = {call.seq: call for call in calls if call.seq in wanted} if wanted else {}
        self._sent: Arrival | None = None
        """The signal that was sent and has not reached its handler."""
        self._loop_clock: LoopClock | None = None
        self._follower: Follower | None = None
        self._raised: BaseException | None = None
        self._has_sent = False
        self._in_calls: dict[int, list[Arrival]] = {}
        """Number of a call that an event loop waits for → the signals that came during it."""

    def extend(self, longer: SentSignals) -> None:
        """Take those of a longer recording."""
        self._left, self._begun, self._calls = longer._left.copy(), longer._begun, longer._calls

    def leave_out(self) -> None:
        """Send none: this process is not the one that got them."""
        self._left.clear()

    # ── when one is sent ────────────────────────────────────────────────────────────────────────────
    def look(self) -> None:
        """Send the next signal, or have it sent at its place, if it is its turn."""
        # A handler may run in a thread that holds the gate, for which the thread that holds our lock waits
        if not self._left or not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            arrival = self._look()
        finally:
            self._lock.release()
        if arrival is not None:
            _signal.pthread_kill(_main.ident, arrival.number)

    def _look(self) -> Arrival | None:
        """Have the next signal sent at its place; return it if another thread is to send it."""
        arrival = self._find_due()
        if arrival is None:
            return None
        code = arrival.code
        if code is None:
            if self._loop_clock is not None and arrival.place != IN_PAUSE:
                self._left.popleft()
                self._give_to_loop(arrival, self._loop_clock)
            return None
        if threading.current_thread() is _main:
            if self._follower is None:
                self._follower = Follower(self, arrival, code)
            return None
        self._left.popleft()
        self._sent = arrival
        return arrival

    def send_in(self, recorded: CallRecord, clock: int) -> None:
        """Send the signals that came during a call of the main thread, before its completion at this clock.

        Raises: what the handler raises, unless that ended the call when it was recorded.
        """
        for arrival in self._in_calls.pop(recorded.seq, ()) if self._in_calls else ():
            self._send_within(arrival, recorded)
        while self._left and self._loop_clock is None and threading.current_thread() is _main:
            arrival = self._left[0]
            if arrival.call != recorded.seq or arrival.clock > clock or not _is_handled(arrival):
                return
            self._gate.wait_turn(arrival.clock)
            self._left.popleft()
            self._send_within(arrival, recorded)

    def _send_within(self, arrival: Arrival, recorded: CallRecord) -> None:
        try:
            self._send(arrival)
        except BaseException:
            if recorded.outcome == Outcome.OK.value:
                raise

    def begin(self, recorded: CallRecord | None) -> None:
        """A call has begun; signals came after some calls of the main thread had."""
        if self._left and recorded is not None and threading.current_thread() is _main:
            self._last_begun = max(self._last_begun, recorded.seq)
            self.look()

    def send_late(self) -> None:
        """Send a signal that is due before the main thread's next call: its place was not reached."""
        if not self._left or threading.current_thread() is not _main:
            return
        arrival = self._find_due()
        is_missed = arrival is not None and (arrival.place == IN_LOOP and running_loop() is None)
        if arrival is not None and (is_missed or arrival.code is not None):
            self.send(arrival)

    def send_in_pause(self) -> bool:
        """Send the signal that ended a pause of the main thread; False if none did."""
        if not self._left or self._left[0].place != IN_PAUSE or not _is_handled(self._left[0]):
            return False
        arrival = self._left[0]
        self._gate.wait_turn(arrival.clock)
        self.send(arrival)
        return True

    # ── event loops ─────────────────────────────────────────────────────────────────────────────────
    def enter(self, clock: LoopClock) -> None:
        """An event loop begins to run in the calling thread."""
        if self._left and threading.current_thread() is _main:
            self._loop_clock = clock
            self.look()

    def leave(self, clock: LoopClock) -> None:
        """An event loop has stopped; a signal that it had to send is sent by the next one."""
        if self._loop_clock is not clock:
            return
        with self._lock:
            self._loop_clock = None
            if self._sent is not None:
                self._left.appendleft(self._sent)
                self._sent = None

    def _give_to_loop(self, arrival: Arrival, loop_clock: LoopClock) -> None:
        if self._is_at_end_of_call(arrival):
            self._in_calls.setdefault(arrival.call, []).append(arrival)
            self._gate.complete(arrival.clock)
        else:
            self._sent = arrival
            loop_clock.hand_over(arrival.clock, self._send_in_loop, [arrival], None)

    def _is_at_end_of_call(self, arrival: Arrival) -> bool:
        """Whether the callback in which it came went on with the answer of a call, which nobody could cancel there."""
        call = self._calls.get(arrival.call)
        if call is None or call.outcome != Outcome.OK.value:
            return False
        following = self._gate.steps.following
        came, ended = following.get(arrival.clock), following.get(call.end_seq)
        return ended is not None and ended in (came, (arrival.clock, 0))

    def _send_in_loop(self, arrival: Arrival) -> None:
        self._has_sent = True
        try:
            self._send(arrival)
        except (KeyboardInterrupt, SystemExit):
            raise  # a loop lets these out of its callbacks
        except BaseException as exc:  # noqa: BLE001 -- raised again where a loop would not catch it
            self._raised = exc

    def take_sent(self) -> bool:
        """Called where an event loop looks for events: whether it has sent a signal since it did so last.

        When recorded, the signal came while the loop looked: what it wrote to the loop's own pipe is among the events
        of this look, after which the loop has not been idle. Raises: what the handler raised.
        """
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        has_sent, self._has_sent = self._has_sent, False
        return has_sent

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────
    def send(self, arrival: Arrival) -> None:
        """Send the next signal in the main thread. Raises: what its handler raises."""
        self._left.popleft()
        if self._follower is not None:
            self._follower.end()
            self._follower = None
        self._send(arrival)

    def _send(self, arrival: Arrival) -> None:
        self._sent = arrival
        if _is_handled(arrival):
            _signal.raise_signal(arrival.number)

    def arrive(self, number: int) -> None:
        """A signal has reached its handler: if it was sent here, what came after it may go on."""
        arrival = self._sent
        if arrival is None or arrival.number != number:
            return
        self._sent = None
        if not self._gate.is_over(arrival.clock):
            self._gate.complete(arrival.clock)

    def _find_due(self) -> Arrival | None:
        gate = self._gate
        while self._left and gate.is_over(self._left[0].clock):
            self._left.popleft()
        if not self._left or gate.is_open or self._sent is not None:
            return None
        arrival = self._left[0]
        if not gate.is_turn(arrival.clock) or not _is_handled(arrival):
            return None
        behind = bisect_left(self._begun, arrival.clock)
        has_begun = (
            behind == 0 or self._begun[behind - 1] <= self._last_begun or gate.is_covered(self._begun[behind - 1])
        )
        return arrival if has_begun else None


def _is_handled(arrival: Arrival) -> bool:
    """Whether the program has a handler for it now; without one the signal might end the process."""
    return isinstance(_signal.getsignal(arrival.number), Received)


class Follower:
    """Follows the main thread to the instruction that a signal interrupted, and sends it there.

    A debugger or coverage tool that traces the thread already is left alone.
    """

    def __init__(self, signals: SentSignals, arrival: Arrival, place: CodePlace) -> None:
        self._signals, self._arrival, self._place = signals, arrival, place
        self._offset: int | None = None
        self._behind: FrameType | None = None
        """The frame that is at the instruction already, and whose next instruction counts."""
        self._frames: list[FrameType] = []
        self._until = time.monotonic() + _SEARCH_S
        if sys.gettrace() is not None:
            return
        here = sys._getframe()
        here.f_trace_opcodes = True  # Python 3.12 traces no instructions if no frame wants them before `settrace`
        frame = here.f_back
        while frame is not None:
            if self._matches(frame.f_code):
                if self._behind is None and self._find_start(frame.f_code, frame.f_lasti) == self._offset:
                    self._behind = frame
                frame.f_trace, frame.f_trace_opcodes = self._step, True
                self._frames.append(frame)
            frame = frame.f_back
        sys.settrace(self._call)

    def end(self) -> None:
        """Stop following."""
        if sys.gettrace() == self._call:
            sys.settrace(None)
        for frame in self._frames:
            frame.f_trace, frame.f_trace_opcodes = None, False
        self._frames.clear()
        self._behind = None

    def _matches(self, code: CodeType) -> bool:
        place = self._place
        if code.co_name != place.function or code.co_filename.rpartition("/")[2] != place.file:
            return False
        if self._offset is None:
            self._offset = self._find_start(code, place.offset)
        return True

    @staticmethod
    def _find_start(code: CodeType, offset: int) -> int:
        """The offset of the instruction that includes this byte: a frame in a call may point behind its call."""
        import dis  # which no replay without a signal needs

        return max((each.offset for each in dis.get_instructions(code) if each.offset <= offset), default=0)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._matches(frame.f_code):
            if time.monotonic() > self._until and is_of_program(frame.f_back):
                self._signals.send(self._arrival)
            return None
        frame.f_trace, frame.f_trace_opcodes = self._step, True  # in this order: Python 3.13 else traces no instruction
        self._frames.append(frame)
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        is_there = frame is self._behind or frame.f_lasti == self._offset
        if event == "opcode" and is_there and written() >= self._place.written:
            self._signals.send(self._arrival)
            return None
        return self._step
