"""Seam: `urllib.request`. One top-level `OpenerDirector.open` of an HTTP address is one call; redirects are its hops.

Only requests through an opener are recorded: `http.client` alone is used by spanreplay's own delivery. The opener's own
code (redirects, authentication, cookies, `HTTPError`) runs in a replay too: only `do_open`, which owns the network, is
replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

from spanreplay.model import guard
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.wire.http_body import ServedBody
from spanreplay.runtime.wire.http_call import HttpCall, begin_call, is_passed_on, is_recording
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.runtime.wire.sent_body import take_body
from spanreplay.runtime.wire.stored_wire import rebuild_response
from spanreplay.runtime.wire.timeouts import read_socket_timeout
from spanreplay.seams.transport.urllib3_wires import TeeResponse

_VERSIONS = {10: "HTTP/1.0", 11: "HTTP/1.1"}


class _Opening:
    """One `open` in progress; `call` is None until the network is needed."""

    def __init__(self) -> None:
        self.is_begun = False
        self.call: HttpCall | None = None


_current: ContextVar[_Opening | None] = ContextVar("spanreplay_urllib_opening", default=None)


class _TeeResponse(TeeResponse):
    """A `TeeResponse` for `http.client.HTTPResponse`, which decodes nothing."""

    def __init__(self, response: Any, body: Any) -> None:
        super().__init__(response, body)
        self._self_is_encoded = False

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")


class UrllibSeam:
    """The seam for the module `urllib.request`."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def install(self, patches: Patches) -> None:
        """Wrap the opener. Raises: AttributeError if it is not as expected."""
        patches.wrap(self._request.OpenerDirector, "open", self._open)
        patches.wrap(self._request.AbstractHTTPHandler, "do_open", self._do_open)

    def _open(self, wrapped: Any, opener: Any, args: Any, kwargs: Any) -> Any:
        if not is_recording() or _current.get() is not None:
            return wrapped(*args, **kwargs)
        opening = _Opening()
        token = set_variable(_current, opening)
        try:
            response = wrapped(*args, **kwargs)
        except BaseException as exc:
            if opening.call is not None:
                if isinstance(exc, self._request.HTTPError):
                    opening.call.returned()  # a response in the form of an exception
                else:
                    opening.call.failed(exc)
            raise
        finally:
            reset_variable(_current, token)
        if opening.call is not None:
            opening.call.returned()
        return response

    def _do_open(self, wrapped: Any, handler: Any, args: Any, kwargs: Any) -> Any:
        opening = _current.get()
        request = args[1] if len(args) > 1 else kwargs["req"]
        if opening is not None and not opening.is_begun:
            opening.is_begun = True
            opening.call = _begin(request)
        call = opening.call if opening is not None else None
        if call is None:
            return wrapped(*args, **kwargs)
        answer = partial(_serve, call, request) if call.is_served else partial(call.ask, wrapped, *args, **kwargs)
        response = call.attempt(answer)
        if call.is_served:
            return response
        return guard.guarded("recording a response", _note, call, response) or response


def _begin(request: Any) -> HttpCall | None:
    if is_passed_on():
        return None
    # `request.data = …` would drop a content-length that is already set
    body, request._data = take_body(request.data)
    timeout = read_socket_timeout(getattr(request, "timeout", None))
    headers = request.header_items()
    call = begin_call(request.get_method(), request.full_url, headers, body, timeout=timeout, is_stream=True)
    if call is not None and call.patched is not None:
        request._data = call.patched
        for name in ("Content-length", "Transfer-encoding"):
            request.remove_header(name)
        request.add_unredirected_header("Content-length", str(len(call.patched)))
    return call


def _note(call: HttpCall, response: Any) -> Any:
    reply = HttpReply(
        status=response.status,
        reason=response.reason or "",
        http_version=_VERSIONS.get(response.version, "HTTP/1.1"),
        headers=list(response.headers.items()),
        url=response.url,
    )
    body = call.answered(reply)
    if response.isclosed():
        body.finish("complete", is_alone=False)
    return _TeeResponse(response, body)


def _serve(call: HttpCall, request: Any) -> Any:
    reply = call.next_reply()
    response: Any = rebuild_response(reply, request.get_method(), call)
    # As `do_open` does to a response
    response.url = request.get_full_url()
    response.msg = response.reason
    return _TeeResponse(response, ServedBody(call, reply))


def install(module: Any, patches: Patches) -> None:
    """Patch `urllib.request`."""
    UrllibSeam(module).install(patches)
