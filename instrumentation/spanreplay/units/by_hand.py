"""Units that the program marks itself: `with spanreplay.run(input=…):`, or as a function decorator.

    with spanreplay.run(name="triage", input=ticket, user=ticket.user) as unit:
        unit.result(answer(ticket))

    @spanreplay.run(name="triage")
    def triage(ticket): ...                       its arguments are the input, its return value is the output

    spanreplay.run(name="triage").each(messages(), triage)      each message is the input, see `consumed`

Any number of units may run at a time, in threads and in tasks. It does nothing when recording is off or inside
another unit.

In a replay, the warm-up units run first, then the unit with the recorded input, and then the process ends. Other calls
of a decorated function are skipped and return None. A `with` block can't be skipped: the replay stops with an error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, TypeVar

from spanreplay.model.call import Effect, Kind
from spanreplay.model.errors import ConfigError, ReplayMiss
from spanreplay.model.lane_names import is_earlier, is_within
from spanreplay.model.own_threads import make_lock
from spanreplay.runtime.answers import EarlierUnit
from spanreplay.runtime.calls.function_calls import FunctionCall, call_sync, describe_function_call
from spanreplay.runtime.lanes import Lane, current_lane, inside_lane
from spanreplay.runtime.run import Run, active_run
from spanreplay.units import factory
from spanreplay.units.consumed import Whose, consume
from spanreplay.units.play import UNITS_APART, end_replay
from spanreplay.units.start import has_units
from spanreplay.units.stated import LANE, find_unit
from spanreplay.units.under_way import UnderWay, open_under_way

__all__ = ["UnitBlock", "run"]

F = TypeVar("F", bound=Callable[..., Any])
INPUT, OUTPUT = "input", "output"
_KIND: Final = Kind.COMPUTE.value
_NONE: Final = object()
_starting: Final = make_lock()


def run(*, name: str = "", input: Any = _NONE, user: str = "", session: str = "") -> UnitBlock:  # noqa: A002 -- the word of the thing
    """Return a unit of work that is its own run; see the module.

    `name` names the run (default: the agent's name), `input` is the unit's input, `user` and `session` say for whom it
    works.
    """
    return UnitBlock(name, input, user, session)


class UnitBlock:
    """One unit, entered once; as a decorator it makes a new one for each call. Any number may be open."""

    def __init__(self, name: str, given: Any, user: str, session: str) -> None:
        self._name, self._given, self._user, self._session = name, given, user, session
        self._result: Any = _NONE
        self._unit: UnderWay | None = None
        self._lane: inside_lane | None = None
        """In a replay: the lane of the unit's calls, if the unit is replayed."""
        self._claimed = ""
        """The root lane of that unit, once it is known."""
        self._earlier: EarlierUnit | None = None
        """That unit, if it is a warm-up unit."""

    @property
    def run_id(self) -> str:
        """The id of the unit's run; empty if it is not recorded."""
        return "" if self._unit is None else self._unit.run.run_id

    def result(self, value: Any) -> None:
        """Set the unit's output, which becomes the run's last call."""
        self._result = value

    def __enter__(self) -> UnitBlock:
        replayed = _replaying()
        if replayed is not None:
            self._enter_replay(replayed)
            return self
        self._unit = open_under_way(self._name, self._user, self._session)
        if self._unit is not None:
            self._unit.__enter__()
            self._unit.note(lambda: self._note(INPUT, Effect.READ, self._given))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._lane is not None:
            return self._end_replay(kind)
        if self._unit is None:
            return False
        if kind is None or self._result is not _NONE:
            self._unit.note(lambda: self._note(OUTPUT, Effect.WRITE, self._result))
        self._unit.__exit__(kind, exc, traceback)
        return False

    def __call__(self, function: F) -> F:
        """Make each call of a function a unit. Raises: ConfigError for a generator, whose work happens later."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            hint = "put `with spanreplay.run(...)` around the code that reads it"
            raise ConfigError(f"{function.__qualname__} is a generator: its call is no unit of work", hint=hint)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def work_async(*args: Any, **kwargs: Any) -> Any:
                unit = self._for_call(function, args, kwargs)
                if unit._is_left_out():
                    return None
                result = None  # stays None if an earlier unit can't be replayed completely
                with unit:
                    result = await function(*args, **kwargs)
                    unit.result(result)
                return result

            return work_async  # type: ignore[return-value]  # same arguments and result as the function

        @functools.wraps(function)
        def work(*args: Any, **kwargs: Any) -> Any:
            unit = self._for_call(function, args, kwargs)
            if unit._is_left_out():
                return None
            result = None
            with unit:
                result = function(*args, **kwargs)
                unit.result(result)
            return result

        return work  # type: ignore[return-value]  # same arguments and result as the function

    def each(
        self, source: Any, handle: Callable[[Any], Any], *, user: Whose = "", session: Whose = ""
    ) -> Coroutine[Any, Any, None] | None:
        """Handle each message of an iterable as a unit. For an asynchronous iterable, await the result.

        `user` and `session`: for whom the unit works, or functions that derive it from a message. Raises: ConfigError
        for an asynchronous function with a synchronous source; any exception of the source or the function.
        """
        name = self._name or getattr(handle, "__qualname__", "")
        return consume(name, source, handle, user or self._user, session or self._session)

    def _for_call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> UnitBlock:
        given: Any = {"args": list(args), "kwargs": kwargs} if self._given is _NONE else self._given
        return UnitBlock(self._name or function.__qualname__, given, self._user, self._session)

    def _describe(self, name: str, effect: Effect, value: Any) -> FunctionCall:
        arguments = {} if value is _NONE else {name: value}
        return FunctionCall(_KIND, name, effect.value, arguments, prints=False)

    def _note(self, name: str, effect: Effect, value: Any) -> None:
        call_sync(lambda: self._describe(name, effect, value), lambda: None)

    # ── replay ──────────────────────────────────────────────────────────────────────────────────────
    def _is_left_out(self) -> bool:
        """Whether this is a replay that doesn't include this unit."""
        replayed = _replaying()
        return replayed is not None and not self._claim(replayed)

    def _claim(self, replayed: Run) -> bool:
        """Whether this unit is to be replayed; each recorded unit is claimed once."""
        extent = None if replayed.resolver.keeps else replayed.resolver.answers.extent
        if self._claimed or extent is None:
            return bool(self._claimed)
        spec = describe_function_call(replayed, lambda: self._describe(INPUT, Effect.READ, self._given))
        index, warm_up = replayed.resolver.answers.index, extent.warm_up

        def is_input_of(lane: str) -> bool:
            recorded = index.at(lane, f"{_KIND}:{INPUT}", 0)
            return recorded is not None and recorded.request == spec.request

        is_early = warm_up is not None and warm_up.is_before_judged()
        if warm_up is not None:
            for unit in warm_up.iter_left():
                if is_input_of(unit.lane) and warm_up.claim(unit):
                    self._claimed, self._earlier = unit.lane, unit
                    return True
        if is_input_of(LANE) and not is_early:
            self._claimed = LANE
        return bool(self._claimed)

    def _enter_replay(self, replayed: Run) -> None:
        if replayed.resolver.keeps:
            return
        if not self._claim(replayed):
            raise replayed.resolver.answers.broken(
                "a unit comes before the recorded one, and a `with` block can't be left out: "
                "make it a function with the decorator spanreplay.run(...)"
            )
        extent = replayed.resolver.answers.extent
        with _starting:  # warm-up units may begin in several threads
            if extent is None or not extent.has_started:
                factory.end_start(replayed)
        if extent is not None and extent.warm_up is not None:
            if self._earlier is None:
                extent.warm_up.begin_judged(replayed)
            else:
                extent.warm_up.begin(self._earlier, replayed)
        self._lane = inside_lane(Lane(self._claimed))
        self._lane.__enter__()
        self._note(INPUT, Effect.READ, self._given)

    def _end_replay(self, kind: type[BaseException] | None) -> bool:
        """Whether to suppress the exception: a ReplayMiss in a warm-up unit, which gets no verdict."""
        if kind is None or self._result is not _NONE:
            with contextlib.suppress(ReplayMiss):  # the session has noted it
                self._note(OUTPUT, Effect.WRITE, self._result)
        replayed = active_run()
        if self._earlier is None or self._lane is None or replayed is None or replayed.resolver.keeps:
            end_replay()
        self._lane.__exit__(None, None, None)
        self._lane = None
        extent = replayed.resolver.answers.extent
        if extent is not None and extent.warm_up is not None:
            extent.warm_up.end(self._earlier, replayed)
        return kind is not None and issubclass(kind, ReplayMiss)


def _replaying() -> Run | None:
    """Return the run, if this is a replay of a unit; None elsewhere and inside the unit.

    Raises: ReplayMiss in the replay of a process whose units have their own runs.
    """
    current = active_run()
    if current is None or current.resolver.keeps:
        return None
    lane = current_lane(current.root_lane).path
    if is_within(lane, LANE) or is_earlier(lane):
        return None
    answers = current.resolver.answers
    if find_unit(answers.recording.root.env) is not None:
        factory.divide("units by hand lie between other work of their program, which a fork can't leave out")
        return current
    if has_units(answers.recording):
        raise answers.stop(UNITS_APART)
    return None
