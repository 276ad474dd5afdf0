"""The arguments of a call by name, so that f(1) and f(x=1) are the same request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["bind_arguments", "call_arguments"]

_SIGNATURES: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()


def call_arguments(
    function: Callable[..., Any] | inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    exclude: Collection[str] = (),
) -> dict[str, Any]:
    """Every argument by its parameter's name, defaults applied; `*args` as a list, `**kwargs` as a dict.

    Names in `exclude` (self, callbacks, injected context) are left out. A call that does not fit the
    signature (it will fail by itself) and a callable without a signature give {"args": …, "kwargs": …}.
    """
    try:
        signature = function if isinstance(function, inspect.Signature) else _signature_of(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {"args": list(args), "kwargs": {k: v for k, v in kwargs.items() if k not in exclude}}
    bound.apply_defaults()
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if name in exclude:
            continue
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            value = list(value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            value = {key: each for key, each in value.items() if key not in exclude}
        # Test only our own list and dict for truth: a data frame raises, and a query would be run
        if kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) or value:
            named[name] = value
    return named


def bind_arguments(signature: inspect.Signature, named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Rebuild the positional and keyword arguments from the names that `call_arguments` returned."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            kwargs.update(named.get(name, {}))
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            args.extend(named.get(name, ()))
        elif name in named and parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[name] = named[name]
        elif name in named:
            args.append(named[name])
    return args, kwargs


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    plain = getattr(function, "__func__", None)
    if plain is not None:  # a bound method is a new object each time
        return inspect.signature(function)
    try:
        signature = _SIGNATURES.get(function)
    except TypeError:  # not weakly referable, or not hashable
        return inspect.signature(function)
    if signature is None:
        signature = inspect.signature(function)
        _SIGNATURES[function] = signature
    return signature
