"""Native code that may have chosen what differs: nobody sees what an extension module draws or reads by itself.

Every Rust library can draw random numbers, so its symbols say nothing. What counts is that a library, or a model's SDK,
between the agent and the call has an extension module of its own: a router in Rust chooses the model.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import FrameType
from typing import Final

from spanreplay.model import distributions, ids, owners
from spanreplay.runtime.caller.caller import FRAMES_MAX, LIBRARY, classify, is_among

__all__ = ["find_native"]

_SUFFIXES: Final = tuple(EXTENSION_SUFFIXES)
_SDKS: Final = (owners.MODEL_SDKS,)


def find_native(frame: FrameType | None, name: str = "") -> str:
    """Return the libraries with native code between this frame and the agent's code, innermost first; '' for none.

    The library that gives a call its name (`asyncpg.fetch`) is left out: it sends what it was given.
    """
    own = distributions.normalise(name.partition(".")[0])
    found: dict[str, None] = {}
    for _ in range(FRAMES_MAX):
        if frame is None or ids.is_agent_file(frame.f_code.co_filename):
            break
        file = frame.f_code.co_filename
        if classify(file) == LIBRARY or is_among(file, _SDKS):
            found[distributions.find_distribution(file)] = None
        frame = frame.f_back
    native = _list_native() if found else frozenset()
    return ", ".join(each for each in found if each in native and each != own)


def _list_native() -> frozenset[str]:
    """Return the distributions of which an extension module is loaded."""
    files = [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
    return frozenset(distributions.find_distribution(each) for each in files if each.endswith(_SUFFIXES))
