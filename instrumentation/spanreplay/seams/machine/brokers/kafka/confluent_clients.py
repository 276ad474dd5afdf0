"""Objects of confluent-kafka's C types: what is known of each, and how it is made, or not made in a replay."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import read
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.reads import make_loose
from spanreplay.runtime.run import Run, active_run
from spanreplay.seams.machine.brokers.kafka import looks
from spanreplay.seams.machine.brokers.kafka.askers import asking_run, note_unseen
from spanreplay.seams.machine.brokers.kafka.calls import CLIENTS, Settings, describe
from spanreplay.seams.machine.brokers.kafka.reports import Report
from spanreplay.seams.machine.brokers.kafka.values import KafkaFailure, carry, is_of_client, make_failure, show, uncarry
from spanreplay.seams.machine.databases.postgres import is_replayed_here

_STATE: Final = "_spanreplay_kafka"
_MADE: Final = make_loose("environment", "kafka.made")
_FAILED: Final = ""
_LIVE_ONLY: Final = frozenset({"oauth_cb"})
"""Callbacks whose results the library needs: they are part of its own work."""
_DELIVERY: Final = ("on_delivery", "dr_cb")
"""Settings that are called back for each message for which `produce` names nobody else."""


class _Making(threading.local):
    is_inner = False


making: Final = _Making()
"""Whether the calling thread makes a client for one above it."""


class Sent:
    """A message for whose delivery the program is called back."""

    __slots__ = ("callback", "key", "number", "report", "run", "value")

    def __init__(self, run: Run | None, number: int, callback: Any, key: Any, value: Any) -> None:
        self.run, self.number, self.callback, self.key, self.value = run, number, callback, key, value
        self.report: Report | None = None
        """How it is reported where a look of another run does so."""


class State:
    """What is known of one client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.callbacks: dict[str, Any] = {}
        """The program's callbacks by the name of the setting or argument."""
        self.on_delivery: Any = None
        self.is_inner = False
        """Whether it carries the messages of a client above it, whose methods are the calls."""
        self.taken_above = 0
        """How many coroutines of a client above it take a message, which it is asked for in another thread."""
        self.wake: Callable[[], None] | None = None
        """Makes the library's object after all, for a call that the plan lets go live; None where it is made."""
        self._numbers: dict[str, Any] = {}
        self.sent: dict[tuple[str, int], Sent] = {}
        """In a replay: the messages that are not reported yet, by run and number."""

    def next_number(self, run: Run) -> int:
        """Return how many messages of this run came before."""
        numbers = self._numbers
        if run.run_id not in numbers:
            while len(numbers) >= _RUNS_MAX:
                numbers.pop(next(iter(numbers)), None)
            numbers[run.run_id] = itertools.count()
        return int(next(numbers[run.run_id]))

    def describe(self, name: str, arguments: Mapping[str, Any], effect: Effect) -> FunctionCall:
        """Describe a call of this client."""
        return describe(self.settings, name, arguments, effect)

    def woken(self, live: Callable[[], Any]) -> Any:
        """Run `live` with the library's object."""
        if self.wake is not None:
            wake, self.wake = self.wake, None
            wake()
        return live()

    def awake(self, live: Callable[[], Any]) -> Any:
        """As `woken`. Raises: KafkaFailure for an exception of the library's own."""
        return carry(lambda: self.woken(live))


_RUNS_MAX: Final = 1_000
"""How many runs may use a client at the same time."""


def run_of(client: Any) -> tuple[Run | None, State | None]:
    """Return the run that a use of a client belongs to, and what is known of the client."""
    state = state_of(client)
    if state is not None and state.is_inner:
        return None, state
    run = asking_run(CLIENTS)
    if run is None:
        if looks.looking_run() is None:
            note_unseen()
        return None, state
    if state is None:
        run.resolver.leave_out("a client of Kafka that was made before recording began was used: it is not recorded")
        return None, None
    return run, state


def state_of(client: Any) -> State | None:
    """Return what is known of a client; None if it was made before its class was replaced."""
    space = getattr(client, "__dict__", None)
    return None if space is None else space.get(_STATE)


# ── Callbacks ───────────────────────────────────────────────────────────────────────────────────────
def called_back(state: State, name: str, callback: Any) -> Callable[..., Any]:
    """Return what the library calls in place of one of the program's callbacks."""
    state.callbacks[name] = callback

    def call(*args: Any) -> Any:
        run = active_run() if state.is_inner else None
        if run is not None and run.resolver.connects:
            run.resolver.leave_out(f"{name} of a client of Kafka on an event loop was called: that is not recorded")
        return looks.call_back(name, lambda: [show(each) for each in args], lambda: callback(*args))

    return call


def _is_callback(name: str, value: Any) -> bool:
    named = name.replace(".", "_")
    return callable(value) and named not in _LIVE_ONLY and (named.endswith("_cb") or named.startswith("on_"))


def _take_callbacks(state: State, given: Mapping[str, Any], *, is_producer: bool) -> dict[str, Any]:
    """Return settings with our callbacks in place of the program's."""
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if is_producer and name.replace(".", "_") in _DELIVERY and callable(value):
            state.on_delivery = taken[name] = value  # `produce` names it for each message
        elif _is_callback(name, value):
            taken[name] = called_back(state, name.replace(".", "_"), value)
        else:
            taken[name] = value
    return taken


# ── Making ──────────────────────────────────────────────────────────────────────────────────────────
def make_client(real: Callable[..., None], client: Any, args: Any, kwargs: Any) -> None:
    """Make the library's object behind a client, or in a replay only note its settings."""
    given = args[0] if args and isinstance(args[0], Mapping) else {}
    state = State(Settings({**given, **kwargs}))
    is_producer = hasattr(client, "produce")
    try:
        taken = [_take_callbacks(state, given, is_producer=is_producer), *args[1:]] if args and given else args
        named = _take_callbacks(state, kwargs, is_producer=is_producer)
    except Exception:  # noqa: BLE001 -- whatever the library objects to
        taken, named = args, kwargs
    vars(client)[_STATE] = state
    state.is_inner = making.is_inner

    def live() -> None:
        with plumbing():
            real(client, *taken, **named)

    if asking_run(CLIENTS) is None:
        live()
        return
    state.settings.hide()
    if is_replayed_here():
        state.wake = live
        if state.is_inner:
            return
        if read(_MADE, lambda: "1") == _FAILED:
            _fail(state, None)
        return
    if state.is_inner:
        live()
        return
    try:
        live()
    except Exception as exc:  # noqa: BLE001 -- raised again below
        read(_MADE, lambda: _FAILED)
        error = exc
    else:
        read(_MADE, lambda: "1")
        return
    _fail(state, error)


def _fail(state: State, error: Exception | None) -> None:
    """Record or serve the exception of a client that was not made."""

    def live() -> None:
        if error is not None:
            raise make_failure(error) if is_of_client(type(error)) else error

    try:
        call_sync(lambda: state.describe("client", {}, Effect.READ), live)
    except KafkaFailure as failure:
        exc = uncarry(failure)
    else:
        return
    raise exc


def make_class(raw: type, real_init: Callable[..., None], real_len: Callable[[Any], int] | None) -> type:
    """Return a class that stands for a C type where programs make objects of it."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 -- it is one
        make_client(real_init, self, args, kwargs)

    space: dict[str, Any] = {"__init__": __init__, "__module__": raw.__module__, "__doc__": raw.__doc__}
    if real_len is not None:
        space["__len__"] = lambda self: count(real_len, self)
        space["__bool__"] = lambda self: True
    return type(raw.__name__, (raw,), space)


_WAITING: Final = make_loose("environment", "kafka.waiting")


def count(real: Callable[[Any], int], client: Any) -> int:
    """Return how many messages a client has not delivered."""
    state = state_of(client)
    if state is None or state.is_inner or asking_run(CLIENTS) is None:
        return real(client)
    return int(read(_WAITING, lambda: real(client)))
