"""Wrap methods of every subclass of a framework's base class, present and future."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import wrapt

from spanreplay.model import guard
from spanreplay.runtime.calls.function_calls import FunctionCall, call_async, call_sync, with_call
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches, Wrapper
from spanreplay.runtime.run import active_run
from spanreplay.seams.frameworks.functions import Changed


class Watch(Protocol):
    """What a tool's body may change beside its result."""

    has_begun: bool
    """Whether the body runs here."""

    def begin(self) -> None:
        """Keep what is there before the body runs."""

    def end(self) -> dict[str, Any]:
        """Return what the body has changed."""

    def restore(self, changed: dict[str, Any]) -> None:
        """Change it again."""


_inside: contextvars.ContextVar[Any] = contextvars.ContextVar("spanreplay_leaf", default=None)
"""The object whose recorded method is running: if its async method calls its sync one, that is the same call."""


def function_wrappers(
    describe: Callable[[Any, tuple[Any, ...], dict[str, Any]], FunctionCall],
    is_leaf: Callable[[Any], bool] | None = None,
    watch: Callable[[], Watch | None] = lambda: None,
) -> tuple[Wrapper, Wrapper]:
    """Return sync and async wrappers that make a method a boundary; `describe` gets the object and the arguments.

    An object for which `is_leaf` is false runs unrecorded: it only passes calls on to a separate boundary. `watch`
    returns what the body may change beside its result.
    """

    def run(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        active = active_run()
        if active is None or _inside.get() is instance or (is_leaf and not is_leaf(instance)):
            return wrapped(*args, **kwargs)

        def live(*args: Any, **kwargs: Any) -> Any:
            token = set_variable(_inside, instance)
            try:
                return wrapped(*args, **kwargs)
            finally:
                reset_variable(_inside, token)

        def describe_call() -> FunctionCall:
            function_call = describe(instance, args, kwargs)
            return with_call(function_call, live, args, kwargs) if active.resolver.may_amend else function_call

        watched = guard.guarded("watching a tool", watch)
        if watched is None:
            return call_sync(describe_call, lambda: live(*args, **kwargs))

        def live_watched() -> Any:
            guard.guarded("watching a tool", watched.begin)
            return _end(watched, live(*args, **kwargs))

        return _restored(watched, call_sync(describe_call, live_watched))

    async def arun(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        active = active_run()
        if active is None or _inside.get() is instance or (is_leaf and not is_leaf(instance)):
            return await wrapped(*args, **kwargs)

        async def live(*args: Any, **kwargs: Any) -> Any:
            token = set_variable(_inside, instance)
            try:
                return await wrapped(*args, **kwargs)
            finally:
                reset_variable(_inside, token)

        def describe_call() -> FunctionCall:
            function_call = describe(instance, args, kwargs)
            return with_call(function_call, live, args, kwargs) if active.resolver.may_amend else function_call

        watched = guard.guarded("watching a tool", watch)
        if watched is None:
            return await call_async(describe_call, lambda: live(*args, **kwargs))

        async def live_watched() -> Any:
            guard.guarded("watching a tool", watched.begin)
            return _end(watched, await live(*args, **kwargs))

        return _restored(watched, await call_async(describe_call, live_watched))

    return run, arun


def _end(watched: Watch, result: Any) -> Any:
    changed = guard.guarded("watching a tool", watched.end)
    return Changed(result, changed) if changed else result


def _restored(watched: Watch, outcome: Any) -> Any:
    if not isinstance(outcome, Changed):
        return outcome
    if not watched.has_begun:
        guard.guarded("restoring what a tool changed", watched.restore, outcome.state)
    return outcome.result


def wrap_subclasses(
    base: Any,
    wrappers: dict[str, Wrapper],
    patches: Patches,
    *,
    is_wanted: Callable[[Any], bool] = lambda cls: True,
) -> None:
    """Wrap each method named in `wrappers` that a subclass of `base` defines itself, if `is_wanted` accepts the class.

    Only innermost methods are wrapped: the framework's own callbacks, error handling and formatting stay outside and
    run for real; a method that its class has already wrapped in a span is wrapped inside that span.
    """

    def wrap(cls: Any) -> None:
        for name, wrapper in wrappers.items() if is_wanted(cls) else ():
            method = vars(cls).get(name)
            if getattr(method, "__isabstractmethod__", False) or _is_wrapped(method, wrapper):
                continue
            if type(method) is wrapt.FunctionWrapper:
                inner = wrapt.FunctionWrapper(method.__wrapped__, wrapper)
                patches.replace(cls, name, wrapt.FunctionWrapper(inner, method._self_wrapper))
            elif inspect.isfunction(method):
                patches.wrap(cls, name, wrapper)

    original = vars(base).get("__init_subclass__")
    inner = original.__func__ if isinstance(original, classmethod) else None

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807 -- it replaces one
        if inner is not None:
            inner(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        wrap(cls)

    patches.replace(base, "__init_subclass__", classmethod(__init_subclass__))
    pending = list(base.__subclasses__())
    while pending:
        cls = pending.pop()
        wrap(cls)
        pending.extend(cls.__subclasses__())


def _is_wrapped(method: Any, wrapper: Wrapper) -> bool:
    while type(method) is wrapt.FunctionWrapper:
        if method._self_wrapper is wrapper:
            return True
        method = method.__wrapped__
    return False
