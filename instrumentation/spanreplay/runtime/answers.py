"""The answers of a replay, as a run's calls use them; `replayer/resolve/session.py` implements them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.model.errors import ReplayMiss

if TYPE_CHECKING:
    from spanreplay.runtime.order.lock_order import LockOrder
    from spanreplay.runtime.order.order import Order
    from spanreplay.runtime.order.run_order import RunOrder
    from spanreplay.runtime.process.uses import Uses
    from spanreplay.runtime.processes import ProcessGroup


class Continuation(Protocol):
    """A run that continues a recorded one."""

    last_clock: int
    """The last value of the recorded run's Lamport clock."""
    has_gone_on: bool
    """Whether the run has gone past the end of the recording."""

    @property
    def acts(self) -> bool:
        """Whether it has gone on, and what it does now counts outside of the replay."""

    def take_answer(self) -> tuple[bool, str]:
        """(whether an answer is due, the answer of the person who resumes the run)."""

    def extend(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest of both runs."""


class Relocation(Protocol):
    """Maps the folders of this machine, and the number of this process, to those of the recording."""

    def __bool__(self) -> bool:
        """Whether any of them is another one here."""

    def whole_text(self, value: str) -> str:
        """A text in the recording's words, with small numbers that may mean something else."""

    def text_towards(self, then: str, now: str) -> str:
        """A text in the recording's words; `then` if only the small number of the process differs."""

    def find_file(self, path: str) -> str:
        """The path of a recorded file on this machine."""


class RecordedEnvironment(Protocol):
    """The recorded variables that a replay provides; a recording provides none (`process/own_environment.py`)."""

    given: dict[str, str]
    """Name → value of the variables that were provided."""

    def withhold(self, environ: Any) -> Any:
        """An environment for a live program, without recorded values; None if it is to stay unchanged."""

    def find_in_request(self, url: str, headers: Iterable[tuple[str, str]]) -> Uses | None:
        """The recorded variables that a request uses."""

    def set_aside(self) -> Any:
        """A block in which no recorded variables are provided."""

    def read_file(self, path: str) -> None:
        """Note that the program reads a `.env` file."""


class Parts(Protocol):
    """Findings that each process of a replay makes for itself."""

    def join(self, shared: ProcessGroup, *, is_worker: bool) -> None:
        """Start afresh in a process that was just started."""

    def to_part(self) -> dict[str, Any]:
        """This process's findings, as JSON values."""

    def add_part(self, part: dict[str, Any]) -> None:
        """Add the findings of another process."""


class Plan(Protocol):
    """Decides which calls a replay serves and which go live."""

    def may_go_live(self, boundary: str) -> bool:
        """Whether a call of this kind and name may go live."""


class Index(Protocol):
    """The recorded calls by their place."""

    used: set[int]
    """Numbers of the calls that the replay has made."""

    def at(self, lane: str, boundary: str, index: int) -> CallRecord | None:
        """The recorded call of a boundary in a lane."""

    def find_next(self, lane: str) -> CallRecord | None:
        """The earliest call of a lane that has not been requested."""

    def find_left(self, lane: str) -> CallRecord | None:
        """The first call in a lane, or below it, that has not been requested and never will be."""


class EarlierUnit(Protocol):
    """A unit that is replayed before the judged one."""

    lane: str
    """Its root lane in this replay."""


class WarmUp(Protocol):
    """Replays earlier units before the judged one; implemented in `replayer/resolve/warm_up.py`."""

    def iter_left(self) -> Iterator[Any]:
        """The units that have not begun, in order."""

    def is_before_judged(self) -> bool:
        """Whether the unit that the program has reached comes before the judged one."""

    def claim(self, unit: Any) -> bool:
        """Whether the caller is the one to replay a unit."""

    def begin(self, unit: Any, run: Any) -> None:
        """Note that a claimed unit begins."""

    def end(self, unit: Any, run: Any) -> None:
        """Note that a unit has ended."""

    def begin_judged(self, run: Any) -> None:
        """Note that the judged unit begins."""


class Extent(Protocol):
    """The part of a unit's recording that its replay covers."""

    lane: str
    """The root lane of the unit that is being replayed."""
    has_started: bool
    """Whether the start of the process is over."""
    is_over: bool
    """Whether the unit has given its output."""
    is_beside_main: bool
    """Whether a thread other than the main one works on the unit."""

    def has_in_flight(self) -> bool:
        """Whether calls were in progress when the start was over."""
        ...

    def note_started(self) -> None:
        """Note that the start of the process is over."""

    @property
    def warm_up(self) -> WarmUp | None:
        """The units that are replayed first; None if there are none."""

    def is_outside(self, lane: str) -> bool:
        """Whether a lane belongs to a background task that goes on after the start of the process."""


class EndedWorkers(Protocol):
    """Workers that their pool ended when recorded."""

    def wait_made(self, pool: str, gate: Any) -> None:
        """Wait until a pool's workers have made the calls that they had made when the pool ended them."""


class HiddenValues(Protocol):
    """The values that the recording hides; implemented in `replayer/resolve/hidden.py`."""

    def open_response(self, redactor: Any, call: CallRecord) -> str:
        """The response of a call as it will be served."""


class Answers(Protocol):
    """Serves the calls of a run from a recording. Thread-safe."""

    recording: Recording
    on_end: list[Callable[[], None]]
    is_stopped: bool
    has_reached_frontier: bool
    live_tokens: int

    @property
    def gate(self) -> Order:
        """The order in which results go out."""

    @property
    def hidden(self) -> HiddenValues:
        """The values that redaction took out of the recording."""

    @property
    def continuation(self) -> Continuation | None:
        """The recorded run that this one continues."""

    @property
    def relocation(self) -> Relocation:
        """Maps the recording's folders to those of this machine."""

    @property
    def recorded_env(self) -> RecordedEnvironment:
        """The recorded variables."""

    @property
    def plan(self) -> Plan:
        """Decides which calls are served and which go live."""

    @property
    def index(self) -> Index:
        """The recorded calls by their place."""

    @property
    def parts(self) -> Parts:
        """The findings of the replay's processes."""

    @property
    def has_gone_on(self) -> bool:
        """Whether the run has gone past the end of its recording."""

    def equip(self, run: Any) -> tuple[LockOrder, RunOrder, Resolver]:
        """The lock acquisition order, the order of waits and ends, and the resolver of a run."""

    @property
    def ended_workers(self) -> EndedWorkers:
        """Workers that their pool ended when recorded."""

    @property
    def extent(self) -> Extent | None:
        """The part of a unit's recording that is replayed; None if no unit is replayed."""

    def stop(self, why: str) -> ReplayMiss:
        """End the replay here: what comes next is not in the recording."""

    def is_played(self) -> bool:
        """Whether the agent has made every recorded call, and read every stream as far as it was read when recorded."""

    def unplayed(self) -> tuple[list[CallRecord], int]:
        """Recorded calls that the agent has not made, and how many more lay inside served ones."""

    def resolve(self, crossing: Any) -> None:
        """Find the recorded answer of a call. Raises: ReplayMiss."""

    def settle_live(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """A call that went live has ended."""

    def check_sent(self, crossing: Any, path: str, recorded: object, now: object) -> None:
        """Compare a value that the agent sends during a call."""

    def read_part(self, crossing: Any, number: int) -> None:
        """The agent reads a part of a served stream."""

    def overrun(self, crossing: Any) -> ReplayMiss:
        """The agent reads further than when recorded."""

    def changed_message(self, crossing: Any, number: int, recorded: str, now: str) -> ReplayMiss:
        """The agent sends another message in a conversation."""

    def stall(self, crossing: Any) -> ReplayMiss:
        """The agent waits for something that never comes."""

    def type_changed(self, crossing: Any, what: str, why: str) -> ReplayMiss:
        """A recorded value can't be rebuilt here."""

    def at_hole(self, message: str) -> ReplayMiss:
        """The recording is incomplete here."""

    def broken(self, message: str) -> ReplayMiss:
        """The replay itself failed."""

    def deny_socket(self, address: str) -> ReplayMiss:
        """The agent opens a socket that no call accounts for."""


class Resolver(Protocol):
    """Decides a run's calls: `calls/live_resolver.py` makes them, a replay serves them. Thread-safe."""

    may_amend: bool
    """Whether a plan may change requests on their way, so that calls must be callable with other arguments."""
    swallows_telemetry: bool
    """Whether the telemetry of other tools is discarded."""
    connects: bool
    """Whether the agent's connections are real, except where a plan says otherwise."""
    keeps: bool
    """Whether what a later replay needs is kept."""

    @property
    def variables(self) -> RecordedEnvironment:
        """The variables that are provided to the agent."""

    @property
    def answers(self) -> Answers:
        """The replay that serves calls. Raises: AssertionError in a recording."""

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the recording: this one, or the one that is replayed."""

    def has(self, name: str) -> bool:
        """Whether this recording has what not every recording has; `name` is that of its environment's member."""

    def declare(self, name: str, value: Any = True) -> None:
        """State in the environment of a new recording what it has."""

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call this when a replay ends."""

    def insist(self) -> None:
        """The agent does something new. Raises: ReplayMiss after the end of a replay."""

    def join(self, shared: ProcessGroup) -> None:
        """Start afresh in a process that was just started."""

    def to_part(self) -> dict[str, Any]:
        """What the first process needs to know of this one, besides its calls; JSON values."""

    def add_parts(self, parts: Mapping[int, Mapping[str, Any]]) -> bool:
        """Add what other processes found; return whether that is all that counts of them."""

    def admits_call(self, *, is_http: bool) -> bool:
        """Whether one more call, of HTTP or not, may be part of the run; if not, its code runs as if unpatched."""

    def resolve(self, crossing: Any) -> None:
        """Set the response that a call is served, or leave it to be made. Raises: ReplayMiss."""

    def settle(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """A call that was made has ended."""

    def find_recorded(self, crossing: Any) -> CallRecord | None:
        """The recorded call in the place of this one."""

    def fail(self, exc: Exception) -> None:
        """A call could not be described. Raises: ReplayMiss in a replay."""

    def leave_out(self, hole: str, miss: str = "") -> None:
        """The agent does something that can't be recorded.

        `hole` describes it in a recording, `miss` in a replay (default: the same).

        Raises: ReplayMiss in a replay.
        """

    def broken(self, message: str) -> ReplayMiss:
        """The error to raise if something of ours failed."""

    def overrun(self, crossing: Any) -> ReplayMiss:
        """The error to raise if the agent reads further than when recorded."""
