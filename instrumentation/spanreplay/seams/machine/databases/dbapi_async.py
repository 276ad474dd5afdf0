"""Drivers for asyncio that follow the Database API in all but this: aiomysql, asyncmy, `mysql.connector.aio`.

They are recognised by their shape: a package with a function `connect`, whose connections have `cursor`, and `commit`
and `rollback` as coroutine functions. What `connect` gives is a stand-in (`dbapi_objects.py`), and so is the driver's
own pool, if the package has a function `create_pool`: how a pool keeps its connections is its own affair, to get one is
a call.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import Patch, install_patch, recorded_run
from spanreplay.runtime.calls.function_calls import call_async
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.noted_effects import ASYNC_DRIVERS
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases import dbapi_values as values
from spanreplay.seams.machine.databases.dbapi_async_calls import Pending, act, close_root, is_coroutine, within
from spanreplay.seams.machine.databases.dbapi_family import Driver, behind
from spanreplay.seams.machine.databases.dbapi_objects import make_root, make_stand_in
from spanreplay.seams.machine.databases.dbapi_server import name_arguments, name_modes, name_server, read_signature
from spanreplay.seams.machine.databases.dbapi_setup import POOL, Server, SetUp, find_callers
from spanreplay.seams.machine.databases.postgres import is_replayed_here
from spanreplay.seams.machine.effects import describe_effect

__all__ = ["is_driver", "patch"]

_MAKES: Final = {"connect": "", "create_pool": POOL}
"""Functions that make a connection or a pool of them, and how the calls of what they make are named."""
_ENDS: Final = ("commit", "rollback")


def is_driver(module: Any, covered: frozenset[str]) -> bool:
    """Whether a module has the shape of such a driver; `covered` are packages with seams of their own."""
    connect = vars(module).get("connect")
    if not callable(connect) or isinstance(connect, type) or isinstance(getattr(connect, "__self__", None), Patch):
        return False
    if "." in module.__name__ and not hasattr(module, "__path__"):
        return False
    if values.package(module.__name__) in covered:
        return False
    ends = [is_coroutine(getattr(cls, name)) for cls in _connections(module) for name in _ENDS]
    return bool(ends) and all(ends)


def _connections(module: Any) -> tuple[type, ...]:
    """Return the classes of connections in the module and in that which defines its `connect`."""
    package, home = values.package(module.__name__), sys.modules.get(str(getattr(module.connect, "__module__", None)))
    known = {**vars(home or module), **vars(module)}.values()
    classes = [each for each in known if isinstance(each, type) and values.package(each.__module__) == package]
    return tuple(cls for cls in classes if all(hasattr(cls, name) for name in ("cursor", *_ENDS)))


def patch(module: Any, patches: Patches, places: Callable[[Any], list[Any]]) -> None:
    """Patch what makes a driver's connections and pools."""
    driver = Driver(module, is_async=True)
    driver.connections = _connections(module)
    for name, kind in _MAKES.items():
        real = vars(module).get(name)
        if not callable(real) or isinstance(real, type):
            continue
        opening = _Opening(driver, real, kind)
        call = opening.call_async if inspect.iscoroutinefunction(real) else opening.call
        for place in places(module):
            for known in [known for known, value in vars(place).items() if value is real]:
                install_patch(patches, place, known, _patched(call), Patch(place.__name__, known, real))


def _patched(call: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(call):

        async def make_async(_: Patch, *args: Any, **kwargs: Any) -> Any:
            return await call(*args, **kwargs)

        return make_async

    def make(_: Patch, *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return make


class _Opening:
    """A function that makes connections, or a pool."""

    def __init__(self, driver: Driver, real: Any, kind: str) -> None:
        self._driver, self._real, self._is_pool = driver, real, bool(kind)
        self._name = f"{driver.name}.{kind}" if kind else driver.name
        self._signature = read_signature(real)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return an awaitable, which is an `async with` block as well."""
        if _steps_aside():
            return self._real(*args, **kwargs)
        frames = find_callers()

        def ask(live: Callable[[], Awaitable[Any]]) -> Coroutine[Any, Any, Any]:
            return self._open(args, kwargs, frames, live)

        def leave(entered: Any, _: Any, live: Callable[[], Awaitable[Any]]) -> Coroutine[Any, Any, Any]:
            return close_root(entered, live)

        return Pending(lambda: self._real(*args, **kwargs), ask, leave)

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """Connect."""
        if _steps_aside():
            return await self._real(*args, **kwargs)
        return await self._open(args, kwargs, find_callers(), lambda: self._real(*args, **kwargs))

    async def _open(
        self, args: Any, kwargs: Mapping[str, Any], frames: Any, connect: Callable[[], Awaitable[Any]]
    ) -> Any:
        driver, is_pool = self._driver, self._is_pool
        named = name_arguments(self._signature, args, kwargs)
        server = name_server(named)
        made: list[Any] = []
        others: list[dict[str, Any]] = []

        def describe() -> Any:
            described = describe_effect(f"{self._name}.connect", name_modes(named, has_rows=True), Effect.READ)
            return described._replace(beside={"driver": self._name, "server": server})

        async def live() -> Any:
            made.append(await act(connect))
            return {"class": values.describe_class(type(made[0])), "setup": others}

        if recorded_run() is None:
            if is_replayed_here():
                return make_stand_in(driver, "", None, is_pool=is_pool)
            await live()
            return make_root(driver, made[0], None, is_pool=is_pool)
        known = driver.servers.setdefault(f"{self._name} {sorted(server.items())}", Server())
        others = known.list_asked()
        value = await call_async(describe, live)
        path = (value or {}).get("class", "")
        setup = SetUp(self._name, server, path, frames, known=known, told=len(others), is_pool=is_pool)
        root = (
            make_root(driver, made[0], setup, is_pool=is_pool)
            if made
            else make_stand_in(driver, setup.path, setup, is_pool=is_pool)
        )
        behind(root).tell_apart(1 if is_pool or frames else driver.count_made())
        return root


def _steps_aside() -> bool:
    """Whether connections stay as they are: those of a pool, and those of a recording that has the bytes beneath."""
    run = active_run()
    return within.get() or (run is not None and not run.resolver.has(ASYNC_DRIVERS))
