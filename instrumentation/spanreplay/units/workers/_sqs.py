"""Messages that a loop of the program's own receives from Amazon SQS with boto3 or aiobotocore (aioboto3).

Without `SPANREPLAY_UNITS=messages` receiving is an HTTP request like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.calls.open_call import plumbing
from spanreplay.runtime.calls.taking import Source, Taker, Taking, find_taker
from spanreplay.seams.machine.asked import asking_run

if TYPE_CHECKING:
    from spanreplay.runtime.patches import Patches

_CLIENTS: Final = frozenset({"aioboto3", "aiobotocore", "boto3", "botocore"})
_OPERATION: Final = "ReceiveMessage"
_QUEUE, _MESSAGES = "QueueUrl", "Messages"
_NOT_COMPARED: Final = frozenset({_QUEUE, "WaitTimeSeconds"})
_FOUND: Final = 200


def install(module: Any, patches: Patches) -> None:
    """Patch the clients of botocore or aiobotocore."""
    if hasattr(module, "AioBaseClient"):
        patches.wrap(module.AioBaseClient, "_make_api_call", _call_async)
    else:
        patches.wrap(module.BaseClient, "_make_api_call", _call)


def _find_taking(client: Any, operation: str, parameters: Any) -> tuple[Taker, Taking] | None:
    if operation != _OPERATION or client.meta.service_model.service_name != "sqs":
        return None
    queue = str(parameters.get(_QUEUE, "")).rpartition("/")[2]
    source = Source(f"sqs {queue}", id(client))
    taker = find_taker(source)
    if taker is None or asking_run(_CLIENTS) is None:
        return None
    shown = {"queue": queue, **{name: value for name, value in parameters.items() if name not in _NOT_COMPARED}}

    def describe() -> FunctionCall:
        return FunctionCall(Kind.TOOL.value, "sqs.receive", Effect.READ.value, shown, prints=False)

    return taker, Taking(source, describe, is_nothing=_is_nothing, nothing=_nothing, headers=_headers_of)


def _is_nothing(found: Any) -> bool:
    return not found.get(_MESSAGES)


def _nothing() -> dict[str, Any]:
    return {"ResponseMetadata": {"HTTPStatusCode": _FOUND, "HTTPHeaders": {}, "RetryAttempts": 0}}


def _headers_of(found: Any) -> dict[str, Any]:
    """Return the attributes of the first message."""
    attributes = found[_MESSAGES][0].get("MessageAttributes", {})
    return {name: each.get("StringValue") for name, each in attributes.items()}


def _call(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    found = _find_taking(client, *args) if len(args) == 2 else None
    if found is None:
        return wrapped(*args, **kwargs)

    def live() -> Any:
        with plumbing():
            return wrapped(*args, **kwargs)

    return found[0].take(found[1], live)


def _call_async(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    found = _find_taking(client, *args) if len(args) == 2 else None
    if found is None:
        return wrapped(*args, **kwargs)

    async def live() -> Any:
        with plumbing():
            return await wrapped(*args, **kwargs)

    return found[0].take_async(found[1], live)
