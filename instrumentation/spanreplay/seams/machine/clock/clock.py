"""Seam: the clock as the agent's code reads it: `time`, `datetime`, `date`.

`datetime.datetime` and `datetime.date` remain the same classes: only their methods are replaced inside the types, so
that `type(datetime.now()) is datetime`, and pydantic, pickle and isinstance see no difference.

time-machine rewrites the C functions that are replaced here, and takes pointers to them when it is imported: the
originals are in place at that moment, otherwise the interpreter would crash. During time travel, the agent reads the
time that it travels to. freezegun replaces attributes and can be used on top of this.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

import wrapt

from spanreplay.runtime.agent_patches import TypeMembers, draws, patch_bare, patch_with, read, read_beside
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.reads import Source, source

_getframe: Final = sys._getframe
_NS: Final = 1_000_000_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_real_time: Final = time.time
_UTCNOW_WARNING: Final = (
    "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future version. Use timezone-aware "
    "objects to represent datetimes in UTC: datetime.datetime.now(datetime.UTC)."
)


# ── time.* ──────────────────────────────────────────────────────────────────────────────────────────
def _float_ns(value: float) -> int:
    return int(value * _NS)


def _number(name: str, family: str) -> Source:
    to_ns: Callable[[Any], int] = int if name.endswith("_ns") else _float_ns
    return source("clock", f"time.{name}", family=family, to_ns=to_ns)


NUMBERS: Final = {
    name: _number(name, family)
    for name, family in (
        ("time", "wall"),
        ("time_ns", "wall"),
        ("monotonic", "monotonic"),
        ("monotonic_ns", "monotonic"),
        ("perf_counter", "perf_counter"),
        ("perf_counter_ns", "perf_counter"),
        ("process_time", "process_time"),
        ("process_time_ns", "process_time"),
        ("thread_time", "thread_time"),
        ("thread_time_ns", "thread_time"),
    )
}


def _pack_struct(value: time.struct_time) -> list[Any]:
    return [list(value), value.tm_zone, value.tm_gmtoff]


def _unpack_struct(written: list[Any]) -> time.struct_time:
    fields, zone, offset = written
    return time.struct_time((*fields, zone, offset))


_LOCALTIME: Final = source("clock", "time.localtime", pack=_pack_struct, unpack=_unpack_struct, family="wall")
_GMTIME: Final = source("clock", "time.gmtime", pack=_pack_struct, unpack=_unpack_struct, family="wall")
_CTIME: Final = source("clock", "time.ctime", family="wall")
_ASCTIME: Final = source("clock", "time.asctime", family="wall")
_STRFTIME: Final = source("clock", "time.strftime", family="wall")


def _at(shift_ns: int) -> float:
    return _real_time() + shift_ns / _NS


def _patch_numbers(patches: Patches) -> None:
    for name, numbers in NUMBERS.items():
        if not hasattr(time, name):
            continue
        real = getattr(time, name)
        if name.endswith("_ns"):
            patch_bare(patches, time, name, numbers, lambda shift, real=real: real() + shift)
        else:
            patch_bare(patches, time, name, numbers, lambda shift, real=real: real() + shift / _NS)


def _patch_loops(patches: Patches, real: Callable[[], float]) -> None:
    """Let asyncio's event loops read the real clock directly: several times per iteration, never for the agent."""
    import asyncio.base_events

    passed = time.monotonic

    def loop_time(self: Any) -> Any:
        clock = time.monotonic
        return real() if clock is passed else clock()  # freezegun's, on top of ours

    loop_time.__name__, loop_time.__qualname__ = "time", "BaseEventLoop.time"
    loop_time.__doc__ = asyncio.base_events.BaseEventLoop.time.__doc__
    patches.replace(asyncio.base_events.BaseEventLoop, "time", loop_time)


def _patch_calendar(patches: Patches) -> None:
    """Patch the functions that use the current time when the time is left out."""
    asctime, strftime, localtime = time.asctime, time.strftime, time.localtime
    for name, shown in (("localtime", _LOCALTIME), ("gmtime", _GMTIME), ("ctime", _CTIME)):
        real = getattr(time, name)

        def ask(seconds: Any = None, /, *, real: Any = real, shown: Source = shown) -> Any:
            if seconds is not None:
                return real(seconds)
            return read(shown, real, lambda shift: real(_at(shift)))

        patch_with(patches, time, name, ask, draws)

    def ask_asctime(*given: Any) -> Any:
        if given:
            return asctime(*given)
        return read(_ASCTIME, asctime, lambda shift: asctime(localtime(_at(shift))))

    def ask_strftime(form: str, *given: Any) -> Any:
        if given:
            return strftime(form, *given)
        return read(_STRFTIME, lambda: strftime(form), lambda shift: strftime(form, localtime(_at(shift))))

    patch_with(patches, time, "asctime", ask_asctime, draws)
    patch_with(patches, time, "strftime", ask_strftime, draws)


# ── datetime.* ──────────────────────────────────────────────────────────────────────────────────────
def _pack_naive(value: dt.datetime) -> str:
    return dt.datetime.isoformat(value) + ("f" if value.fold else "")


def _unpack_naive(written: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(written.removesuffix("f"))
    return value.replace(fold=1) if written.endswith("f") else value


def _pack_aware(value: dt.datetime) -> int:
    return (value - _EPOCH) // dt.timedelta(microseconds=1)


def _unpack_aware(written: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=written)


def _naive_ns(value: dt.datetime) -> int:
    return int(value.replace(tzinfo=None).timestamp() * 1_000_000) * 1000


def _utc_ns(value: dt.datetime) -> int:
    return _pack_aware(value.replace(tzinfo=dt.timezone.utc)) * 1000


_NOW: Final = source("clock", "datetime.now", pack=_pack_naive, unpack=_unpack_naive, family="wall", to_ns=_naive_ns)
_NOW_TZ: Final = source(
    "clock", "datetime.now(tz)", pack=_pack_aware, unpack=_unpack_aware, family="wall",
    to_ns=lambda v: _pack_aware(v) * 1000,
)  # fmt: skip
_UTCNOW: Final = source(
    "clock", "datetime.utcnow", pack=_pack_naive, unpack=_unpack_naive, family="wall", to_ns=_utc_ns
)
_TODAY: Final = source("clock", "date.today", pack=lambda v: v.toordinal(), unpack=dt.date.fromordinal, family="wall")


def _as(cls: Any, value: dt.datetime) -> Any:
    """Return the same point in time as an instance of `cls`."""
    if type(value) is cls:
        return value
    return cls(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond,
        tzinfo=value.tzinfo, fold=value.fold,
    )  # fmt: skip


def _in_zone(cls: Any, value: dt.datetime, tz: dt.tzinfo) -> Any:
    if value.tzinfo is not tz:
        value = tz.fromutc(value.astimezone(dt.timezone.utc).replace(tzinfo=tz))
    return _as(cls, value)


def _later(value: Any, shift_ns: int) -> Any:
    return value + dt.timedelta(microseconds=shift_ns // 1000)


def _patch_datetime(patches: Patches) -> None:
    members = TypeMembers(dt.datetime)
    real_now = vars(members)["now"]
    is_deprecated = sys.version_info >= (3, 12)

    def now(cls: Any, tz: Any = None) -> Any:
        frame = _getframe(1)
        if not draws(frame):
            real = real_now.__get__(None, cls)
            return read_beside(lambda: real(tz), lambda shift: _later(real(tz), shift), frame)
        if tz is None:
            draw = real_now.__get__(None, cls)
            return _as(cls, read(_NOW, draw, lambda shift: _later(draw(), shift)))

        def draw_tz() -> Any:
            return real_now.__get__(None, cls)(tz)

        if not isinstance(tz, dt.tzinfo):
            return draw_tz()  # raises the usual error
        return _in_zone(cls, read(_NOW_TZ, draw_tz, lambda shift: _later(draw_tz(), shift)), tz)

    def utcnow(cls: Any) -> Any:
        if is_deprecated:
            warnings.warn(_UTCNOW_WARNING, DeprecationWarning, stacklevel=2)

        def draw() -> Any:
            return real_now.__get__(None, cls)(dt.timezone.utc).replace(tzinfo=None)

        frame = _getframe(1)
        if not draws(frame):
            return read_beside(draw, lambda shift: _later(draw(), shift), frame)
        return _as(cls, read(_UTCNOW, draw, lambda shift: _later(draw(), shift)))

    patches.replace(members, "now", _named(now, dt.datetime, real_now))
    patches.replace(members, "utcnow", _named(utcnow, dt.datetime, vars(members)["utcnow"]))


def _patch_date(patches: Patches) -> None:
    members = TypeMembers(dt.date)

    def today(cls: Any) -> Any:
        # Does what the interpreter does, without reading the clock through `time.time`
        if not draws(_getframe(1)):
            return cls.fromtimestamp(_real_time())
        if issubclass(cls, dt.datetime):
            moment = read(_NOW, lambda: cls.fromtimestamp(_real_time()), lambda s: cls.fromtimestamp(_at(s)))
            return _as(cls, moment)
        day = read(_TODAY, lambda: cls.fromtimestamp(_real_time()), lambda s: cls.fromtimestamp(_at(s)))
        return day if type(day) is cls else cls(day.year, day.month, day.day)

    patches.replace(members, "today", _named(today, dt.date, vars(members)["today"]))


def _named(function: Any, owner: type, real: Any) -> Any:
    function.__qualname__ = f"{owner.__name__}.{function.__name__}"
    function.__module__ = "datetime"
    function.__doc__ = real.__doc__
    return classmethod(function)


# ── time-machine ────────────────────────────────────────────────────────────────────────────────────
_TIME_MACHINE: Final = "_time_machine"


class _Clock:
    """The patches of the clock; they make way while time-machine takes pointers to the functions that they replace."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._monotonic = time.monotonic
        self.is_installed = True
        """Whether the patches are in place, or return once time-machine is imported."""

    def put(self) -> int:
        """Patch; return how many attributes are patched."""
        # Up to 2.x, time-machine takes its pointers only when time travel begins
        take: Callable[[], object] | None = getattr(sys.modules.get(_TIME_MACHINE), "patch_if_needed", None)
        if take is not None:
            take()
        _patch_numbers(self._patches)
        _patch_loops(self._patches, self._monotonic)
        _patch_calendar(self._patches)
        _patch_datetime(self._patches)
        _patch_date(self._patches)
        return self._patches.total

    def remove(self) -> None:
        """Restore the originals."""
        self._patches.undo()

    def put_again(self, module: Any) -> None:
        """Patch again: time-machine is imported."""
        if self.is_installed and not self._patches.total:
            self.put()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """An import finder that finds nothing: time-machine is about to be imported."""
        if name == _TIME_MACHINE and self._patches.total:
            self.remove()
            wrapt.register_post_import_hook(self.put_again, _TIME_MACHINE)


def install(module: Any, patches: Patches) -> None:
    """Patch `time` and, with it, `datetime`."""
    clock = _Clock()
    total = clock.put()
    sys.meta_path.insert(0, clock)
    patches.replace(_Undo(clock), "is_installed", False)
    patches.beside += total - 1


class _Undo:
    """An attribute that undoes patches when it is restored."""

    is_installed = True

    def __init__(self, clock: _Clock) -> None:
        object.__setattr__(self, "clock", clock)

    def __delattr__(self, name: str) -> None:
        clock = vars(self)["clock"]
        clock.is_installed = False
        clock.remove()
        if clock in sys.meta_path:
            sys.meta_path.remove(clock)

    def __setattr__(self, name: str, value: Any) -> None:
        return
