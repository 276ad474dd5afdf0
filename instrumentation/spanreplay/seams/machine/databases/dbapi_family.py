"""What the stand-ins for one connection of a database driver share: the driver, and which objects they stand for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary, ref

from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.lanes import current_lane
from spanreplay.runtime.run import Run
from spanreplay.seams.machine.databases import dbapi_values as values
from spanreplay.seams.machine.databases import told_apart
from spanreplay.seams.machine.databases.dbapi_setup import CONNECTION, CURSOR, POOL, Server, SetUp

__all__ = ["MISSING", "Behind", "Driver", "Family", "behind"]

MISSING: Final = object()


class Driver:
    """One driver: its module, and the packages that its classes come from."""

    def __init__(self, module: Any, *, is_async: bool = False) -> None:
        self.module, self.is_async = module, is_async
        self.name = str(module.__name__)
        self.packages = frozenset({values.package(self.name)})
        self.servers: dict[str, Server] = {}
        self.connections: tuple[type, ...] = ()
        """An asynchronous driver's classes of connections, to which a pooled one passes on what it doesn't know."""
        self.classes: dict[type, type] = {}
        """Class of the driver → class of its stand-ins."""

    def learn(self, cls: type) -> None:
        """Note where the classes of a connection come from."""
        found = {str(each.__module__) for each in cls.__mro__}
        found |= {name for name, module in tuple(sys.modules.items()) if module is self.module}  # `install_as_MySQLdb`
        own = {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}
        self.packages |= {values.package(name) for name in own}

    def count_made(self) -> int:
        """Return which of its connections a lane of the script has made now."""
        return told_apart.count_made(self.name)

    def fail(self, what: str) -> Exception:
        """Return the error of a stand-in that is asked to act for real."""
        names: dict[str, Any] = {}
        for at in range(self.name.count(".") + 1):
            names = vars(sys.modules.get(self.name.rsplit(".", at)[0], self.module)) | names
        cls = names.get("OperationalError") or names.get("Error") or RuntimeError
        error: Exception = cls(f"this connection is replayed: {what} can't run live on it")
        return error


class Family:
    """What the stand-ins of one connection share: which objects they stand for, by number."""

    def __init__(
        self,
        driver: Driver,
        make: Callable[[Family, type, Any, int], Any],
        method: Callable[[Any, str], Any],
        pend: Callable[[Behind, str, Any, list[Any] | None], Any],
    ) -> None:
        """`make` makes a stand-in of a class for an object with a number, `method` a bound method of one.

        `pend` makes what is returned for an awaitable of the driver, with its result in a list if it has one already.
        """
        self.driver, self.pend = driver, pend
        self.is_told_apart = False
        """Whether requests say which cursor and connection they are made of; older recordings' don't."""
        self.is_pool = False
        """Whether its first object is a pool of the driver's own."""
        self.setup: SetUp | None = None
        """How the connection is set up for its first user; None until the stand-in is made."""
        self.method = method
        self._make = make
        self.holders: dict[int, tuple[ref[Run], str]] = {}
        """Number of a connection that was taken from a pool → the run and lane that have it."""
        self.count = 0
        self.by_number: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.by_object: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def hold(self, real: Any) -> tuple[Any, bool]:
        """Return the stand-in of a driver's object, and whether it is a new one."""
        if values.is_held(real):  # of a pool of the driver's own
            return real, False
        known = self.by_object.get(id(real))
        if known is not None and behind(known).real is real:
            return known, False
        self.count += 1
        made = self._make(self, type(real), real, self.count)
        self.by_object[id(real)] = made
        return made, True

    def note_given(self, owner: Behind, given: Behind) -> None:
        """Note which connection a stand-in is, or belongs to, that was got from another one."""
        if not (self.is_pool and owner.number == 1):
            given.label = owner.label
            return
        run = recorded_run()
        if run is not None:
            taker = ref(run), current_lane(run.root_lane).path
            self.holders.pop(given.number, None)
            given.label = 1 + sum(each == taker for each in self.holders.values())
            self.holders[given.number] = taker

    def find(self, content: Mapping[str, Any]) -> Any:
        """Return the stand-in of an object that was recorded."""
        number = content["number"]
        known = None if content["is_new"] else self.by_number.get(number)
        if known is not None:
            return known
        cls = values.find_named(self.driver.packages, content["class"])
        return self._make(self, cls if isinstance(cls, type) else object, None, number)


class Behind:
    """What is behind one stand-in."""

    __slots__ = (
        "cls",
        "family",
        "is_closed",
        "kept",
        "label",
        "number",
        "pending",
        "real",
        "rows",
        "shape",
        "state",
        "together",
    )

    def __init__(self, family: Family, cls: type, real: Any, number: int) -> None:
        self.family, self.cls, self.real, self.number = family, cls, real, number
        self.shape = _find_shape(family.driver, cls)
        """Its class, if a replay can find it: what is known of its methods."""
        self.kept: dict[str, Any] = {}
        """Attributes that the agent has set to values that are not data."""
        self.state: dict[str, Any] = {}
        self.is_closed = False
        self.label = 1
        """Which of several connections it is or belongs to: those of a script, those that a task has from a pool."""
        self.pending: list[Any] = []
        """Rows that were read together with one before them, the next one last."""
        self.rows: Any = None
        self.together = 0
        """How many rows were read one by one since the last statement."""

    def tell_apart(self, label: int) -> None:
        """Let requests say which cursor they are made of, and of which connection, if its label is above 1."""
        self.family.is_told_apart, self.label = True, label

    def find(self, name: str) -> Any:
        """Return what its class, or that of a connection behind it, has under a name; MISSING if neither has it."""
        found = inspect.getattr_static(self.shape, name, MISSING)
        if found is MISSING and hasattr(self.shape, "__getattr__"):
            kinds = self.family.driver.connections
            known = (inspect.getattr_static(kind, name, MISSING) for kind in kinds)
            return next((each for each in known if each is not MISSING), MISSING)
        return found

    @property
    def path(self) -> str:
        """The path of its class, as it is recorded."""
        is_found = self.family.driver.is_async and self.shape is not object
        return values.describe_class(self.shape if is_found else self.cls)

    @property
    def prefix(self) -> str:
        """The first part of the names of its calls."""
        name = self.family.driver.name
        return f"{name}.{POOL}" if self.number == 1 and self.family.is_pool else name

    @property
    def marks(self) -> dict[str, Any]:
        """What tells a connection from others in the requests made of it; of a server's units, only in a pool."""
        is_told = self.label > 1 and (self.family.is_pool or told_apart.is_of_script())
        return {CONNECTION: self.label} if is_told else {}

    @property
    def shown(self) -> dict[str, Any]:
        """What tells a cursor from others in the requests for its rows."""
        return {CURSOR: self.number} if self.family.is_told_apart else {}

    @property
    def is_cursor(self) -> bool:
        """Whether it has rows to fetch."""
        return hasattr(self.shape, "fetchone")


def _find_shape(driver: Driver, cls: type) -> type:
    """Return a class if a replay can find it; of an asynchronous driver, else the nearest that it derives from."""
    candidates: tuple[type, ...] = cls.__mro__ if driver.is_async else (cls,)
    found = (each for each in candidates if values.find_named(driver.packages, values.describe_class(each)) is each)
    shape: type = next(found, object)
    return shape


def behind(stand_in: Any) -> Behind:
    """Return what is behind a stand-in."""
    found: Behind = object.__getattribute__(stand_in, "_spanreplay_held")
    return found
