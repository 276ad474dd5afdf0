"""Seam: every module of the Python Database API (PEP 249), recognised by its shape and not by its name.

Such a module has `apilevel`, `paramstyle`, `threadsafety` and `connect`. Each module is looked at once, when its import
has ended. Its connections and cursors are stand-ins (`dbapi_objects.py`) whose methods and attributes are calls; in a
replay none of them reaches a database. sqlite3, psycopg and DuckDB have seams of their own.
"""

from __future__ import annotations

import inspect
import sys
from importlib.machinery import ModuleSpec
from typing import Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import Patch, install_patch, recorded_run
from spanreplay.runtime.calls.function_calls import call_sync
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.noted_effects import DRIVERS, TOLD_APART
from spanreplay.runtime.run import active_run
from spanreplay.seams.machine.databases import dbapi_async
from spanreplay.seams.machine.databases.dbapi_family import Driver, behind
from spanreplay.seams.machine.databases.dbapi_objects import make_root, make_stand_in
from spanreplay.seams.machine.databases.dbapi_server import name_arguments, name_modes, name_server, read_signature
from spanreplay.seams.machine.databases.dbapi_setup import Server, SetUp
from spanreplay.seams.machine.databases.dbapi_values import describe_class
from spanreplay.seams.machine.databases.postgres import is_replayed_here
from spanreplay.seams.machine.effects import describe_effect
from spanreplay.seams.machine.outside.native_connections import settled
from spanreplay.seams.machine_rows import MACHINE

__all__ = ["install", "is_driver", "patch"]

_SHAPE: Final = ("apilevel", "paramstyle", "threadsafety")
_COVERED: Final = frozenset(
    trigger.partition(".")[0]
    for seam in MACHINE
    if __name__.rpartition(".")[0] == seam.implementation.rpartition(".")[0]
    for trigger in seam.triggers
) - {"importlib"}
"""Packages that have a seam of their own."""


class _WatchedSpec(ModuleSpec):
    """A module's specification until its import has ended; it is an ordinary one before and after."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "_initializing" and value is False:
            self.__class__ = ModuleSpec  # type: ignore[assignment]  # which it was
            _look_at(self.name)


_WatchedSpec.__name__, _WatchedSpec.__qualname__, _WatchedSpec.__module__ = (
    ModuleSpec.__name__, ModuleSpec.__qualname__, ModuleSpec.__module__,
)  # fmt: skip
_patches: list[Patches] = []
"""The patches of this process; empty once they are undone."""


def _look_at(name: str) -> None:
    module = sys.modules.get(name)
    if module is not None and _patches:
        _adopt(module)


def _adopt(module: Any) -> None:
    names = getattr(module, "__dict__", None)
    if type(names) is not dict or "connect" not in names:
        return
    if dbapi_async.is_driver(module, _COVERED):
        guard.guarded("a database driver", dbapi_async.patch, module, _patches[-1], places)
    elif _SHAPE[0] in names and is_driver(module):
        guard.guarded("a database driver", patch, module, _patches[-1])


def is_driver(module: Any) -> bool:
    """Whether a module has the shape that PEP 249 demands, and no seam of its own."""
    names = vars(module)
    connect = names.get("connect")
    if not all(name in names for name in _SHAPE) or not callable(connect) or inspect.iscoroutinefunction(connect):
        return False
    owner = str(getattr(connect, "__module__", None) or "").partition(".")[0].lstrip("_")
    is_ours = isinstance(getattr(connect, "__self__", None), Patch)
    return not is_ours and owner not in _COVERED and module.__name__.partition(".")[0] not in _COVERED


def install(module: Any, patches: Patches) -> None:
    """Patch how modules are found; and the drivers that are imported already."""
    finder = module.PathFinder
    real = vars(finder)["find_spec"]
    ask = finder.find_spec

    def find_spec(fullname: str, path: Any = None, target: Any = None) -> Any:
        spec = ask(fullname, path, target)
        if type(spec) is ModuleSpec and spec.loader is not None:
            spec.__class__ = _WatchedSpec
        return spec

    find_spec.__doc__ = getattr(real, "__doc__", None)
    patches.replace(finder, "find_spec", staticmethod(find_spec))
    _patches[:] = [patches]
    for each in tuple(sys.modules.values()):
        _adopt(each)


def patch(module: Any, patches: Patches) -> None:
    """Patch what makes a driver's connections."""
    real = module.connect
    driver = Driver(module)
    signature = read_signature(real)
    makes: Any = getattr(real, "__new__", None)
    if type(real) is type and makes in (object.__new__, _make_plainly):  # a class that connects when it is called
        _patch_class(patches, driver, real, signature)
        return

    def call(_: Patch, *args: Any, **kwargs: Any) -> Any:
        return _connect(driver, real, signature, args, kwargs)

    for place in places(module):
        for name in [name for name, value in vars(place).items() if value is real and _connects(name, real)]:
            install_patch(patches, place, name, call, Patch(place.__name__, name, real))


def _make_plainly(kind: Any, /, *args: Any, **kwargs: Any) -> Any:
    return object.__new__(kind)


def _patch_class(patches: Patches, driver: Driver, cls: Any, signature: inspect.Signature | None) -> None:
    """Patch what makes the class's instances; its subclasses, which may be the agent's, make theirs as before."""

    def connect(*args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        made.__init__(*args, **kwargs)
        return made

    def make(kind: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kind is not cls:
            return object.__new__(kind)
        return _connect(driver, connect, signature, args, kwargs)

    # Without a `__new__` of its own once it had one, a class refuses arguments (Python 3.11)
    cls.__new__ = staticmethod(_make_plainly)
    patches.replace(cls, "__new__", staticmethod(make))


def _connects(name: str, real: Any) -> bool:
    """Whether what has this name is only called; a class that connects is also asked about."""
    return name.lower() == "connect" or not isinstance(real, type)


def places(module: Any) -> list[Any]:
    """Return the driver's module and those below its package, whose pools connect with a name of their own."""
    package = f"{module.__name__}."
    below = [each for name, each in tuple(sys.modules.items()) if name.startswith(package)]
    return [module, *(each for each in below if type(getattr(each, "__dict__", None)) is dict)]


def _connect(driver: Driver, real: Any, signature: inspect.Signature | None, args: Any, kwargs: Any) -> Any:
    run = active_run()
    if run is not None and not run.resolver.has(DRIVERS):  # an earlier recording has the requests beneath
        return real(*args, **kwargs)
    named = name_arguments(signature, args, kwargs)
    modes, server = name_modes(named), name_server(named)
    known = driver.servers.setdefault(str(sorted(server.items())), Server())
    others: list[dict[str, Any]] = []
    made: list[Any] = []

    def describe() -> Any:
        described = describe_effect(f"{driver.name}.connect", modes, Effect.READ)
        return described._replace(beside={"driver": driver.name, "server": server})

    def live() -> Any:
        with settled():
            made.append(real(*args, **kwargs))
        path = describe_class(type(made[0]))
        return {"class": path, "setup": others}

    if recorded_run() is None:
        if is_replayed_here():
            return make_stand_in(driver, "", None)
        live()
        return make_root(driver, made[0], None)
    others = known.list_asked()
    value = call_sync(describe, live)
    setup = SetUp(driver.name, server, (value or {}).get("class", ""), known=known, told=len(others))
    root = make_root(driver, made[0], setup) if made else make_stand_in(driver, setup.path, setup)
    if run is not None and run.resolver.has(TOLD_APART):
        behind(root).tell_apart(driver.count_made() if setup.is_direct else 1)
    return root
