"""Effects as calls of a run: whether a recording has them, and the environment that programs are compared with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

EFFECTS: Final = "effects"
"""Member of the environment: whether this recording has effects as calls, with headers and variables."""

DRIVERS: Final = "drivers"
"""Member of the environment: whether what is done with database drivers (PEP 249) are calls."""

ASYNC_DRIVERS: Final = "async_drivers"
"""Member of the environment: the same of drivers for asyncio that have the shape of PEP 249."""

TOLD_APART: Final = "drivers_told_apart"
"""Member of the environment: whether requests of a PEP 249 driver say which cursor and connection they are made of."""

SET_UPS: Final = "psycopg_set_ups"
"""Member of the environment: whether psycopg's calls say which of them set a kept connection up."""

CODE_OF_MODULES: Final = "code_of_modules"
"""Member of the environment: whether the folders of an application that an installed program loads are its code."""
APPENDED_CONTENT: Final = "appended_content"
"""Member of the environment: whether the earlier content of a file that is appended to and read is a call."""
CALLBACKS: Final = "lanes_of_callbacks"
"""Member of the environment: whether tasks that callbacks make in their own Context have lanes of their own."""

first_environs: Final[WeakKeyDictionary[Run, dict[str, str]]] = WeakKeyDictionary()


def first_environ(run: Run) -> Mapping[str, str]:
    """The variables that the process had when the run began."""
    return first_environs.get(run, os.environ)


VERSIONS: Final = "2"
"""Its value if it also has files given to programs, and options of programs; true in earlier recordings."""


def sees_effects(run: Run) -> bool:
    """Whether effects are calls: not in a replay of a recording that has none."""
    return bool(run.resolver.environment.get(EFFECTS))


def sees_versions(run: Run) -> bool:
    """Whether the recording holds the content of files before the run ended, and the options of programs."""
    return bool(run.resolver.environment.get(EFFECTS) == VERSIONS)
