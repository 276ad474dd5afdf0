"""Names of lanes: which lane is above which, and how a reader sees them (`tools, step 4`); pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "EARLIER_LANE",
    "OF_EARLIER",
    "UNIT_LANE",
    "is_earlier",
    "is_within",
    "name_call",
    "name_lane",
    "name_number",
    "process_of",
]

UNIT_LANE: Final = "unit"
"""The root lane of a unit of work, in its own run."""
EARLIER_LANE: Final = "earlier#"
"""Prefix of the root lanes of units that a replay runs before the judged one."""

OF_EARLIER: Final = -(1 << 40)
"""The number of every call of the units that a replay makes before the judged one."""
_ROOT: Final = "main"
_PROCESSES: Final = ("p:", "px:")
_NUMBERED: Final = re.compile(r"(?P<kind>[a-z]+):(?P<name>.*?)(?:#(?P<number>\d+))?\Z", re.DOTALL)
_GRAPH_NODE: Final = re.compile(r"lg:(?P<step>[^:]*):(?P<node>[^:]*)(?::.*)?\Z", re.DOTALL)
_WORDS: Final = {
    "t": "task",
    "x": "pool job",
    "th": "thread",
    "p": "process",
    "px": "process pool job",
    "g": "greenlet",
    "li": "step",
}


def is_earlier(path: str) -> bool:
    """Whether a lane belongs to a unit that is replayed before the judged one."""
    return path.startswith(EARLIER_LANE)


def is_within(path: str, above: str) -> bool:
    """Whether a lane is another one or lies below it."""
    return path == above or path.startswith(above + "/")


def process_of(path: str) -> str:
    """The root lane of the process that a lane belongs to: `main`, or that of a worker."""
    parts = path.split("/")
    last = max((at for at, part in enumerate(parts) if part.startswith(_PROCESSES)), default=0)
    return "/".join(parts[: last + 1])


def name_lane(path: str) -> str:
    """The last part of a path in words: of `main/t:main#1/lg:4:tools:pull.tools`, `tools, step 4`.

    The whole path if its form is unknown, '' for ''.
    """
    last = path.rpartition("/")[2]
    node = _GRAPH_NODE.match(last)
    if node is not None:
        return f"{node['node']}, step {node['step']}"
    match = _NUMBERED.match(last)
    if last == _ROOT or match is None or match["kind"] not in _WORDS:
        return last if last == _ROOT else path
    number = match["number"]
    return f"{_WORDS[match['kind']]} {match['name']}" + (f" {number}" if number and number != "1" else "")


def name_call(number: int, lane: str) -> str:
    """A call's number in its run, and its lane: `call 2 in task fetch`."""
    return f"{name_number(number)} in {name_lane(lane)}"


def name_number(number: int) -> str:
    """A call by its number: `call 2`; the start of a unit's process counts its calls downwards from -1."""
    if number == OF_EARLIER:
        return "a call of an earlier unit"
    return f"call {number}" if number >= 0 else f"call {-number} of the start of its process"
