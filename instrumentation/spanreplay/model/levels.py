"""Recording levels, and the groups of patches that each of them installs.

Code that installs patches, or keeps a log of a run, asks once, when the run begins: `"timers" in level`. TABLE names
every group; a seam that it does not name belongs to `calls`, the lowest level.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import config
from spanreplay.model.errors import ConfigError

if TYPE_CHECKING:
    from spanreplay.model.call import RootRecord

__all__ = ["CALLS", "FULL", "LEVELS", "MEMBER", "TABLE", "Group", "Level", "level_of", "level_of_recording"]

MEMBER: Final = "level"
"""Member of a manifest that names the level of a recording; also of the environment if that is not `full`."""
_CALLS, _FULL = "calls", "full"


@dataclass(frozen=True)
class Group:
    """Patches that are installed together, a seam, or a log that a run keeps."""

    name: str
    level: str = _CALLS
    """The lowest level that has it."""
    leaves_open: str = ""
    """The facts that a recording without this group lacks."""


_THREADS: Final = "the order of threads (locks, queues, events, timeouts)"
_LOOPS: Final = "the order of timers and tasks"
_LOOKS: Final = "looks at files (existence, size, names)"

TABLE: Final = (
    Group("spans of the program"),
    Group("exporters that the environment names"),
    Group("spans without a provider"),
    Group("order of tasks and futures"),
    Group("lanes of tasks"),
    Group("lanes of pools"),
    Group("workers of pools"),
    Group("lanes of threads"),
    Group("the exit status"),
    Group("the end by a signal"),
    Group("timers", _FULL, _LOOPS),
    Group("steps of event loops", _FULL, _LOOPS),
    Group("uvloop-steps", _FULL, _LOOPS),
    Group("waits of threads", _FULL, _THREADS),
    Group("looks at futures and threads", _FULL, _THREADS),
    Group("pool-waits", _FULL, _THREADS),
    Group("threads", _FULL, _THREADS),
    Group("returns", _FULL, _THREADS),
    Group("looks", _FULL, _LOOKS),
    Group("signals", _FULL, "the places of signals"),
)


@dataclass(frozen=True)
class Level:
    """One level; `name in level` tells whether it has a group."""

    name: str
    left_out: Mapping[str, str]
    """Each group that it does not have → the facts that are therefore not recorded."""

    def __contains__(self, group: object) -> bool:
        return group not in self.left_out

    def groups(self, seams: Iterable[str]) -> list[str]:
        """The names of its groups, including those of `seams` that it has."""
        named = [group.name for group in TABLE]
        return [name for name in dict.fromkeys((*named, *seams)) if name in self]

    def describe_open(self) -> str:
        """One clause that names the facts that such a recording lacks and that may differ; empty for `full`."""
        listed = self._list_open()
        return listed and f"recorded at level {self.name}: {listed} were not recorded and may differ"

    def describe_hint(self) -> str:
        """A hint for a difference that this level may have caused; empty for `full`."""
        return f"SPANREPLAY_LEVEL={_FULL} records {self._list_open()} too" if self.left_out else ""

    def _list_open(self) -> str:
        *first, last = dict.fromkeys(self.left_out.values()) or [""]
        return f"{', '.join(first)} and {last}" if first else last

    def for_environment(self) -> dict[str, Any]:
        """The root record's entry at the start, so that the level is known even if the run never ends properly."""
        return {} if self.name == _FULL else {MEMBER: self.name}


def _make(name: str) -> Level:
    has_all = name == _FULL
    return Level(name, {group.name: group.leaves_open for group in TABLE if group.level == _FULL and not has_all})


LEVELS: Final = {name: _make(name) for name in (_CALLS, _FULL)}
CALLS: Final = LEVELS[_CALLS]
FULL: Final = LEVELS[_FULL]


def level_of(settings: Mapping[str, str] = os.environ, *, is_server: bool = False) -> Level:
    """The level that these settings ask for; if they say nothing, `calls` for a server or worker, else `full`."""
    return LEVELS[config.read_setting("SPANREPLAY_LEVEL", settings) or (_CALLS if is_server else _FULL)]


def level_of_recording(root: RootRecord) -> Level:
    """The level of a recording; `full` if it names none. Raises: ConfigError for a level of a later version."""
    name = str(root.manifest.get(MEMBER) or root.env.get(MEMBER) or _FULL)
    if name not in LEVELS:
        raise ConfigError(f"the run was recorded at level {name!r}, which is unknown here", hint="upgrade spanreplay")
    return LEVELS[name]
