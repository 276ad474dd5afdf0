"""Seam: operations on DuckDB, as effects; the database itself keeps working, in a replay on the overlay's copy.

Its file can't be compared, because DuckDB writes different bytes each time. So each statement, transaction and change
by a method is compared before it runs. Every method of a connection counts, unless it is known to stay inside the
process.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay import codec
from spanreplay.codec import Unserializable
from spanreplay.runtime.agent_patches import Patch, asks, install_patch
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.effects import effects_run, note_effect

_getframe: Final = sys._getframe
_STAYS: Final = frozenset(
    {"array_type", "close", "cursor", "decimal_type", "description", "df", "dtype", "duplicate", "enum_type",
     "extract_statements", "filesystem_is_registered", "get_profiling_information", "get_table_names", "interrupt",
     "list_filesystems", "list_type", "map_type", "query_progress", "row_type", "rowcount", "sqltype", "string_type",
     "struct_type", "tf", "torch", "type", "union_type", "pl", "arrow", "enable_profiling", "disable_profiling",
     "table", "view", "complete", "register_filesystem", "unregister_filesystem"}
)  # fmt: skip
_STAYS_BEGINS: Final = ("fetch", "to_arrow", "from_", "read_", "_")
"""Beginnings of methods that return results, make types or read files, and change nothing that the database keeps."""
_OF_RELATIONS: Final = (
    "create", "create_view", "drop", "insert", "insert_into", "to_csv", "to_parquet", "to_table", "to_view", "update",
    "write_csv", "write_parquet",
)  # fmt: skip
"""Methods of a relation that change a database or files; the others make another relation from it."""
_DRAWN: Final = re.compile(r"(unnamed_relation_|__duckdb_source_)[0-9a-f]{8,}(?:_\d+)?")
"""Random names that DuckDB gives to relations."""
_SHOWN_CHARACTERS_MAX: Final = 1_000_000


def _show(value: Any) -> Any:
    """Return an argument as a call can hold it; for a value without a codec, only its type."""
    if isinstance(value, Mapping):
        return {str(name): _show(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_show(each) for each in value]
    text = getattr(value, "query", None)
    if isinstance(text, str):  # a DuckDB statement
        return text
    try:
        codec.encode(value)
    except Unserializable:
        return f"({type(value).__name__})"
    return value


def _describe(of_relation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    shown = {str(at): _show(each) for at, each in enumerate(args)}
    shown.update({name: _show(each) for name, each in kwargs.items() if name != "connection"})
    if of_relation is not None:
        shown["relation"] = _DRAWN.sub(r"\1*", str(of_relation.sql_query()))[:_SHOWN_CHARACTERS_MAX]
    return shown


def _note(name: str, of_relation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if effects_run() is not None:
        note_effect(f"duckdb.{name}", _describe(of_relation, args, kwargs))


def _replace_method(patches: Patches, cls: type, name: str, *, is_relation: bool) -> None:
    real: Callable[..., Any] = getattr(cls, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if asks(_getframe(1)):
            _note(name, self if is_relation else None, args, kwargs)
        return real(self, *args, **kwargs)

    method.__name__, method.__qualname__, method.__doc__ = name, f"{cls.__name__}.{name}", real.__doc__
    patches.replace(cls, name, method)


def _replace_function(patches: Patches, module: Any, name: str) -> None:
    real = getattr(module, name)

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        if asks(_getframe(1)):
            _note(name, None, args, kwargs)
        return real(*args, **kwargs)

    install_patch(patches, module, name, call, Patch(module.__name__, name, real))


def goes_out(name: str, member: Any) -> bool:
    """Whether a method of a connection may change the database's content."""
    return callable(member) and name not in _STAYS and not name.startswith(_STAYS_BEGINS)


def install(module: Any, patches: Patches) -> None:
    """Patch connections, relations and appenders, and the functions that use the default connection."""
    connection, relation = module.DuckDBPyConnection, module.DuckDBPyRelation
    for name in sorted(n for n in dir(connection) if goes_out(n, getattr(connection, n))):
        _replace_method(patches, connection, name, is_relation=False)
        if callable(getattr(module, name, None)) and not isinstance(getattr(module, name), type):
            _replace_function(patches, module, name)
    for name in _OF_RELATIONS:
        if hasattr(relation, name):
            _replace_method(patches, relation, name, is_relation=True)
    for each in {v for n, v in vars(module).items() if isinstance(v, type) and n.endswith("Appender")}:
        for name in sorted(n for n in dir(each) if goes_out(n, getattr(each, n))):
            _replace_method(patches, each, name, is_relation=False)
