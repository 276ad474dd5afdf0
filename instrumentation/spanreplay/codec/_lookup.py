"""Classes by import path, found without running anything that the path's author chose.

A recording may come from elsewhere, so `load_class` (1) reads namespaces, never calls `__getattr__`; (2)
imports a module that this process has not loaded only if its source, read without running it, defines that
class; and (3) returns classes only. What may be built from a class is each row's own check.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from spanreplay.canonical import Refused

__all__ = ["class_path", "load_class"]

PATH_CHARS_MAX: Final = 500
SOURCE_BYTES_MAX: Final = 4 * 1024 * 1024


def class_path(cls: type) -> str:
    """`module:qualname` of a class that `load_class` will find again.

    Raises: Refused for a class inside a function, or one that its module does not hold under that name.
    """
    module = sys.modules.get(cls.__module__)
    path = f"{cls.__module__}:{cls.__qualname__}"
    if module is None or _walk(module, cls.__qualname__) is not cls:
        raise Refused(f"{path}, which is no importable class")
    return path


def load_class(path: Any) -> type:
    """The class at `module:qualname`.

    Raises: Refused if there is none, or if it could be had only by running unknown code.
    """
    if type(path) is not str or len(path) > PATH_CHARS_MAX:
        raise Refused("a class path that is no short text")
    module_name, _, qualname = path.partition(":")
    names = [*module_name.split("."), *qualname.split(".")]
    if not all(name.isidentifier() for name in names):
        raise Refused(f"{path!a}, which is no class path")
    module = sys.modules.get(module_name)
    if module is None:
        module = _import_data_module(module_name, qualname.partition(".")[0])
    found = _walk(module, qualname)
    # (3)
    if not isinstance(found, type):
        raise Refused(f"{path}, which is no class here; it may have been renamed since the recording")
    return found


def _walk(module: ModuleType, qualname: str) -> Any:
    found: Any = module
    for name in qualname.split("."):
        # (1) Namespaces only: a lazy module's __getattr__ would import whatever it is asked for.
        found = getattr(found, "__dict__", {}).get(name)
        if found is None:
            return None
    return found


def _import_data_module(name: str, class_name: str) -> ModuleType:
    # (2) An import runs the module, so its source must show first that it is where the class lives.
    spec = _find_spec(name)
    if spec is None or spec.origin is None:
        raise Refused(f"{name}:{class_name}: no such module is installed here")
    source = Path(spec.origin)
    if name.rpartition(".")[2] == "__main__" or source.suffix != ".py" or not source.is_file():
        raise Refused(f"{name}:{class_name}: the module is not loaded, and not one that may be imported")
    if source.stat().st_size > SOURCE_BYTES_MAX or not _binds_class(source, class_name):
        raise Refused(f"{name}:{class_name}: the module is not loaded, and its source defines no such class")
    return importlib.import_module(name)


def _find_spec(name: str) -> ModuleSpec | None:
    """Like importlib.util.find_spec, but without importing the parents."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    full_name = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full_name = f"{full_name}.{part}"
        spec = PathFinder.find_spec(full_name, spec.submodule_search_locations)
    return spec


def _binds_class(source: Path, name: str) -> bool:
    """Whether the file has a class of that name at its top level; a package may also re-export one."""
    try:
        body = ast.parse(source.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return False
    is_package = source.name == "__init__.py"
    statements = list(body)
    for statement in statements:  # grows while it is read: conditional definitions count too
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return True
        if is_package and isinstance(statement, ast.ImportFrom) and _brings_in(statement, name):
            return True
        if isinstance(statement, ast.If | ast.Try):
            statements.extend(statement.body)
            statements.extend(statement.orelse)
            for handler in getattr(statement, "handlers", ()):
                statements.extend(handler.body)
    return False


def _brings_in(statement: ast.ImportFrom, name: str) -> bool:
    return any((alias.asname or alias.name) in (name, "*") for alias in statement.names)
