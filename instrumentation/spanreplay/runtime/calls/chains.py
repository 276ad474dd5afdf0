"""An exception's stack and those of the exceptions behind it: recorded, and rebuilt in a replay.

`traceback.format_exc()` prints all of them. Both the recorded and the replayed exception leave a boundary through
`attempt` or `aattempt`, so the frames above the boundary are the same, too. An exception that the caller of the
boundary was handling anyway is not described: the replay has its own.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, ParamSpec, TypeVar

from spanreplay.model.errors import Unserializable
from spanreplay.redact import RunRedactor
from spanreplay.runtime.calls import exceptions, tracebacks

__all__ = ["aattempt", "attempt", "describe", "is_behind", "redact", "restore", "strip"]

P = ParamSpec("P")
T = TypeVar("T")
Settle = Callable[[BaseException], BaseException]
EXCEPTIONS_MAX: Final = 30
"""Exceptions further behind are left out."""
_CALLERS: Final = -1
"""In place of an index: the exception that the caller of the boundary was handling."""
EXCEPTIONS: Final = "exceptions"
STACK: Final = "stack"
"""Members of a description; an exception whose stack is kept elsewhere has none."""
_SUPPRESSED: Final = "suppressed"


def attempt(settle: Settle, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function; what `settle` makes of its exception is raised at one line, recorded and replayed.

    While `settle` runs, the exception is not being handled: `sys.exc_info` is that of the caller.
    """
    try:
        return function(*args, **kwargs)
    except BaseException as exc:  # noqa: BLE001 -- raised below
        failure = exc
    failure = settle(failure)
    context = failure.__context__
    try:
        raise failure
    finally:
        failure.__context__ = context  # `raise` sets it to the exception that the caller is handling
        del failure, context  # otherwise a cycle with this frame


async def aattempt(settle: Settle, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """`attempt` for a coroutine function."""
    try:
        return await function(*args, **kwargs)
    except BaseException as exc:  # noqa: BLE001 -- raised below
        failure = exc
    failure = settle(failure)
    context = failure.__context__
    try:
        raise failure
    finally:
        failure.__context__ = context
        del failure, context


def describe(exc: BaseException) -> dict[str, Any]:
    """Remove our own frames from an exception and those behind it, and return them all as JSON; itself first.

    As {names, exceptions}: a frame is a row of `tracebacks.describe` with positions in `names` instead of texts. Call
    it where `sys.exc_info` is the exception that the caller of the boundary is handling.
    """
    callers = sys.exc_info()[1]
    found: list[BaseException] = [exc]
    index = {id(exc): 0, id(callers): _CALLERS}
    names: dict[str, int] = {}
    described = []
    for each in found:  # grows
        tracebacks.strip(each)
        node: dict[str, Any] = {} if each is exc else _describe_one(each)
        node[STACK] = [
            [names.setdefault(part, len(names)) if isinstance(part, str) else part for part in row]
            for row in tracebacks.describe(each)
        ]
        for group, name, linked in _iter_links(each):
            if id(linked) not in index and len(found) < EXCEPTIONS_MAX:
                index[id(linked)] = len(found)
                found.append(linked)
            if id(linked) in index:
                node.setdefault(group, {})[name] = index[id(linked)]
        if each.__suppress_context__:
            node[_SUPPRESSED] = True
        described.append(node)
    return {"names": list(names), EXCEPTIONS: described}


def strip(exc: BaseException) -> None:
    """Remove our own frames from an exception and those behind it."""
    found = [exc]
    for each in found:  # grows
        tracebacks.strip(each)
        for _, _, linked in _iter_links(each):
            if len(found) < EXCEPTIONS_MAX and all(linked is not known for known in found):
                found.append(linked)


def redact(described: dict[str, Any], redactor: RunRedactor) -> dict[str, Any]:
    """Remove secrets from the exceptions, uncounted: the call's error contains them too. The stacks name only code."""
    nodes = [
        {
            **node,
            **({"message": redactor.text(node["message"])} if "message" in node else {}),
            **({"value": redactor.value(node["value"], {})} if "value" in node else {}),
        }
        for node in described[EXCEPTIONS]
    ]
    return {**described, EXCEPTIONS: nodes}


def restore(exc: BaseException, described: Any, find_file: Callable[[str], str] = str) -> None:
    """Give an exception the described stack and the exceptions behind it, with theirs, if they can be rebuilt.

    `find_file`: path of a recorded file → its path now. Call it where `sys.exc_info` is as for `describe`.
    """
    callers = sys.exc_info()[1]
    found: list[BaseException] = []
    with contextlib.suppress(*exceptions.NOT_REBUILT):
        nodes = described[EXCEPTIONS][:EXCEPTIONS_MAX]
        for node in nodes:
            found.append(_make_one(node, nodes, found) if found else exc)
        for each, node in zip(found, nodes, strict=True):
            if STACK in node:
                names = described["names"]
                tracebacks.restore(each, [_unpack_frame(row, names) for row in node[STACK]], find_file)
            _restore_links(each, node, [*found, callers])


def _unpack_frame(row: list[Any], names: list[str]) -> list[Any]:
    file, name, qualified, *place, module = row
    return [names[file], names[name], names[qualified], *place, names[module]]


def is_behind(exc: BaseException, other: BaseException) -> bool:
    """Whether `other` is an exception that led to `exc`, or `exc` itself."""
    found = [exc]
    for each in found:  # grows
        if each is other:
            return True
        for linked in (each.__cause__, each.__context__):
            is_new = linked is not None and all(linked is not one for one in found)
            if linked is not None and is_new and len(found) < EXCEPTIONS_MAX:
                found.append(linked)
    return False


def _describe_one(exc: BaseException) -> dict[str, Any]:
    """An exception behind another; its own causes are described separately."""
    cls = type(exc)
    try:
        value = exceptions.encode(exc)
    except Unserializable:
        return {"type": f"{cls.__module__}:{cls.__qualname__}", "message": str(exc)}
    value.pop("cause", None)
    return {"value": value, "message": str(exc)}


def _iter_links(exc: BaseException) -> Iterator[tuple[str, str, BaseException]]:
    """The exceptions that an exception refers to: (kind of the reference, its name, exception)."""
    inner = getattr(exc, "exceptions", None)
    if isinstance(inner, tuple):  # a group
        yield from (("inner", str(i), each) for i, each in enumerate(inner) if isinstance(each, BaseException))
    if exc.__cause__ is not None:
        yield "chain", "__cause__", exc.__cause__
    if exc.__context__ is not None:
        yield "chain", "__context__", exc.__context__
    yield from (("args", str(i), each) for i, each in enumerate(exc.args) if isinstance(each, BaseException))
    for name, each in list(vars(exc).items()):
        if isinstance(each, BaseException):
            yield "attributes", name, each


def _make_one(node: dict[str, Any], nodes: list[Any], found: list[BaseException]) -> BaseException:
    """Rebuild one exception; a member of a group is already part of that."""
    number = len(found)
    for group, made in zip(nodes, found, strict=False):
        for place, linked in (group.get("inner") or {}).items():
            if linked == number:
                member: BaseException = getattr(made, "exceptions")[int(place)]  # noqa: B009 -- not in BaseException
                return member
    try:
        return exceptions.decode(node["value"])
    except exceptions.NOT_REBUILT:
        return _make_unknown(node)


def _make_unknown(node: dict[str, Any]) -> BaseException:
    """An exception that prints like one that can't be rebuilt."""
    message = str(node.get("message", ""))
    path = node["type"] if "type" in node else node["value"]["class"]
    module, _, name = str(path).partition(":")
    members = {"__module__": module, "__qualname__": name, "__str__": lambda _: message}
    made: BaseException = type(name.rpartition(".")[2], (Exception,), members)(message)
    return made


def _restore_links(exc: BaseException, node: dict[str, Any], found: list[Any]) -> None:
    chain = node.get("chain")
    if chain is not None:
        exc.__cause__ = _find(found, chain.get("__cause__"))
        exc.__context__ = _find(found, chain.get("__context__"))
        exc.__suppress_context__ = node.get(_SUPPRESSED) is True
    elif exc is found[0] and exc is not found[_CALLERS]:  # nothing was recorded: as `raise` does
        exc.__context__ = found[_CALLERS]
    args = list(exc.args)
    for place, linked in (node.get("args") or {}).items():
        if int(place) < len(args) and isinstance(args[int(place)], BaseException | exceptions.Shown):
            args[int(place)] = _find(found, linked) or args[int(place)]
    if any(new is not old for new, old in zip(args, exc.args, strict=True)):
        exc.args = tuple(args)
    held = vars(exc)
    for name, linked in (node.get("attributes") or {}).items():
        if isinstance(held.get(name), BaseException):
            held[name] = _find(found, linked) or held[name]


def _find(found: list[Any], linked: Any) -> BaseException | None:
    """The exception with this index; -1 is the caller's, which may be none."""
    if not isinstance(linked, int) or not _CALLERS <= linked < len(found) - 1:
        return None
    exception: BaseException | None = found[linked]
    return exception
