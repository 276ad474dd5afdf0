"""Calls of a database driver's methods: their names, effects and arguments, without credentials."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from spanreplay import codec
from spanreplay.codec import Unserializable
from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import recorded_run
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.seams.machine.databases.dbapi_values import is_held
from spanreplay.seams.machine.databases.postgres import describe_statement
from spanreplay.seams.machine.effects import describe_effect

__all__ = ["describe_method", "held_arguments"]

_STATEMENTS: Final = ("execute", "executemany", "executescript", "query")
_SQL: Final = ("sql", "query", "operation", "statement")
_PARAMETERS: Final = ("parameters", "args", "params", "vals", "seq_params", "seq_of_parameters", "param_sets")
_ENDS: Final = ("commit", "rollback", "callproc")
_READS: Final = ("fetch", "get", "is_", "next", "cursor", "ping", "scroll", "__")
"""Beginnings of methods that change nothing in the database."""
_CREDENTIALS: Final = re.compile(r"pass|pwd|secret|token|credential|auth", re.IGNORECASE)
_SIGNS_IN: Final = re.compile(r"user|login|auth|passw", re.IGNORECASE)


def describe_method(driver: str, cls: type, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Describe the call of a method."""
    if name in _STATEMENTS and (args or kwargs):
        return _describe_statement(driver, name, args, kwargs)
    if name == "__exit__":
        failed = args[0] if args else None
        shown = {} if failed is None else {"error": getattr(failed, "__name__", "")}
        return describe_effect(f"{driver}.exit", shown)
    shown = {each: _show(value) for each, value in _name_arguments(cls, name, args, kwargs).items()}
    effect = Effect.WRITE
    if name in _ENDS:
        effect = Effect.IRREVERSIBLE
    elif name.startswith(_READS):
        effect = Effect.READ
    return describe_effect(f"{driver}.{name.strip('_')}", shown, effect)


def _describe_statement(driver: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
    rest = dict(kwargs)
    given = list(args)
    sql = given.pop(0) if given else _take(rest, _SQL)
    parameters = given.pop(0) if given else _take(rest, _PARAMETERS)
    text = bytes(sql).decode("utf-8", "replace") if isinstance(sql, (bytes, bytearray)) else str(sql)
    described = describe_statement(f"{driver}.{name}", text, _show(parameters))
    others = {**{str(at): _show(each) for at, each in enumerate(given, 2)}, **{n: _show(v) for n, v in rest.items()}}
    return described._replace(arguments={**described.arguments, **others}, prints=False)


def _take(rest: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((rest.pop(name) for name in names if name in rest), None)


def _name_arguments(cls: type, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by their names, where they are known, without credentials."""
    found: dict[str, Any] = {}
    try:
        bound = inspect.signature(getattr(cls, name)).bind_partial(None, *args).arguments
        found = dict(list(bound.items())[1:])
    except (AttributeError, TypeError, ValueError):
        known = args[:1] if _SIGNS_IN.search(name) else args
        found = {str(at): each for at, each in enumerate(known)}
    found.update(kwargs)
    return {each: value for each, value in found.items() if not _CREDENTIALS.search(each)}


def _show(value: Any) -> Any:
    """Return an argument as a call can hold it; what is no data is named by its type, and makes the run incomplete."""
    if is_held(value):
        return f"({value.__class__.__name__})"
    if isinstance(value, Mapping):
        return {str(name): _show(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_show(each) for each in value]
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"({value.__qualname__})"
    try:
        codec.encode(value)
    except Unserializable:
        run = recorded_run()
        if run is not None and hasattr(value, "read"):
            run.resolver.leave_out(f"a {type(value).__name__} was given to a database driver: it is not recorded")
        return f"({type(value).__name__})"
    return value


def held_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], real: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the driver's own objects in place of our stand-ins."""

    def take(value: Any) -> Any:
        kind = type(value)
        if (kind is list or kind is tuple) and any(is_held(each) for each in value):
            return kind(take(each) for each in value)
        if kind is dict and any(is_held(each) for each in value.values()):
            return {name: take(each) for name, each in value.items()}
        return real(value)

    return tuple(take(each) for each in args), {name: take(each) for name, each in kwargs.items()}
