"""Wraps methods of every subclass of a framework's base class, present and future."""

from __future__ import annotations

import inspect
from typing import Any

from spanreplay._patch import Patches, Wrapper


def wrap_subclasses(base: Any, wrappers: dict[str, Wrapper], patches: Patches) -> None:
    """Wrap `wrappers` wherever a subclass of `base` defines such a method itself.

    Leaf methods only: the framework's own callbacks, error handling and formatting stay outside and run for real.
    """

    def wrap(cls: Any) -> None:
        for name, wrapper in wrappers.items():
            method = vars(cls).get(name)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                patches.wrap(cls, name, wrapper)

    original = vars(base).get("__init_subclass__")
    inner = original.__func__ if isinstance(original, classmethod) else None

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807 -- it is one
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
