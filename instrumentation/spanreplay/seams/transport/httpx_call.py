"""One `send` of httpx in progress: events on its wires are recorded, or recorded ones are served to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanreplay.model import config, guard
from spanreplay.model.call import Outcome
from spanreplay.runtime.calls.cancel import await_cancellation
from spanreplay.runtime.calls.open_call import Crossing
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.calls.turns import END, await_turn, wait_turn
from spanreplay.runtime.run import Run
from spanreplay.runtime.wire.http_body import Body, ServedBody
from spanreplay.runtime.wire.http_call import HttpCall
from spanreplay.runtime.wire.http_reply import HttpReply, is_end_of_body
from spanreplay.runtime.wire.http_wire import HttpExchange, describe_request, patch_content, read_meta
from spanreplay.runtime.wire.sent_body import Taken
from spanreplay.runtime.wire.timeouts import read_httpx_timeout
from spanreplay.seams.concurrency.closings import Closing, await_closed
from spanreplay.seams.transport.httpx_bodies import decode_chunks
from spanreplay.seams.transport.httpx_errors import describe_error, restore_error

if TYPE_CHECKING:
    from spanreplay.seams.transport.httpx_wires import Streams

__all__ = ["HttpxCall"]


class HttpxCall(HttpCall):
    """One call of `send`; redirects and authentication requests are its hops."""

    def __init__(self, hx: Any, streams: Streams, request: Any, body: Taken, *, is_stream: bool) -> None:
        super().__init__(self._describe_request, is_stream=is_stream)
        self.hx = hx
        self._streams = streams
        self._request = request
        self._sent_body = body
        self._responses: dict[Body, Any] = {}
        """The responses whose bodies are still encoded."""
        self._url: tuple[Any, str] = (None, "")
        self.note_sent(body)

    def _describe_request(self, run: Run, patches: Any) -> tuple[Spec, HttpExchange]:
        request = self._request
        headers = request.headers.multi_items()
        url, timeout = self._write_url(request.url), read_httpx_timeout(request.extensions)
        if not patches:
            return describe_request(run, request.method, url, headers, self._sent_body, timeout)
        body = patch_content(self._sent_body, headers, patches)
        found = describe_request(run, request.method, url, headers, body, timeout)
        self._request = self._with_content(body)
        return found

    def _write_url(self, url: Any) -> str:
        """A URL as text, which takes httpx a while; kept, because most calls have only one."""
        if self._url[0] is not url:
            self._url = (url, str(url))
        return self._url[1]

    def _with_content(self, content: bytes) -> Any:
        request = self._request
        headers = [(k, v) for k, v in request.headers.multi_items() if k.lower() not in ("content-length", "host")]
        return self.hx.Request(
            request.method, request.url, headers=headers, content=content, extensions=request.extensions
        )

    def replace_request(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of `send`, with the request as changed by a plan."""
        return ((self._request, *args[1:]), kwargs) if args else (args, {**kwargs, "request": self._request})

    # ── live: events on the wires ───────────────────────────────────────────────────────────────────────
    def note_response(self, request: Any, response: Any) -> None:
        """Note one response; there are several if the client follows redirects or authenticates."""
        guard.guarded("recording a response", self._note_response, request, response)

    def _note_response(self, request: Any, response: Any) -> None:
        body = self.answered(_head(self._write_url(request.url), response))
        if hasattr(response, "_content"):
            self._keep_whole(body, response._content)
        else:
            self._responses[body] = response
            response.stream = self._streams.tee(response.stream, body, self)

    def _keep_whole(self, body: Body, content: bytes | None) -> None:
        """Note a body that was read completely with its response."""
        if content and self.has_room(content):
            body.reply.chunks = [(self.elapsed_ms(), content)]
        body.end = "closed" if content is None else "complete"

    def note_returned(self, response: Any) -> None:
        """Record the call now that the client is done, or once its stream has been read."""
        if self.is_served:
            return
        if not self._bodies:  # answered by code in front of the transport
            guard.guarded("recording a response", self._note_made, response)
        self.returned()

    def _note_made(self, response: Any) -> None:
        body = Body(self, _head(str(self._request.url), response))
        self._bodies.append(body)
        self._keep_whole(body, getattr(response, "_content", None))

    @staticmethod
    def _prefer(exc: BaseException | None, bodies: list[Body]) -> None:
        """Keep the transport's exception: httpx passes it on."""

    def _to_reply(self, body: Body) -> HttpReply:
        response = self._responses.pop(body, None)
        body.finish("closed")
        is_encoded = any(name.lower() == "content-encoding" for name, _ in body.reply.headers)
        if response is not None and is_encoded and not self._is_cut:
            body.reply.chunks, error = decode_chunks(self.hx, response, body.reply.chunks, config.BODY_BYTES_MAX)
            body.error = body.error or error
            size = sum(len(piece) for _, piece in body.reply.chunks)
            if size > config.BODY_BYTES_MAX:
                self.cut(size)
                body.let_go()
        return super()._to_reply(body)

    def _read_meta(self, reply: HttpReply, texts: list[str]) -> dict[str, Any]:
        return read_meta(self._exchange, reply, texts, is_stream=self.is_stream)

    def _read_so_far(self) -> HttpReply | None:
        reply = super()._read_so_far()
        response = self._responses.get(self._bodies[-1]) if self._bodies else None
        if reply is None or response is None:
            return None
        reply.hops = []
        reply.chunks, _ = decode_chunks(self.hx, response, reply.chunks, config.BODY_BYTES_MAX)
        return reply

    def describe_error(self, exc: BaseException) -> dict[str, Any]:
        """Describe an exception of httpx as JSON."""
        return describe_error(self.hx, exc)

    def closing(self) -> Closing:
        """Note that a response is being closed; if it is the last one of a stream, the agent goes on afterwards."""
        return Closing(self.crossing if self.is_stream and self._is_returned else None)

    # ── served: timing ──────────────────────────────────────────────────────────────────────────────────
    def wait(self) -> None:
        """Wait until the recorded response may go out; a live call does not wait."""
        if self.crossing is not None and self.is_served:
            wait_turn(self.crossing, self._first_part)

    async def wait_async(self) -> None:
        """Wait until the recorded response may go out; a live call and a cancelled one do not wait."""
        crossing = self.crossing
        if crossing is None or crossing.served is None or crossing.served.outcome == Outcome.CANCELLED.value:
            return
        await await_turn(crossing, self._first_part, 0 if crossing.served.clocks else None)

    def wait_end(self, reply: HttpReply) -> None:
        """Wait until the recorded body may end."""
        if self.crossing is not None and reply is self._final and reply.end != "closed":
            wait_turn(self.crossing, END)

    async def await_end_of(self, reply: HttpReply, failure: BaseException | None) -> None:
        """Wait until the recorded body may end; no wait if the agent stopped reading it or cancels it."""
        if self.crossing is not None and reply is self._final and is_end_of_body(reply.end, failure):
            await await_turn(self.crossing, END)

    async def await_closed(self, reply: HttpReply) -> None:
        """Wait until the recorded response was closed, or until a call that ended while it was closed is cancelled."""
        if reply is not self._final:
            return
        if self.is_stream:
            await await_closed(self.crossing)
        elif self.crossing is not None and _is_cancelled_when_closing(self.crossing, reply):
            await await_cancellation(self.crossing)

    # ── served: requests from the wires ─────────────────────────────────────────────────────────────────
    def _load(self, crossing: Crossing) -> None:
        """Do nothing yet: the call waits for its turn first."""

    def load(self) -> None:
        """Prepare the recorded responses, if there are any to serve. Raises: ReplayMiss if they can't be served."""
        if self.crossing is not None and self.crossing.served is not None:
            super()._load(self.crossing)

    def next_failure(self) -> BaseException | None:
        """Return the recorded exception in place of the next response, if there is one; consumes nothing."""
        if not self._pending or self._pending[0].status:
            return None
        return self.restore_error(self._pending[0].error or {})

    def next_response(self, request: Any) -> Any:
        """Return the recorded response to this request. Raises: the recorded exception, or ReplayMiss."""
        failure = self.next_failure()
        if failure is not None:
            raise failure
        reply = self._pop()
        response = self.hx.Response(
            reply.status,
            headers=reply.headers,
            stream=self._streams.replayed(self, ServedBody(self, reply)),
            request=request,
            extensions={
                "http_version": reply.http_version.encode("ascii", "replace"),
                "reason_phrase": reply.reason.encode("ascii", "replace"),
            },
        )
        if "content-encoding" in response.headers:
            # The recorded body is already decoded; headers stay as they were
            response._decoder = self.hx._decoders.IdentityDecoder()
        return response

    def rebuild_error(self, error: dict[str, Any]) -> BaseException | None:
        """Rebuild the exception of `describe_error`."""
        return restore_error(self.hx, error, self._request)


def _is_cancelled_when_closing(crossing: Crossing, reply: HttpReply) -> bool:
    """Whether the recorded call was cancelled although its response had arrived whole."""
    is_cancelled = crossing.served is not None and crossing.served.outcome == Outcome.CANCELLED.value
    return is_cancelled and reply.end == "complete" and reply.error is None


def _head(url: str, response: Any) -> HttpReply:
    """Return a response's head, without its body."""
    return HttpReply(
        status=response.status_code,
        reason=response.reason_phrase,
        http_version=response.http_version,
        headers=response.headers.multi_items(),
        url=url,
    )
