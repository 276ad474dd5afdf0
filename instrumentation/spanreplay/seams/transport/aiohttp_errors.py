"""Calls of aiohttp: some of its exceptions hold a request and its responses, which are the replay's own."""

from __future__ import annotations

from typing import Any

from spanreplay.runtime.wire.http_call import HttpCall

__all__ = ["AiohttpCall"]


class AiohttpCall(HttpCall):
    """One request of a session; its redirects are its hops."""

    def describe_error(self, exc: BaseException) -> dict[str, Any]:
        """An exception as JSON, without its stacks and without the request."""
        import aiohttp

        if not isinstance(exc, aiohttp.ClientResponseError):
            return super().describe_error(exc)
        cls = type(exc)
        headers = None if exc.headers is None else [[str(name), str(value)] for name, value in exc.headers.items()]
        value = {"status": exc.status, "message": exc.message, "headers": headers}
        return {"type": f"{cls.__module__}.{cls.__qualname__}", "message": str(exc), "value": value}

    def rebuild_error(self, error: dict[str, Any]) -> BaseException | None:
        """The exception without its stacks; None if it can't be rebuilt."""
        import aiohttp
        from multidict import CIMultiDict

        value, cls = error.get("value"), getattr(aiohttp, str(error.get("type")).rpartition(".")[2], None)
        if not (isinstance(cls, type) and issubclass(cls, aiohttp.ClientResponseError)):
            return super().rebuild_error(error)
        if not self.asked or not isinstance(value, dict) or "status" not in value:
            return None
        headers: Any = value.get("headers")
        made: Any = None if headers is None else CIMultiDict(map(tuple, headers))
        return cls(**self.asked, status=value["status"], message=str(value.get("message", "")), headers=made)
