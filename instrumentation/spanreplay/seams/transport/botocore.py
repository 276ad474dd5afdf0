"""Seam: `botocore.httpsession.URLLib3Session.send`, below boto3 and every AWS client.

One attempt is one call, because botocore's retries happen above it. Event streams (Bedrock) are recorded as they are
read. aiobotocore sends through aiohttp and is recorded there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from spanreplay.model import guard
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.wire.http_body import ServedBody
from spanreplay.runtime.wire.http_call import HttpCall, begin_call, is_passed_on, is_recording
from spanreplay.runtime.wire.sent_body import take_body
from spanreplay.runtime.wire.timeouts import read_socket_timeout
from spanreplay.seams.transport.urllib3_wires import TeeResponse, read_head, rebuild_urllib3

_CONTENT_LENGTH = "content-length"


def _send(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    if not is_recording() or is_passed_on():
        return wrapped(*args, **kwargs)
    request = args[0] if args else kwargs["request"]
    body, request.body = take_body(request.body)
    headers = [(str(k), _text(v)) for k, v in request.headers.items()]
    is_stream = bool(request.stream_output)
    timeout = read_socket_timeout(getattr(session, "_timeout", None))
    call = begin_call(request.method, request.url, headers, body, timeout=timeout, is_stream=is_stream)
    if call is None:
        return wrapped(*args, **kwargs)
    if call.patched is not None and not call.is_served:
        request.body = call.patched
        request.headers["Content-Length"] = str(len(call.patched))
    call.asked = {"request": request}
    answer = partial(_serve, call, request) if call.is_served else partial(call.ask, wrapped, *args, **kwargs)
    try:
        response = call.attempt(answer)
    except BaseException as exc:
        call.failed(exc)
        raise
    if call.is_served:
        return response
    guard.guarded("recording a response", _note, call, response, is_stream)
    return response


def _note(call: HttpCall, response: Any, is_stream: bool) -> None:
    body = call.answered(read_head(response.raw, response.url))
    if is_stream:
        response.raw = TeeResponse(response.raw, body)
    else:
        body.keep(response.content)
        body.finish("complete", is_alone=False)
    call.returned()


def _serve(call: HttpCall, request: Any) -> Any:
    import urllib3
    from botocore.awsrequest import AWSResponse

    reply = call.next_reply()
    raw = rebuild_urllib3(
        urllib3.HTTPResponse,
        urllib3._collections.HTTPHeaderDict,
        call,
        reply,
        preload_content=False,
        decode_content=False,
        request_method=request.method,
        request_url=request.url,
    )
    if raw.length_remaining is not None and _CONTENT_LENGTH in raw.headers and request.method != "HEAD":
        # botocore compares the bytes read with the header, and redaction may have changed the length
        raw.headers[_CONTENT_LENGTH] = str(raw.length_remaining)
    response = AWSResponse(request.url, reply.status, raw.headers, raw)
    if request.stream_output:
        response.raw = TeeResponse(raw, ServedBody(call, reply))
    else:
        response.content  # noqa: B018 -- reading it is what botocore does here
    return response


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def install(module: Any, patches: Patches) -> None:
    """Patch `botocore.httpsession`."""
    patches.wrap(module.URLLib3Session, "send", _send)
