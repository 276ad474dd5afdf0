"""Arguments of a client's method by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

__all__ = ["bind"]

_METHODS_MAX: Final = 256


@lru_cache(maxsize=_METHODS_MAX)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def bind(method: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], *, defaults: bool = True) -> dict[str, Any]:
    """Return a method's arguments, with its defaults if wanted; as they are given if they do not fit the method."""
    function = getattr(method, "__func__", None)
    try:
        if function is None:
            bound = inspect.signature(method).bind(*args, **kwargs)
        else:
            bound = _signature(function).bind(getattr(method, "__self__", None), *args, **kwargs)
    except (TypeError, ValueError):  # the method itself says so
        return {"*": args, **kwargs}
    if defaults:
        bound.apply_defaults()
    found = dict(bound.arguments)
    if function is not None and found:
        del found[next(iter(found))]
    return found
