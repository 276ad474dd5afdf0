"""Finds classes by import path without running any code that the path's author chose.

A recording may come from elsewhere, so `load_class` (1) looks only into modules that this process has loaded: nothing
is imported because a recording names it; (2) reads namespaces directly, without attribute access on a module or class;
and (3) returns classes only. Each row checks for itself which classes it may build.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from spanreplay.codec._still import check_behaviour, is_below, module_dict, namespace_of
from spanreplay.model.canonical import Refused

__all__ = ["class_path", "is_path", "library", "load_class"]

PATH_CHARS_MAX: Final = 500
CHECKED_MAX: Final = 1_000
_checked: Final[dict[str, type]] = {}
"""Path → the class that was last checked."""
LIBRARIES: Final = frozenset(
    {"numpy", "pandas", "pandas.tseries.frequencies", "polars", "pyarrow", "pytz", "pydantic_core"}
)
"""Libraries that the table has rows for. A tool may be the only code that loads pandas, and a replay doesn't run it."""


def library(name: str) -> Any:
    """Return a library that the table has rows for; import it if it is not loaded yet."""
    assert name in LIBRARIES
    return sys.modules.get(name) or importlib.import_module(name)


def class_path(cls: type) -> str:
    """`module:qualname` of a class that `load_class` will find again.

    Raises: Refused for a class inside a function, or one that its module does not hold under that name.
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    if _walk(sys.modules.get(cls.__module__), cls.__qualname__) is not cls:
        raise Refused(f"{path}, which is not an importable class")
    return path


def is_path(path: Any) -> bool:
    """Whether a value has the form of a class path."""
    if type(path) is not str or len(path) > PATH_CHARS_MAX:
        return False
    module_name, _, qualname = path.partition(":")
    return all(name.isidentifier() for name in (*module_name.split("."), *qualname.split(".")))


def load_class(path: Any) -> type:
    """The class at `module:qualname`.

    Raises: Refused if no loaded module has it, or if its instances run code when inspected or discarded.
    """
    if type(path) is not str or len(path) > PATH_CHARS_MAX:
        raise Refused("a class path that is not a short string")
    if not is_path(path):
        raise Refused(f"{path!a}, which is not a class path")
    module_name, _, qualname = path.partition(":")
    # (1)
    module = sys.modules.get(module_name)
    if module is None:
        raise Refused(f"{path}: nothing here has imported {module_name}; import it where the agent starts")
    found = _walk(module, qualname)
    # (3)
    if not is_below(type(found), type):
        raise Refused(f"{path}, which is not a class here; it may have been renamed since the recording")
    cls: type = found
    if _checked.get(path) is not cls:
        check_behaviour(cls, path)
        if len(_checked) < CHECKED_MAX:
            _checked[path] = cls
    return cls


def _walk(module: Any, qualname: str) -> Any:
    # (2) A lazy module's __getattr__ would import any name that it is asked for.
    first, *rest = qualname.split(".")
    found: Any = module_dict(module).get(first)
    for name in rest:
        if not is_below(type(found), type):
            return None
        found = namespace_of(found).get(name)
    return found
