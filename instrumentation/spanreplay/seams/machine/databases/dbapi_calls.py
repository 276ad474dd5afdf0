"""What the agent does with a stand-in for a connection or cursor, as calls: methods, attributes, rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases import dbapi_values as values
from spanreplay.seams.machine.databases.dbapi_arguments import describe_method, held_arguments
from spanreplay.seams.machine.databases.dbapi_family import Behind, Driver, Family, behind
from spanreplay.seams.machine.effects import describe_effect
from spanreplay.seams.machine.outside.native_connections import settled

__all__ = [
    "FETCHES",
    "Asking",
    "Rows",
    "ask",
    "before_call",
    "close",
    "count_together",
    "describe_ask",
    "describe_rows",
    "fetch",
    "joined",
    "read",
    "real_of",
    "take_pending",
    "wanted_rows",
    "write",
]

_STATE: Final = ("description", "rowcount", "lastrowid")
"""Attributes of a cursor that its statements change; recorded with each call that changed them."""
_MISSING: Final = object()
_TOGETHER: Final = 4
"""So many rows are read one by one; from then on more at a time."""
_TOGETHER_MAX: Final = 256
_BEGINS: Final = ("exec", "callproc", "nextset", "scroll", "query")
"""Beginnings of methods after which a cursor has other rows."""
FETCHES: Final = ("fetchone", "fetchmany", "fetchall")
_LOCAL: Final = ("commit", "rollback", "cursor")
"""Methods of a connection that never connect anew."""


class _Closing(threading.local):
    is_on = False


_closing: Final = _Closing()
"""Whether this thread closes an object: what a pool does meanwhile with the connection behind it is no call either."""


class Asking:
    """One question to a driver's object: how the answer is recorded, and what the agent gets."""

    __slots__ = ("_given", "_kept", "held", "what")

    def __init__(self, held: Behind, what: str) -> None:
        self.held, self.what = held, what
        self._given: list[Any] = []
        self._kept: list[Any] = []

    def _refer(self, value: Any) -> dict[str, Any]:
        stand_in, is_new = self.held.family.hold(value)
        self._kept.append(stand_in)  # until the agent has it
        found = behind(stand_in)
        return {"class": found.path, "number": found.number, "is_new": is_new}

    def insist(self) -> None:
        """Raise the driver's own error if there is no object behind the stand-in."""
        if self.held.real is None:
            raise self.held.family.driver.fail(self.what)

    def record(self, value: Any) -> dict[str, Any]:
        """Return an answer as it is recorded."""
        held, family = self.held, self.held.family
        packed = _pack(held, value, self._refer)
        is_method = packed[0] == values.METHOD  # maybe of an object behind this one
        self._given.append(
            family.method(family.hold(held.real)[0], packed[1]) if is_method else _wrap(held, self.what, value, packed)
        )
        _note_unknown(family.driver, self.what, packed)
        state = guard.guarded("a cursor's state", _look, held, self._refer)
        return {"value": packed, "state": state} if state else {"value": packed}

    def give(self, answer: Any) -> Any:
        """Return what the agent gets: the driver's own value, or what was recorded."""
        given = self._given[0] if self._given else _serve(self.held, self.what, answer)
        if self.held.family.driver.is_async and values.is_held(given):
            self.held.family.note_given(self.held, behind(given))
        return given


def _resolve(held: Behind, what: str, describe: Callable[[], Any], live: Callable[[], Any]) -> Any:
    """Ask the driver's object inside a call, or serve what was recorded; `live` returns the driver's own value."""
    asking = Asking(held, what)

    def run_live() -> Any:
        asking.insist()
        return asking.record(live())

    try:
        if _closing.is_on or recorded_run() is None:
            return asking.give(run_live())
        answer = _call(held.family, what, describe, run_live)
    except BaseException:
        held.state.clear()  # whatever it is now
        raise
    return asking.give(answer)


def _call(family: Family, what: str, describe: Callable[[], Any], live: Callable[[], Any]) -> Any:
    return call_sync(describe, live) if family.setup is None else family.setup.call(what, describe, live)


def _pack(held: Behind, value: Any, refer: Callable[[Any], Any]) -> list[Any]:
    driver = held.family.driver
    packed = guard.guarded("a driver's value", values.pack, value, driver.packages, driver.module, refer)
    return packed or [values.UNKNOWN, values.describe_class(type(value))]


def _serve(held: Behind, what: str, answer: Any) -> Any:
    family = held.family

    def make(tag: str, content: Any) -> Any:
        if tag == values.OBJECT:
            return family.find(content)
        if tag == values.METHOD:
            stand_in = family.by_number.get(held.number)
            return family.method(stand_in, content)
        if tag == values.AWAITABLE:
            return family.pend(held, what, None, content and [unpacked(content)])
        if tag == values.ROW:
            return _make_row(held, content)
        raise _at_gap(family.driver, what, content)

    def unpacked(packed: Any) -> Any:
        return values.unpack(packed, family.driver.packages, make)

    for name, packed in (answer.get("state") or {}).items():
        held.state[name] = unpacked(packed)
    return unpacked(answer["value"])


def _make_row(held: Behind, content: dict[str, Any]) -> Any:
    made = values.Row(content["cells"])
    vars(made)["_spanreplay_class"] = content["class"]
    vars(made)["_spanreplay_names"] = tuple(column[0] for column in held.state.get("description") or ())
    return made


def _wrap(held: Behind, what: str, value: Any, packed: list[Any]) -> Any:
    """Return a driver's value as the agent gets it: its objects as stand-ins, everything else as it is."""
    tag, content = packed
    if tag == values.OBJECT:
        return held.family.hold(value)[0]
    if tag == values.AWAITABLE:
        return held.family.pend(held, what, value, content and [_wrap(held, what, value.result(), content)])
    if not values.has_objects(packed):
        return value
    if tag in (values.LIST, values.TUPLE):
        found = [_wrap(held, what, each, below) for each, below in zip(value, content, strict=True)]
        return found if tag == values.LIST else tuple(found)
    return {key: _wrap(held, what, value[key], below) for key, below in content.items()}


def _note_unknown(driver: Driver, what: str, packed: list[Any]) -> None:
    tag, content = packed
    if tag == values.UNKNOWN:
        run = active_run()
        if run is not None:
            run.hole(_say_gap(driver, what, content))
    elif tag in (values.LIST, values.TUPLE, values.ROW):
        for each in content["cells"] if tag == values.ROW else content:
            _note_unknown(driver, what, each)
    elif tag == values.DICT:
        for each in content.values():
            _note_unknown(driver, what, each)
    elif tag == values.AWAITABLE and content:
        _note_unknown(driver, what, content)


def _say_gap(driver: Driver, what: str, path: str) -> str:
    return f"{driver.name}.{what} gave a value of {path.replace(':', '.')}, which is not recorded"


def _at_gap(driver: Driver, what: str, path: str) -> BaseException:
    run = active_run()
    if run is not None:
        run.resolver.leave_out(_say_gap(driver, what, path))
    return driver.fail(what)


def _look(held: Behind, refer: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what a call has changed of the attributes that every cursor has."""
    if not held.is_cursor:
        return {}
    found = {}
    for name in _STATE:
        try:
            value = getattr(held.real, name)
        except Exception:  # noqa: BLE001, S112 -- a driver's own: the attribute is optional
            continue
        before = held.state.get(name, _MISSING)
        if before is _MISSING or (before is not value and before != value):
            held.state[name] = value
            driver = held.family.driver
            found[name] = values.pack(value, driver.packages, driver.module, refer)
            _note_unknown(driver, f"{held.shape.__name__}.{name}", found[name])
    return found


def ask(stand_in: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method."""
    held = behind(stand_in)
    args = before_call(held, name, args, kwargs)

    def live() -> Any:
        given, named = held_arguments(args, kwargs, real_of)
        if name in _LOCAL or held.is_cursor or held.family.driver.is_async:
            return getattr(held.real, name)(*given, **named)
        with settled():
            return getattr(held.real, name)(*given, **named)

    result = _resolve(held, name, lambda: describe_ask(held, name, args, kwargs), live)
    if name == "__exit__":
        held.is_closed = True
    return result


def describe_ask(held: Behind, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Describe the call of a method."""
    described = describe_method(held.prefix, held.shape, name, args, kwargs)
    more = {**held.marks, **(held.shown if name in FETCHES else {})}
    return described._replace(arguments={**described.arguments, **more}) if more else described


def before_call(held: Behind, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a method's arguments as they can be recorded; drop rows that its call makes obsolete."""
    args = tuple(list(each) if _is_iterator(each) else each for each in args)
    if name == "scroll" and held.pending:
        args = (args[0] - len(held.pending), *args[1:]) if _is_relative(args, kwargs) else args
    if name.startswith(_BEGINS):
        held.pending, held.rows, held.together = [], None, 0
    return args


def _is_relative(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "relative")
    return bool(args) and mode == "relative"


def real_of(value: Any) -> Any:
    """Return the driver's object behind one of our stand-ins."""
    if not values.is_held(value):
        return value
    held = behind(value)
    if held.real is None:
        raise held.family.driver.fail("a value of the recording")
    return held.real


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__") and not values.is_held(value) and not hasattr(value, "read")


def close(held: Behind, live: Callable[[], Any]) -> Any:
    """Close for the first time: not a call, since a pool or a collection may do so at any time."""
    held.is_closed = True
    if held.real is None:
        return None
    before, _closing.is_on = _closing.is_on, True
    try:
        return live()
    except Exception:
        run = recorded_run()
        if run is not None:
            run.hole(f"{held.family.driver.name}: closing a {held.cls.__name__} failed, which is not recorded")
        raise
    finally:
        _closing.is_on = before


# ── Attributes ──────────────────────────────────────────────────────────────────────────────────────
def read(held: Behind, name: str) -> Any:
    """Return an attribute."""
    driver = held.family.driver
    if name in held.state and held.real is None:
        return held.state[name]
    if name in held.kept:
        return held.kept[name]
    if name in held.state:
        value, known = getattr(held.real, name), held.state[name]
        run = recorded_run()
        if run is not None and value is not known and value != known:
            run.hole(f"{driver.name}: {held.shape.__name__}.{name} has changed by itself, which is not recorded")
        return value
    shown = {"attribute": f"{held.shape.__name__}.{name}"}

    def describe() -> Any:
        return describe_effect(f"{held.prefix}.get", shown, Effect.READ)

    return _resolve(held, f"{held.shape.__name__}.{name}", describe, lambda: getattr(held.real, name))


def write(held: Behind, name: str, value: Any) -> None:
    """Set an attribute."""
    driver = held.family.driver
    if values.pack(value, driver.packages, driver.module, lambda _: 0)[0] == values.DATA:
        held.kept.pop(name, None)
    else:
        held.kept[name] = value

    def describe() -> Any:
        described = describe_method(held.prefix, held.shape, "set", (value,), {})
        return described._replace(arguments={"attribute": f"{held.shape.__name__}.{name}", **described.arguments})

    _resolve(held, f"{held.shape.__name__}.{name}", describe, lambda: setattr(held.real, name, real_of(value)))


# ── Rows ────────────────────────────────────────────────────────────────────────────────────────────
def fetch(stand_in: Any, name: str, args: tuple[Any, ...]) -> Any:
    """Return rows: first those that were read already."""
    held = behind(stand_in)
    if name == "__next__":
        return next(Rows(stand_in))
    if not held.pending:
        return _next_row(held) if name == "fetchone" else ask(stand_in, name, args, {})
    if name == "fetchone":
        return held.pending.pop()
    size = None if name == "fetchall" else wanted_rows(stand_in, args)
    left = take_pending(held, size)
    if len(left) == size:
        return left
    return joined(left, ask(stand_in, name, args if size is None else (size - len(left),), {}))


def joined(left: list[Any], rest: Any) -> Any:
    """Return rows that were read already with further ones, in a sequence of the driver's type."""
    rows = [*left, *rest]
    return tuple(rows) if type(rest) is tuple else rows


def wanted_rows(stand_in: Any, args: tuple[Any, ...]) -> int:
    """Return how many rows `fetchmany` is asked for."""
    return int(args[0] if args and isinstance(args[0], int) else stand_in.arraysize)


def take_pending(held: Behind, size: int | None) -> list[Any]:
    """Return at most so many rows of those that were read already; without the None that may have ended them."""
    rows = [row for row in reversed(held.pending) if row is not None]
    taken = rows if size is None else rows[:size]
    is_enough = len(taken) == size
    held.pending = [*held.pending[: -len(rows) or None], *rows[len(taken) :][::-1]] if is_enough else []
    return taken


def count_together(held: Behind) -> int:
    held.together += 1
    return 1 if held.together <= _TOGETHER else min(2 ** (held.together - _TOGETHER), _TOGETHER_MAX)


def _next_row(held: Behind) -> Any:
    """Return the next row; with it further ones are read, the more the longer this goes on."""
    count = count_together(held)

    def live() -> Any:
        found: list[Any] = []
        while len(found) < count:
            row = held.real.fetchone()
            found.append(row)
            if row is None:
                break
        return found

    rows = _resolve(held, "fetchone", lambda: describe_rows(held, "fetchone", count), live)
    held.pending = rows[:0:-1]
    return rows[0]


def describe_rows(held: Behind, name: str, count: int) -> Any:
    shown = {"rows": count} if count > 1 else {}
    return describe_effect(f"{held.prefix}.{name}", {**shown, **held.shown}, Effect.READ)


class Rows:
    """Iterates over a cursor or another object of the driver."""

    def __init__(self, stand_in: Any) -> None:
        self._stand_in = stand_in

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        held = behind(self._stand_in)
        if held.pending:
            return held.pending.pop()
        count = count_together(held) if held.is_cursor else 1

        def live() -> Any:
            if held.rows is None:
                held.rows = iter(held.real)
            return [each for _, each in zip(range(count), held.rows, strict=False)]

        rows = _resolve(held, "rows", lambda: describe_rows(held, "next", count), live)
        if not rows:
            held.rows, held.together = None, 0
            raise StopIteration
        held.pending = rows[:0:-1]
        return rows[0]
