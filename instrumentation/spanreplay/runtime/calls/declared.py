"""Declared boundaries: `@spanreplay.boundary(...)` on functions, coroutines, generators and async generators."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from spanreplay.model.call import Effect, Kind
from spanreplay.model.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
_IMPLICIT = ("self", "cls")


def boundary(kind: str | Kind = Kind.TOOL, *, name: str = "", effect: str | Effect = Effect.WRITE) -> Callable[[F], F]:
    """Record every call of a function, and serve it in a replay instead of running it.

    `kind` is one of tool, retriever, compute, human, http, llm …; `name` defaults to the function's qualified name.
    `effect` says what the function may do: pure, read, write or irreversible; a write is announced in the recording
    before it starts. Without an active run the function is called as it is. `self` and `cls` are not recorded.
    Raises: ConfigError for an unknown kind or effect.
    """
    kind_value = _member(Kind, kind, "kind")
    effect_value = _member(Effect, effect, "effect")

    def decorate(function: F) -> F:
        if not _is_off():
            _machinery.load()
        return _wrap(function, kind_value, name, effect_value)

    return decorate


def _member(enum: type[Kind] | type[Effect], value: str, what: str) -> str:
    try:
        return str(enum(value).value)
    except ValueError:
        known = ", ".join(m.value for m in enum)
        raise ConfigError(f"boundary {what} {value!r} is not one of {known}") from None


class _Machinery:
    """Modules that recorded calls need; imported with the first one, so that a decorated module stays light.

    While a run is active, the decorator already imports them: the first call may be that of a finalizer during this
    very import.
    """

    def __getattr__(self, name: str) -> Any:
        self.load()
        return vars(self)[name]

    def load(self) -> None:
        """Import them; further calls do nothing."""
        if vars(self):
            return
        from spanreplay import codec
        from spanreplay.runtime.calls import function_calls
        from spanreplay.runtime.calls import generators as items

        vars(self).update(
            FunctionCall=function_calls.FunctionCall,
            no_meta=function_calls.NO_META,
            call_arguments=codec.call_arguments,
            call_sync=function_calls.call_sync,
            call_async=function_calls.call_async,
            call_generator=items.call_generator,
            open_async_generator=items.open_async_generator,
        )


_machinery = _Machinery()


def _wrap(function: F, kind: str, name: str, effect: str) -> F:
    named: Any = function
    while isinstance(named, functools.partial):
        named = named.func
    shown = name or getattr(named, "__qualname__", type(named).__qualname__).rpartition("<locals>.")[2]
    signature = inspect.signature(function)
    names = _find_positional(signature)
    is_method = not signature.parameters.keys().isdisjoint(_IMPLICIT)

    def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if names is not None and len(args) == len(names) and not kwargs:
            arguments: dict[str, Any] = dict(zip(names, args))  # noqa: B905 -- expensive, and just compared
        else:
            arguments = _machinery.call_arguments(signature, args, kwargs)
        implicit: dict[str, Any] = {n: arguments.pop(n) for n in _IMPLICIT if n in arguments} if is_method else {}

        def call(changed: dict[str, Any]) -> Any:
            return _call_with(function, signature, {**implicit, **changed})

        return _machinery.FunctionCall(kind, shown, effect, arguments, "", _machinery.no_meta, function, True, call)

    return wrap_function(function, describe)


def _find_positional(signature: inspect.Signature) -> tuple[str, ...] | None:
    """The parameters' names if every one of them can be given by position; None otherwise."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    is_plain = all(parameter.kind in by_position for parameter in signature.parameters.values())
    return tuple(signature.parameters) if is_plain else None


def wrap_function(function: F, describe: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> F:
    """Make a function of any sort a boundary; `describe` builds a `FunctionCall` from the arguments of a call.

    The sort is that of the innermost function, below any `functools.wraps` wrappers.
    """
    wrapped: F = _wrapper_of(inspect.unwrap(function))(function, describe)
    return wrapped


def _call_with(function: Any, signature: inspect.Signature, arguments: dict[str, Any]) -> Any:
    """Call a function with arguments by parameter name, in the form that `call_arguments` returns."""
    from spanreplay.codec import bind_arguments

    args, kwargs = bind_arguments(signature, arguments)
    return function(*args, **kwargs)


def _wrapper_of(function: Any) -> Callable[[Any, Any], Any]:
    if inspect.isasyncgenfunction(function):
        return _wrap_async_generator
    if inspect.iscoroutinefunction(function):
        return _wrap_coroutine
    return _wrap_generator if inspect.isgeneratorfunction(function) else _wrap_plain


def _wrap_async_generator(function: Any, describe: Any) -> Any:
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        generator = _open_async_generator(function, describe, args, kwargs)
        sent: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    item = await (generator.asend(sent) if thrown is None else generator.athrow(thrown))
                except StopAsyncIteration:
                    return
                sent = thrown = None
                try:
                    sent = yield item
                except GeneratorExit:
                    raise
                except BaseException as exc:  # noqa: BLE001 -- the body decides
                    thrown = exc
        finally:
            await generator.aclose()

    return wrapped


def _wrap_coroutine(function: Any, describe: Any) -> Any:
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _is_off():
            return await function(*args, **kwargs)
        return await _machinery.call_async(lambda: describe(args, kwargs), lambda: function(*args, **kwargs))

    return wrapped


def _wrap_generator(function: Any, describe: Any) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _is_off():
            return (yield from function(*args, **kwargs))
        return (yield from _machinery.call_generator(lambda: describe(args, kwargs), lambda: function(*args, **kwargs)))

    return wrapped


def _wrap_plain(function: Any, describe: Any) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _is_off():
            return function(*args, **kwargs)
        return _machinery.call_sync(lambda: describe(args, kwargs), lambda: function(*args, **kwargs))

    return wrapped


def _open_async_generator(function: Any, describe: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _is_off():
        return function(*args, **kwargs)
    return _machinery.open_async_generator(lambda: describe(args, kwargs), lambda: function(*args, **kwargs))


def _is_off() -> bool:
    run = sys.modules.get("spanreplay.runtime.run")
    return run is None or run.active_run() is None
