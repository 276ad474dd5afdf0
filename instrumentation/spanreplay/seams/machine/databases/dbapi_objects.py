"""Stand-ins for the connections and cursors of a database driver: whatever the agent does with one is a call.

While recording, a stand-in holds the driver's own object and asks it inside a call; in a replay it has none, and
serves what was recorded. It passes as an instance of the driver's class. Objects that methods return (cursors, large
objects, sets of results) are held in the same way.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, Final

from spanreplay.seams.machine.databases import dbapi_async_calls as asynchronous
from spanreplay.seams.machine.databases import dbapi_values as values
from spanreplay.seams.machine.databases.dbapi_calls import Rows, ask, close, fetch, read, write
from spanreplay.seams.machine.databases.dbapi_family import Behind, Driver, Family, behind
from spanreplay.seams.machine.databases.dbapi_setup import SetUp

__all__ = ["StandIn", "make_root", "make_stand_in"]

_FETCHES: Final = ("fetchone", "fetchmany", "fetchall", "__next__")
_SPECIAL: Final = (
    "__len__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__call__", "__repr__", "__str__",
)  # fmt: skip


class StandIn(values.Held):
    """Passes as an instance of a driver's class."""

    __slots__ = ("__weakref__", "_spanreplay_held")

    @property  # type: ignore[misc]  # isinstance asks for it
    def __class__(self) -> Any:
        return behind(self).cls

    def __getattr__(self, name: str) -> Any:
        held = behind(self)
        if name.startswith("__") and name.endswith("__"):
            return getattr(held.cls, name) if held.real is None else getattr(held.real, name)
        static = held.find(name)
        if callable(static) and not isinstance(static, type):
            return Method(self, name)
        if isinstance(static, type):
            return static
        if isinstance(static, (staticmethod, classmethod)):
            return getattr(held.shape, name)
        return read(held, name)

    def __setattr__(self, name: str, value: Any) -> None:
        write(behind(self), name, value)

    def __enter__(self) -> Any:
        held = behind(self)
        if not held.is_cursor:  # which may commit, or give a cursor
            return ask(self, "__enter__", (), {})
        if held.real is not None:
            held.real.__enter__()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> Any:
        held = behind(self)
        if not held.is_cursor:
            return ask(self, "__exit__", (kind, value, trace), {})
        return close(held, lambda: held.real.__exit__(kind, value, trace))

    def __aenter__(self) -> Coroutine[Any, Any, Any]:
        return asynchronous.enter(self)

    def __aexit__(self, kind: Any, value: Any, trace: Any) -> Coroutine[Any, Any, Any]:
        return asynchronous.leave(self, kind, value, trace)

    def __aiter__(self) -> Any:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return asynchronous.iterate(self)

    def __await__(self) -> Any:
        held = behind(self)
        return asynchronous.pend(held, "await", held.real, None).__await__()

    def __iter__(self) -> Iterator[Any]:
        return iter(Rows(self))

    def __next__(self) -> Any:
        return next(Rows(self))

    def __len__(self) -> int:
        return int(ask(self, "__len__", (), {}))

    def __getitem__(self, key: Any) -> Any:
        return ask(self, "__getitem__", (key,), {})

    def __contains__(self, key: Any) -> bool:
        return bool(ask(self, "__contains__", (key,), {}))

    def __setitem__(self, key: Any, value: Any) -> None:
        ask(self, "__setitem__", (key, value), {})

    def __delitem__(self, key: Any) -> None:
        ask(self, "__delitem__", (key,), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ask(self, "__call__", args, kwargs)

    def __repr__(self) -> str:
        return str(ask(self, "__repr__", (), {}))

    def __str__(self) -> str:
        return str(ask(self, "__str__", (), {}))


_ASYNC: Final = ("__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__")
_OPTIONAL: Final = ("__enter__", "__exit__", "__iter__", "__next__", *_ASYNC, *_SPECIAL)
_BASE: Final = {name: vars(StandIn)[name] for name in _OPTIONAL}
for _name in _OPTIONAL:
    delattr(StandIn, _name)


def _has(cls: type, name: str) -> bool:
    """Whether a class has a special method that is not everybody's."""
    return getattr(cls, name, None) not in (None, getattr(object, name, None))


def _make(family: Family, cls: type, real: Any, number: int) -> Any:
    classes = family.driver.classes
    made_class = classes.get(cls)
    if made_class is None:
        has = {name: method for name, method in _BASE.items() if cls is object or _has(cls, name)}
        space = {"__slots__": (), "__module__": cls.__module__, "__doc__": cls.__doc__, **has}
        made_class = classes[cls] = type(cls.__name__, (StandIn,), space)
    made: Any = object.__new__(made_class)
    object.__setattr__(made, "_spanreplay_held", Behind(family, cls, real, number))
    family.by_number[number] = made
    return made


def make_root(driver: Driver, real: Any, setup: SetUp | None, *, is_pool: bool = False) -> Any:
    """Return the stand-in of a connection that was made."""
    if values.is_held(real):
        return real
    driver.learn(type(real))
    family = Family(driver, _make, Method, asynchronous.pend)
    family.setup, family.is_pool = setup, is_pool
    return family.hold(real)[0]


def make_stand_in(driver: Driver, path: str, setup: SetUp | None, *, is_pool: bool = False) -> Any:
    """Return the stand-in of a connection that a replay does not make; `path` names its class."""
    cls = values.find_named(driver.packages | {values.package(path)}, path) if path else None
    if not isinstance(cls, type):
        cls = getattr(driver.module, "Connection", None)
    cls = cls if isinstance(cls, type) else object
    driver.learn(cls)
    family = Family(driver, _make, Method, asynchronous.pend)
    family.count, family.setup, family.is_pool = 1, setup, is_pool
    return _make(family, cls, None, 1)


class Method:
    """A bound method of a stand-in."""

    __slots__ = ("__name__", "__self__")

    def __init__(self, stand_in: Any, name: str) -> None:
        self.__self__, self.__name__ = stand_in, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held = behind(self.__self__)
        if held.family.driver.is_async:
            return asynchronous.call_method(self.__self__, self.__name__, args, kwargs)
        if self.__name__ == "close" and not held.is_closed and not args and not kwargs:
            return close(held, lambda: held.real.close())
        if self.__name__ in _FETCHES and not kwargs:
            return fetch(self.__self__, self.__name__, args)
        return ask(self.__self__, self.__name__, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(behind(self.__self__).cls, self.__name__), name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Method):
            return False
        return other.__self__ is self.__self__ and other.__name__ == self.__name__

    def __hash__(self) -> int:
        return hash((id(self.__self__), self.__name__))
