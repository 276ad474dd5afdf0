"""Arguments of a database driver's `connect`, as they are recorded: without credentials."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["name_arguments", "name_modes", "name_server", "read_signature"]

_SERVER: Final = {
    "host": "host", "server": "host", "port": "port", "unix_socket": "unix_socket", "user": "user", "username": "user",
    "database": "database", "db": "database", "dbname": "database",
}  # fmt: skip
"""Arguments of `connect` that name the server, and as what they are listed; all others may hold credentials."""
_MODES: Final = ("autocommit", "isolation_level", "init_command")
"""Arguments of `connect` that affect statements; drivers name more, which they don't share."""
_ROWS: Final = ("charset", "client_flag", "sql_mode", "time_zone", "use_unicode", "raw", "buffered")
"""Further ones that affect what statements mean, or what their rows are."""


def name_server(named: Mapping[str, Any]) -> dict[str, str]:
    """Return which server is connected to."""
    return {_SERVER[n]: str(v) for n, v in named.items() if n in _SERVER and isinstance(v, (str, int))}


def name_modes(named: Mapping[str, Any], *, has_rows: bool = False) -> dict[str, Any]:
    """Return what affects statements; with `has_rows`, also what affects their rows, such as a class of cursors."""
    modes = {name: named[name] for name in _MODES if isinstance(named.get(name), (bool, int, str))}
    if not has_rows:
        return modes
    modes.update({name: named[name] for name in _ROWS if isinstance(named.get(name), (bool, int, str))})
    return {**modes, **{name: f"({each.__qualname__})" for name, each in named.items() if isinstance(each, type)}}


def read_signature(connect: Any) -> inspect.Signature | None:
    """Return a function's signature, if it tells one."""
    try:
        return inspect.signature(connect)
    except (TypeError, ValueError):
        return None


def name_arguments(signature: inspect.Signature | None, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name; only those that were given by name if the function doesn't tell the others'."""
    if signature is None:
        return dict(kwargs)
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return dict(kwargs)
    last = next((n for n, p in signature.parameters.items() if p.kind is inspect.Parameter.VAR_KEYWORD), "")
    rest = bound.pop(last, {}) if last else {}
    return {**bound, **rest}
