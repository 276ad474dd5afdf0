"""The answers of a replay, as the calls of a run ask for them; `replayer/resolve/session.py` has them."""

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
    """A run that goes on with a recorded one."""

    last_clock: int
    """The recorded run's last value of its clock."""
    has_gone_on: bool
    """Whether what happens now is not in the recording."""

    def take_answer(self) -> tuple[bool, str]:
        """(whether an answer is due, the answer of the person who resumes the run)."""

    def extend(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest of both."""


class Relocation(Protocol):
    """The folders of the recording as they are named here."""

    def __bool__(self) -> bool:
        """Whether any folder has another name here."""

    def text(self, text: str) -> str:
        """A recorded text with the folders of this machine."""


class RecordedEnvironment(Protocol):
    """The recorded variables, as a replay gives them; a recording gives none (`process/own_environment.py`)."""

    given: dict[str, str]
    """Name → value of the variables that were given."""

    def withhold(self, environ: Any) -> Any:
        """An environment for a live program, without recorded values; None if it is to stay what it is."""

    def find_in_request(self, url: str, headers: Iterable[tuple[str, str]]) -> Uses | None:
        """The recorded variables that a request uses."""

    def set_aside(self) -> Any:
        """A block in which nothing is given."""

    def read_file(self, path: str) -> None:
        """The program reads a `.env` file."""


class Parts(Protocol):
    """What the processes of a replay find, each for itself."""

    def join(self, shared: ProcessGroup, *, is_worker: bool) -> None:
        """Start anew, in a process that was just started."""

    def to_part(self) -> dict[str, Any]:
        """What this process has found, as JSON values."""

    def add_part(self, part: dict[str, Any]) -> None:
        """Take in what another process has found."""


class Plan(Protocol):
    """What a replay serves, and what goes live."""

    def may_go_live(self, boundary: str) -> bool:
        """Whether a call of this kind and name may go live."""


class Index(Protocol):
    """The recorded calls by their place."""

    used: set[int]
    """Numbers of the calls that the replay has made."""

    def at(self, lane: str, boundary: str, index: int) -> CallRecord | None:
        """The recorded call of a boundary in a lane."""

    def find_next(self, lane: str) -> CallRecord | None:
        """The earliest call of a lane that nobody has asked for."""

    def find_left(self, lane: str) -> CallRecord | None:
        """The first call in a lane, or below it, that nobody has asked for and nobody will."""


class EarlierUnit(Protocol):
    """A unit that is replayed before the judged one."""

    lane: str
    """Its root lane in this replay."""


class WarmUp(Protocol):
    """Replays earlier units before the judged one; `replayer/resolve/warm_up.py` has it."""

    def iter_left(self) -> Iterator[Any]:
        """Those that have not begun, in their order."""

    def is_before_judged(self) -> bool:
        """Whether the unit that the program has come to now comes before the judged one."""

    def claim(self, unit: Any) -> bool:
        """Whether the caller is the one to replay a unit."""

    def begin(self, unit: Any, run: Any) -> None:
        """A unit that was claimed begins."""

    def end(self, unit: Any, run: Any) -> None:
        """It is over."""

    def begin_judged(self, run: Any) -> None:
        """The unit that is judged begins."""


class Extent(Protocol):
    """How far a unit's recording goes in the replay of it."""

    lane: str
    """The root lane of the unit that is replayed now."""
    has_started: bool
    """Whether the start of the process is over."""
    is_over: bool
    """Whether the unit has given its output."""
    is_beside_main: bool
    """Whether another thread than the main one works on the unit."""

    @property
    def warm_up(self) -> WarmUp | None:
        """The units that are replayed first; None if there are none."""

    def is_outside(self, lane: str) -> bool:
        """Whether a lane is that of a background task, which goes on behind the start of the process."""


class EndedWorkers(Protocol):
    """Workers that their pool ended when recorded."""

    def wait_made(self, pool: str, gate: Any) -> None:
        """Wait until the workers of a pool have made the calls that they had made when it ended them."""


class HiddenValues(Protocol):
    """What the recording hides; `replayer/resolve/hidden.py` has it."""

    def open_response(self, redactor: Any, call: CallRecord) -> str:
        """The response of a call as it is served, before it is."""


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
        """The recorded run that this one goes on with."""

    @property
    def relocation(self) -> Relocation:
        """The folders of the recording as they are named here."""

    @property
    def recorded_env(self) -> RecordedEnvironment:
        """The recorded variables."""

    @property
    def plan(self) -> Plan:
        """What is served, and what goes live."""

    @property
    def index(self) -> Index:
        """The recorded calls by their place."""

    @property
    def parts(self) -> Parts:
        """What the processes of the replay find."""

    @property
    def has_gone_on(self) -> bool:
        """Whether the run has gone on past its recording."""

    def equip(self, run: Any) -> tuple[LockOrder, RunOrder, Resolver]:
        """Where threads of the run meet, where they go on, and what becomes of its calls."""

    @property
    def ended_workers(self) -> EndedWorkers:
        """Workers that their pool ended when recorded."""

    @property
    def extent(self) -> Extent | None:
        """How far the recording of a unit goes; None where no unit is replayed."""

    def stop(self, why: str) -> ReplayMiss:
        """End the replay here: what comes is not in the recording."""

    def is_played(self) -> bool:
        """Whether the agent has made every recorded call, and read every stream as far as it did."""

    def unplayed(self) -> tuple[list[CallRecord], int]:
        """Recorded calls that the agent has not made, and how many more lay inside served ones."""

    def resolve(self, crossing: Any) -> None:
        """Find the recorded answer of a call. Raises: ReplayMiss."""

    def settle_live(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """A call that went live has ended."""

    def check_sent(self, crossing: Any, path: str, recorded: object, now: object) -> None:
        """Compare a value that the agent sends in the midst of a call."""

    def read_part(self, crossing: Any, number: int) -> None:
        """The agent reads a part of a served stream."""

    def overrun(self, crossing: Any) -> ReplayMiss:
        """The agent reads further than it did when recorded."""

    def changed_message(self, crossing: Any, number: int, recorded: str, now: str) -> ReplayMiss:
        """The agent sends another message in a conversation."""

    def stall(self, crossing: Any) -> ReplayMiss:
        """The agent waits for what never comes."""

    def type_changed(self, crossing: Any, what: str, why: str) -> ReplayMiss:
        """A recorded value cannot be made here."""

    def at_hole(self, message: str) -> ReplayMiss:
        """The recording is incomplete here."""

    def broken(self, message: str) -> ReplayMiss:
        """The replay itself failed."""

    def deny_socket(self, address: str) -> ReplayMiss:
        """The agent opens a socket that no call accounts for."""


class Resolver(Protocol):
    """What becomes of the calls of a run; `calls/live_resolver.py` makes them, a replay's answers them. Thread-safe."""

    may_amend: bool
    """Whether a plan may change requests on their way, so that calls need a way to be made with others."""
    swallows_telemetry: bool
    """Whether what other tools report goes nowhere."""

    @property
    def variables(self) -> RecordedEnvironment:
        """The variables that are given to the agent."""

    @property
    def answers(self) -> Answers:
        """The replay that serves calls. Raises: AssertionError in a recording."""

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the recording: this one, or the one that is replayed."""

    def admits_call(self) -> bool:
        """Whether one more call may be in the run; else it is made, and is not."""

    def resolve(self, crossing: Any) -> None:
        """Set what a call is served, or leave it to be made. Raises: ReplayMiss."""

    def settle(self, crossing: Any, outcome: Outcome, response: str) -> None:
        """A call that was made has ended."""

    def find_recorded(self, crossing: Any) -> CallRecord | None:
        """The recorded call in the place of this one."""

    def fail(self, exc: Exception) -> None:
        """A call could not be described. Raises: ReplayMiss in a replay."""

    def leave_out(self, hole: str, miss: str = "") -> None:
        """The agent does something that no recording holds; what a recording says of it, and a replay (the same).

        Raises: ReplayMiss in a replay.
        """

    def broken(self, message: str) -> ReplayMiss:
        """What is raised where something of ours failed."""

    def overrun(self, crossing: Any) -> ReplayMiss:
        """What is raised where the agent reads further than it did when recorded."""
