"""Lets `import` find modules that a replay has written, like those of the world.

Python's import system uses its own functions to look at files, not those of `os`. An agent that writes a tool and
imports it can do so in a replay too.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Final

from spanreplay.replayer.sandbox.overlay import Overlay
from spanreplay.runtime.patches import Patches

_SYSTEM: Final = "_frozen_importlib_external"
_STALE: Final = -1


def install(overlay: Overlay, patches: Patches) -> None:
    """Make the import system, and `runpy`, look through an overlay."""
    system: Any = sys.modules[_SYSTEM]
    look, open_code = system._path_stat, io.open_code

    def look_through(path: Any) -> Any:
        return look(overlay.find_quickly(path) if isinstance(path, str) else path)

    def get_data(wrapped: Any, loader: Any, args: Any, kwargs: Any) -> Any:
        path, *rest = args or (kwargs["path"],)
        return wrapped(overlay.find_quickly(os.fspath(path)), *rest)

    def find_spec(wrapped: Any, finder: Any, args: Any, kwargs: Any) -> Any:
        if overlay.names_beside(finder.path):
            finder._path_mtime = _STALE  # the folder's time doesn't show what a replay writes
        return wrapped(*args, **kwargs)

    def fill_cache(wrapped: Any, finder: Any, args: Any, kwargs: Any) -> Any:
        wrapped(*args, **kwargs)
        finder._path_cache = finder._path_cache | set(overlay.names_beside(finder.path))

    def open_through(path: Any) -> Any:
        return open_code(overlay.find_quickly(os.fspath(path)))

    def cache_bytecode(wrapped: Any, loader: Any, args: Any, kwargs: Any) -> Any:
        source = args[0]
        return wrapped(*args, **kwargs) if overlay.find_quickly(source) == source else None  # it would lie in the world

    patches.replace(system, "_path_stat", look_through)
    patches.replace(io, "open_code", open_through)
    patches.wrap(system.FileLoader, "get_data", get_data)
    patches.wrap(system.SourceFileLoader, "_cache_bytecode", cache_bytecode)
    patches.wrap(system.FileFinder, "find_spec", find_spec)
    patches.wrap(system.FileFinder, "_fill_cache", fill_cache)
