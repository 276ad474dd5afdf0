"""What the stand-ins for one connection of a database driver share: the driver, and which objects they stand for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from spanreplay.seams.machine.databases import dbapi_values as values
from spanreplay.seams.machine.databases.dbapi_setup import SetUp

__all__ = ["Behind", "Driver", "Family", "behind"]


class Driver:
    """One driver: its module, and the packages that its classes come from."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.name = str(module.__name__)
        self.packages = frozenset({values.package(self.name)})
        self.setups: dict[str, SetUp] = {}
        """Server → how the first connection to it was set up."""
        self.classes: dict[type, type] = {}
        """Class of the driver → class of its stand-ins."""

    def learn(self, cls: type) -> None:
        """Note where the classes of a connection come from."""
        found = {str(each.__module__) for each in cls.__mro__}
        found |= {name for name, module in tuple(sys.modules.items()) if module is self.module}  # `install_as_MySQLdb`
        own = {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}
        self.packages |= {values.package(name) for name in own}

    def fail(self, what: str) -> Exception:
        """Return the error of a stand-in that is asked to act for real."""
        names = vars(self.module)
        cls = names.get("OperationalError") or names.get("Error") or RuntimeError
        error: Exception = cls(f"this connection is replayed: {what} can't run live on it")
        return error


class Family:
    """What the stand-ins of one connection share: which objects they stand for, by number."""

    def __init__(
        self, driver: Driver, make: Callable[[Family, type, Any, int], Any], method: Callable[[Any, str], Any]
    ) -> None:
        """`make` makes a stand-in of a class for an object with a number, `method` a bound method of one."""
        self.driver = driver
        self.setup: SetUp | None = None
        """How the connection is set up for its first user; None until the stand-in is made."""
        self.method = method
        self._make = make
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
        self.shape = cls if values.find_named(family.driver.packages, values.describe_class(cls)) is cls else object
        """Its class, if a replay can find it: what is known of its methods."""
        self.kept: dict[str, Any] = {}
        """Attributes that the agent has set to values that are not data."""
        self.state: dict[str, Any] = {}
        self.is_closed = False
        self.pending: list[Any] = []
        """Rows that were read together with one before them, the next one last."""
        self.rows: Any = None
        self.together = 0
        """How many rows were read one by one since the last statement."""

    @property
    def is_cursor(self) -> bool:
        """Whether it has rows to fetch."""
        return hasattr(self.shape, "fetchone")


def behind(stand_in: Any) -> Behind:
    """Return what is behind a stand-in."""
    found: Behind = object.__getattribute__(stand_in, "_spanreplay_held")
    return found
