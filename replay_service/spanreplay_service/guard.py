"""The interceptor of the service: it authenticates calls, limits their rate and time, and maps their errors.

(1) Health checks pass. (2) A call without a valid token is refused. (3) A tenant's rate is limited. (4) The
handler runs under a deadline. (5) A SpanreplayError is returned as google.rpc.ErrorInfo, any other error as
INTERNAL without details.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from spanreplay.model.errors import AccessDenied, ConfigError, SpanreplayError
from spanreplay.recording.remote import wire
from spanreplay_collector.receive.auth import Authenticator, Token
from spanreplay_service.limits import (
    DEADLINE_S_MAX,
    HINT_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    RATE_BURST_MAX,
    RATE_PER_S_MAX,
)

logger = logging.getLogger(__name__)

_OPEN_PREFIX: Final = "/grpc.health.v1.Health/"

_token: ContextVar[Token] = ContextVar("spanreplay_token")


def current_tenant() -> str:
    """The tenant of the current call. Raises: LookupError outside a call that passed the guard."""
    return _token.get().tenant


def check_may_erase() -> None:
    """Raises: AccessDenied if the token of the current call may not remove runs."""
    if not _token.get().may_erase:
        raise AccessDenied(
            "this token may not erase", hint='use one that the service\'s tokens file gives "erase": true'
        )


async def abort(context: Any, *, status: str, reason: str, message: str, hint: str = "") -> None:
    """End a call with a status and its ErrorInfo; never returns."""
    code: grpc.StatusCode = grpc.StatusCode[status]
    message, hint = message[:MESSAGE_CHARS_MAX], hint[:HINT_CHARS_MAX]
    info = error_details_pb2.ErrorInfo(reason=reason, domain=wire.ERROR_DOMAIN)
    if hint:
        info.metadata["hint"] = hint
    packed = AnyMessage()
    packed.Pack(info)
    details = status_pb2.Status(code=code.value[0], message=message, details=[packed])
    await context.abort(code, message, ((wire.STATUS_DETAILS_KEY, details.SerializeToString()),))


async def abort_with(context: Any, error: SpanreplayError) -> None:
    """End a call with a SpanreplayError; never returns."""
    row = wire.find_reason(error)
    await abort(context, status=row.status, reason=row.reason, message=str(error), hint=error.hint)


class _Bucket:
    """Admits `RATE_PER_S_MAX` calls a second, and bursts of `RATE_BURST_MAX`."""

    def __init__(self, now_s: float) -> None:
        self._level = RATE_BURST_MAX
        self._updated_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether one more call may pass now."""
        self._level = min(RATE_BURST_MAX, self._level + (now_s - self._updated_s) * RATE_PER_S_MAX)
        self._updated_s = now_s
        if self._level < 1:
            return False
        self._level -= 1
        return True


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpcio ships no types
    """The interceptor for all calls; see the module's steps."""

    def __init__(self, authenticator: Authenticator, *, deadline_s: float = DEADLINE_S_MAX) -> None:
        self._authenticator = authenticator
        self._deadline_s = deadline_s
        self._buckets: dict[str, _Bucket] = {}  # one per tenant; the token table bounds the tenants

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Return the wrapped handler for a call, or a handler that refuses it."""
        if handler_call_details.method.startswith(_OPEN_PREFIX):
            return await continuation(handler_call_details)  # (1)
        # A non-ASCII value arrives as bytes and is never a valid token.
        values = [v for k, v in handler_call_details.invocation_metadata or () if k == "authorization"]
        authorization = values[0] if len(values) == 1 and isinstance(values[0], str) else None
        try:
            token = self._authenticator.find_token(authorization)
        except AccessDenied as exc:
            return _deny(  # (2)
                status="UNAUTHENTICATED",
                reason="ACCESS_DENIED",
                message=str(exc),
                hint="set SPANREPLAY_TOKEN",
            )
        now_s = time.monotonic()
        if not self._buckets.setdefault(token.tenant, _Bucket(now_s)).take(now_s):
            return _deny(  # (3)
                status="RESOURCE_EXHAUSTED",
                reason=wire.OVERLOADED,
                message=f"more than {RATE_PER_S_MAX:g} calls a second",
            )
        _token.set(token)  # each call runs in its own task and therefore in its own context
        handler = await continuation(handler_call_details)
        return None if handler is None else self._wrap(handler)

    def _wrap(self, handler: Any) -> Any:
        # Requests are parsed here: gRPC would log a traceback for each malformed one.
        parse = _parser(handler.request_deserializer)
        serializer = handler.response_serializer
        if handler.response_streaming:

            async def stream(request: bytes, context: Any) -> None:
                async def pump() -> None:
                    # Written here, not yielded: the deadline also applies to a client that never reads.
                    async for response in handler.unary_stream(parse(request), context):
                        await context.write(response)

                await self._bounded(pump(), context)

            return grpc.unary_stream_rpc_method_handler(stream, response_serializer=serializer)
        if handler.request_streaming:

            async def collect(requests: AsyncIterator[bytes], context: Any) -> Any:
                parsed = (parse(request) async for request in requests)
                return await self._bounded(handler.stream_unary(parsed, context), context)

            return grpc.stream_unary_rpc_method_handler(collect, response_serializer=serializer)

        async def unary(request: bytes, context: Any) -> Any:
            async def answer() -> Any:
                return await handler.unary_unary(parse(request), context)

            return await self._bounded(answer(), context)

        return grpc.unary_unary_rpc_method_handler(unary, response_serializer=serializer)

    async def _bounded(self, work: Awaitable[Any], context: Any) -> Any:
        try:
            return await asyncio.wait_for(work, self._deadline_s)  # (4)
        except SpanreplayError as exc:
            await abort_with(context, exc)  # (5)
        except grpc.aio.AbortError:
            raise
        except asyncio.TimeoutError:
            await abort(
                context,
                status="DEADLINE_EXCEEDED",
                reason=wire.TOO_SLOW,
                message=f"not done after {self._deadline_s:g} s",
            )
        except Exception:  # a bug in the service: details go to the log, not to the caller
            logger.exception("a call failed")
            await abort(
                context, status="INTERNAL", reason="INTERNAL", message="the service failed; its log has the reason"
            )
        return None


def _parser(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse(request: bytes) -> Any:
        try:
            return deserialize(request)
        except DecodeError as exc:
            raise ConfigError("the request is not a message of this method") from exc

    return parse


def _deny(*, status: str, reason: str, message: str, hint: str = "") -> Any:
    # A stream handler fits every kind of call and does not read the request.
    async def deny(request_iterator: Any, context: Any) -> None:
        del request_iterator
        await abort(context, status=status, reason=reason, message=message, hint=hint)

    return grpc.stream_stream_rpc_method_handler(deny)
