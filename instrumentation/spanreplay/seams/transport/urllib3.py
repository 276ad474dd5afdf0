"""Seam: `urllib3.HTTPConnectionPool.urlopen`, versions 1.26 and 2.

One `urlopen` is one call; retries and redirects by the pool itself are inside it. Requests that a library recorded
above (requests, botocore) sends through urllib3 belong to that library's call.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from spanreplay.model import guard
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.wire.http_body import ServedBody
from spanreplay.runtime.wire.http_call import HttpCall, begin_call, is_passed_on, is_recording
from spanreplay.runtime.wire.sent_body import take_body
from spanreplay.runtime.wire.timeouts import read_socket_timeout
from spanreplay.seams.transport.urllib3_wires import TeeResponse, read_head, rebuild_urllib3

_FRAMING = ("content-length", "transfer-encoding")
_PORTS = {"http": 80, "https": 443}


class Urllib3Seam:
    """The seam for the module `urllib3`."""

    def __init__(self, urllib3: Any) -> None:
        self._urllib3 = urllib3
        self._signature = inspect.signature(urllib3.HTTPConnectionPool.urlopen)

    def install(self, patches: Patches) -> None:
        """Wrap the pool. Raises: AttributeError if it is not as expected."""
        patches.wrap(self._urllib3.HTTPConnectionPool, "urlopen", self._urlopen)

    def _urlopen(self, wrapped: Any, pool: Any, args: Any, kwargs: Any) -> Any:
        if not is_recording() or is_passed_on():
            return wrapped(*args, **kwargs)
        bound = self._signature.bind(pool, *args, **kwargs)
        bound.apply_defaults()
        given = {**bound.arguments, **bound.arguments.get("response_kw", {})}
        body, to_send = take_body(given["body"])
        if to_send is not given["body"]:
            args, kwargs = _with_body(args, kwargs, to_send)
        is_preloaded = bool(given["preload_content"])
        headers = given["headers"] if given["headers"] is not None else pool.headers
        call = begin_call(
            given["method"],
            _absolute_url(pool, given["url"]),
            [(str(k), _text(v)) for k, v in dict(headers or {}).items()],
            body,
            timeout=read_socket_timeout(given["timeout"], pool.timeout),
            is_stream=not is_preloaded,
        )
        if call is None:
            return wrapped(*args, **kwargs)
        if call.patched is not None and not call.is_served:
            args, kwargs = _with_patched(args, kwargs, call.patched)
        call.asked = {"pool": pool}
        answer = partial(self._serve, call, given) if call.is_served else partial(call.ask, wrapped, *args, **kwargs)
        try:
            response = call.attempt(answer)
        except BaseException as exc:
            call.failed(exc)
            raise
        if call.is_served:
            return response
        return guard.guarded("recording a response", _note, call, response, is_preloaded) or response

    def _serve(self, call: HttpCall, given: dict[str, Any]) -> Any:
        reply = call.next_reply()
        retries = given["retries"]
        if not isinstance(retries, self._urllib3.Retry):
            retries = self._urllib3.Retry.from_int(retries, redirect=given["redirect"])
        while call.has_hops and given["redirect"] and retries.redirect is not False:  # of a cassette: the pool follows
            reply = call.next_reply()
        response = rebuild_urllib3(
            self._urllib3.HTTPResponse,
            self._urllib3._collections.HTTPHeaderDict,
            call,
            reply,
            preload_content=given["preload_content"],
            decode_content=given["decode_content"],
            retries=retries,
            request_method=given["method"],
            request_url=reply.extra.get("url") or given["url"],
        )
        return response if given["preload_content"] else TeeResponse(response, ServedBody(call, reply))


def _note(call: HttpCall, response: Any, is_preloaded: bool) -> Any:
    url = response.geturl() or ""
    reply = read_head(response, url)
    reply.extra["url"] = url
    body = call.answered(reply)
    if is_preloaded:
        body.keep(response.data or b"")
        body.finish("complete", is_alone=False)
    else:
        response = TeeResponse(response, body)
    call.returned()
    return response


def _with_body(args: Any, kwargs: Any, body: Any) -> tuple[Any, Any]:
    if len(args) > 2:
        return (*args[:2], body, *args[3:]), kwargs
    return args, {**kwargs, "body": body}


def _with_patched(args: Any, kwargs: Any, body: bytes) -> tuple[Any, Any]:
    args, kwargs = _with_body(args, kwargs, body)
    headers = args[3] if len(args) > 3 else kwargs.get("headers")
    if headers is None:
        return args, kwargs  # the length is computed
    kept = {name: value for name, value in headers.items() if name.lower() not in _FRAMING}
    return ((*args[:3], kept, *args[4:]), kwargs) if len(args) > 3 else (args, {**kwargs, "headers": kept})


def _absolute_url(pool: Any, url: str) -> str:
    if "://" in url.partition("?")[0]:
        return url
    port = "" if pool.port in (None, _PORTS.get(pool.scheme)) else f":{pool.port}"
    return f"{pool.scheme}://{pool.host}{port}{url}"


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def install(module: Any, patches: Patches) -> None:
    """Patch urllib3."""
    Urllib3Seam(module).install(patches)
