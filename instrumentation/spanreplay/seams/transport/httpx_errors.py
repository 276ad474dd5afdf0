"""Exceptions of httpx as recorded JSON, and rebuilt from it."""

from __future__ import annotations

import contextlib
from typing import Any

from spanreplay.model.errors import Unserializable
from spanreplay.runtime.calls import exceptions


def describe_error(hx: Any, exc: BaseException) -> dict[str, Any]:
    """Return class and message; an exception that is not httpx's own is encoded whole if it has a codec."""
    cls = type(exc)
    root = cls.__module__.partition(".")[0]
    described: dict[str, Any] = {"type": f"{root}.{cls.__qualname__}", "message": str(exc)}
    if root != hx.__name__:
        with contextlib.suppress(Unserializable):
            described["value"] = exceptions.encode(exc)
    return described


def restore_error(hx: Any, error: dict[str, Any], request: Any) -> BaseException | None:
    """Rebuild the exception of `describe_error`; None if it can't be rebuilt."""
    if "value" in error:
        try:
            return exceptions.decode(error["value"])
        except exceptions.NOT_REBUILT:
            return None
    message = str(error.get("message", ""))
    cls = getattr(hx, str(error.get("type", "")).rpartition(".")[2], None)
    if isinstance(cls, type) and issubclass(cls, hx.RequestError):
        found: BaseException = cls(message, request=request)
        return found
    if isinstance(cls, type) and issubclass(cls, Exception):
        for args in ((message,), ()):
            with contextlib.suppress(TypeError):
                return cls(*args)
    failure: BaseException = hx.TransportError(message, request=request)
    return failure
