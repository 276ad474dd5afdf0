"""Seam: `requests.Session.send`. One top-level send is one call; its redirects are its hops.

The session's own code runs in a replay too (hooks, redirects, authentication, cookies): only the adapter, which owns
the network, is replaced.
"""

from __future__ import annotations

from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from spanreplay.model import guard
from spanreplay.runtime.context_variables import reset_variable, set_variable
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.wire.http_body import ServedBody
from spanreplay.runtime.wire.http_call import HttpCall, begin_call, is_passed_on, is_recording
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.runtime.wire.sent_body import take_body
from spanreplay.runtime.wire.timeouts import read_socket_timeout
from spanreplay.seams.transport.urllib3_wires import TeeResponse, read_head, rebuild_urllib3

_ELAPSED_US = "elapsed_us"
_REPLY = "_spanreplay_reply"

_current: ContextVar[tuple[Any, HttpCall] | None] = ContextVar("spanreplay_requests_call", default=None)


class _Adapter:
    """Answers a session's requests in place of its adapter."""

    def __init__(self, requests: Any, inner: Any, call: HttpCall) -> None:
        self._requests = requests
        self._inner = inner
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._call.asked = {"request": request}
        response = self._call.attempt(self._answer, request, args, kwargs)
        guard.guarded("recording a response", self._note, response)
        return response

    def _answer(self, request: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    def _note(self, response: Any) -> None:
        raise NotImplementedError


class _RecordingAdapter(_Adapter):
    """Passes requests on to the session's adapter and notes the responses."""

    def _answer(self, request: Any, args: Any, kwargs: Any) -> Any:
        return self._call.ask(self._inner.send, request, *args, **kwargs)

    def _note(self, response: Any) -> None:
        reply = read_head(response.raw, str(response.url))
        response.raw = TeeResponse(response.raw, self._call.answered(reply))
        response.connection = self  # authentication sends its second request through it
        setattr(response, _REPLY, reply)


class _ServingAdapter(_Adapter):
    """Answers requests from the recording, without the network."""

    def _answer(self, request: Any, args: Any, kwargs: Any) -> Any:
        import urllib3

        reply = self._call.next_reply()
        raw = rebuild_urllib3(
            urllib3.HTTPResponse,
            urllib3._collections.HTTPHeaderDict,
            self._call,
            reply,
            preload_content=False,
            decode_content=False,
            request_method=request.method,
            request_url=request.path_url,
        )
        response = self._requests.adapters.HTTPAdapter.build_response(self, request, raw)
        response.raw = TeeResponse(raw, ServedBody(self._call, reply))
        setattr(response, _REPLY, reply)
        return response

    def _note(self, response: Any) -> None:
        """No-op."""


class RequestsSeam:
    """The seam for the module `requests`."""

    def __init__(self, requests: Any) -> None:
        self._requests = requests

    def install(self, patches: Patches) -> None:
        """Wrap the session. Raises: AttributeError if it is not as expected."""
        session = self._requests.Session
        patches.wrap(session, "send", self._send)
        patches.wrap(session, "get_adapter", self._get_adapter)

    def _get_adapter(self, wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
        adapter = wrapped(*args, **kwargs)
        current = _current.get()
        if current is None or current[0] is not session:
            return adapter
        call = current[1]
        adapter_class = _ServingAdapter if call.is_served else _RecordingAdapter
        return adapter_class(self._requests, adapter, call)

    def _send(self, wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
        if not is_recording():
            return wrapped(*args, **kwargs)
        current = _current.get()
        is_hop = current is not None and current[0] is session and kwargs.get("allow_redirects") is False
        if current is not None and is_hop:
            return self._keep_elapsed(wrapped(*args, **kwargs), current[1])
        call = self._begin(session, args, kwargs)
        token = set_variable(_current, None if call is None else (session, call))
        try:
            response = wrapped(*args, **kwargs)
        except BaseException as exc:
            if call is not None:
                call.failed(exc)
            raise
        finally:
            reset_variable(_current, token)
        if call is not None:
            self._keep_elapsed(response, call)
            call.returned()
        return response

    @staticmethod
    def _begin(session: Any, args: Any, kwargs: Any) -> HttpCall | None:
        request = args[0] if args else kwargs["request"]
        url, headers = getattr(request, "url", None), getattr(request, "headers", None)
        if not url or headers is None or is_passed_on():
            return None  # not a prepared request, which requests refuses; or part of a call above
        body, request.body = take_body(request.body)
        is_stream = bool(kwargs.get("stream", session.stream))
        timeout = read_socket_timeout(kwargs.get("timeout"))
        call = begin_call(
            str(request.method), str(url), _text_items(headers), body, timeout=timeout, is_stream=is_stream
        )
        if call is not None and call.patched is not None:
            request.body = call.patched
            headers.pop("Transfer-Encoding", None)
            headers["Content-Length"] = str(len(call.patched))
        return call

    @staticmethod
    def _keep_elapsed(response: Any, call: HttpCall) -> Any:
        guard.guarded("recording how long a response took", _note_elapsed, response, call.is_served)
        return response


def _note_elapsed(response: Any, is_served: bool) -> None:
    for one in (*response.history, response):
        reply: HttpReply | None = getattr(one, _REPLY, None)
        if reply is None:
            continue
        if is_served and _ELAPSED_US in reply.extra:
            one.elapsed = timedelta(microseconds=int(reply.extra[_ELAPSED_US]))
        elif not is_served:
            reply.extra[_ELAPSED_US] = one.elapsed // timedelta(microseconds=1)


def _text_items(headers: Any) -> list[tuple[str, str]]:
    return [(_text(k), _text(v)) for k, v in headers.items()]


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def install(module: Any, patches: Patches) -> None:
    """Patch requests."""
    RequestsSeam(module).install(patches)
