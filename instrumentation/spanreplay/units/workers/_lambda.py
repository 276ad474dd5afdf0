"""Unit: AWS Lambda. Each invocation that the runtime passes to a handler is its own run.

The input is Lambda's invocation (the event's text, ids, contexts, deadline), the output is the response to Lambda. When
the runtime asks for the next invocation, the environment may be frozen or discarded, so everything recorded is
delivered before that. In a replay the Runtime API is not used: where the runtime would wait for an invocation, it gets
the recorded one.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from spanreplay.model import config, guard
from spanreplay.model.call import Outcome
from spanreplay.units import factory
from spanreplay.units.jobs import Ended, is_replay, keep_encodable, not_here, record_job, replay_job
from spanreplay.units.play import end_replay

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_CLIENT, _HANDLER, _LOG = "lambda_runtime_client", "request_handler", "log_sink"
_OWN: Final = frozenset({_CLIENT, _HANDLER, _LOG})
"""Arguments that belong to the runtime; all others describe the invocation."""
_BODY, _DEADLINE, _ID, _TENANT = "event_body", "epoch_deadline_time_in_ms", "invoke_id", "tenant_id"
_EVENT: Final = "event"
"""Member of the input: the body, if it is text."""
_TRACE: Final = "_X_AMZN_TRACE_ID"
_BAGGAGE: Final = "baggage"
_STATED: Final = ("errorMessage", "errorType", "requestId")
"""Members of an error that are compared; the stack depends on this machine's files."""
_FUNCTION: Final = "AWS_LAMBDA_FUNCTION_NAME"
_RESERVE_MS: Final = 200
"""Time reserved before an invocation's deadline, after delivery."""
_PART: Final = "an invocation"


def install(module: Any, patches: Patches) -> None:
    """Patch the runtime's loop, or its client."""
    if module.__name__ == "awslambdaric.bootstrap":
        patches.wrap(module, "handle_event_request", _handle)
        return
    client = getattr(module, "BaseLambdaRuntimeClient", module.LambdaRuntimeClient)
    patches.wrap(client, "wait_next_invocation", _wait)
    patches.wrap(client, "post_init_error", _fail)
    patches.wrap(client, "restore_next", _restore)


# ── one invocation ──────────────────────────────────────────────────────────────────────────────────
class _Client:
    """The runtime's client during one invocation: holds back the response until the unit has ended."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._send: Callable[[], object] | None = None
        self.ended = Ended({})

    def __getattr__(self, name: str) -> Any:
        """Delegate everything except the output, such as the marshaller."""
        return getattr(self._client, name)

    def post_invocation_result(self, *args: Any, **kwargs: Any) -> None:
        """Keep the handler's result."""
        self._send = lambda: self._client.post_invocation_result(*args, **kwargs)
        self.ended = guard.guarded(_PART, lambda: _describe_result(*args, **kwargs)) or self.ended

    def post_invocation_error(self, *args: Any, **kwargs: Any) -> None:
        """Keep the handler's error."""
        self._send = lambda: self._client.post_invocation_error(*args, **kwargs)
        self.ended = guard.guarded(_PART, lambda: _describe_error(*args, **kwargs)) or self.ended

    def send(self) -> None:
        """Send the kept result or error. Raises: any exception of the runtime's client."""
        if self._send is not None:
            self._send()


def _describe_result(invoke_id: Any, result: Any, content_type: Any = None, *rest: Any, **named: Any) -> Ended:
    return Ended({"result": result, "content_type": content_type})


def _describe_error(invoke_id: Any, error: Any, *rest: Any, **named: Any) -> Ended:
    told = json.loads(error)
    return Ended({"error": {name: told.get(name) for name in _STATED}}, Outcome.ERROR)


def _end(client: _Client) -> Ended:
    return client.ended


# ── recording ───────────────────────────────────────────────────────────────────────────────────────
def _handle(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Handle one invocation, from the event's text to the result's text."""
    bound = guard.guarded(_PART, lambda: inspect.signature(wrapped).bind(*args, **kwargs))
    if bound is None:
        return wrapped(*args, **kwargs)
    client = _Client(bound.arguments[_CLIENT])
    bound.arguments[_CLIENT] = client

    def work() -> _Client:
        wrapped(*bound.args, **bound.kwargs)
        return client

    if is_replay():
        _replay(bound, work)
    given = guard.guarded(_PART, _describe_input, bound.arguments) or {}
    headers = guard.guarded(_PART, _find_headers, given)
    record_job(os.environ.get(_FUNCTION, ""), lambda: given, work, _end, headers)
    client.send()
    guard.guarded("delivery", _deliver, given.get(_DEADLINE))
    return None


def _describe_input(arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = keep_encodable({name: value for name, value in arguments.items() if name not in _OWN})
    body = given.get(_BODY)
    if isinstance(body, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            given[_EVENT] = given.pop(_BODY).decode()
    return {**given, _TRACE: os.environ.get(_TRACE)}


def _find_headers(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return headers that may name a user: W3C fields of the client context, or a request's headers in the event."""
    for text in (given.get("client_context_json"), given.get(_EVENT)):
        if isinstance(text, str) and _BAGGAGE in text.lower():
            told = json.loads(text)
            for member in ("w3c", "headers"):
                headers = told.get(member) if isinstance(told, Mapping) else None
                if isinstance(headers, Mapping):
                    return {str(name).lower(): value for name, value in headers.items()}
    return {}


def _deliver(deadline: Any) -> None:
    """Send recorded data to the collector, because the process may be frozen; at most until the deadline."""
    process = factory.offered()
    if process is None or process.shipper is None:
        return
    left = float(deadline) - time.time() * 1000 - _RESERVE_MS if deadline else config.SHIP_EXIT_TIMEOUT_MS
    if left > 0:
        process.shipper.flush(int(min(left, config.SHIP_EXIT_TIMEOUT_MS)))


class _Unasked:
    """An empty invocation, whose values `_replay` fills in from the recorded one."""

    def __getattr__(self, name: str) -> None:
        return None


# ── the runtime ─────────────────────────────────────────────────────────────────────────────────────
def _wait(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """The handler is loaded: a replay now runs the recorded invocation."""
    if is_replay():
        return _Unasked()
    guard.guarded("the start of a runtime", factory.begin_units)
    return wrapped(*args, **kwargs)


def _fail(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """The runtime reports that it can't start; a replay ends with its verdict instead."""
    if is_replay():
        error = args[0] if args else kwargs["error_response_data"]
        not_here(f"the handler can't be loaded: {error.get('errorMessage')}")
        end_replay()
    return wrapped(*args, **kwargs)


def _restore(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    return None if is_replay() else wrapped(*args, **kwargs)


def _replay(bound: inspect.BoundArguments, work: Callable[[], _Client]) -> NoReturn:
    def work_on(given: Mapping[str, Any]) -> _Client:
        from awslambdaric import bootstrap

        told = dict(given)
        bootstrap.update_xray_env_variable(told.pop(_TRACE, None))
        if _EVENT in told:
            told[_BODY] = told.pop(_EVENT).encode()
        bootstrap._GLOBAL_AWS_REQUEST_ID = told.get(_ID)
        bootstrap._GLOBAL_TENANT_ID = told.get(_TENANT)
        bound.arguments.update({name: value for name, value in told.items() if name in bound.arguments})
        return work()

    replay_job(work_on, _end)
