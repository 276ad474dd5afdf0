"""Exceptions of a transport as recorded JSON; their stacks, which `runtime.calls.chains` describes, are in the meta."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.errors import Unserializable
from spanreplay.runtime.calls import chains, exceptions

if TYPE_CHECKING:
    from spanreplay.runtime.calls.open_call import Crossing
    from spanreplay.runtime.wire.http_body import Body
    from spanreplay.runtime.wire.http_reply import HttpReply

CHAIN: Final = "chain"
"""Member of a call's meta: number of a response → the stacks of its error, and the exceptions behind it.

There it is below one of two names: `chain`, or `cancelled` for the cancellation that a library turned into the error,
above its transport.
"""
CANCELLED: Final = "cancelled"
_CANCELLATIONS: Final = ("CancelledError", "Cancelled")


def describe(exc: BaseException) -> dict[str, Any]:
    """An exception as JSON: class, message and, if it can be encoded, the complete exception."""
    cls = type(exc)
    described: dict[str, Any] = {"type": f"{cls.__module__}.{cls.__qualname__}", "message": str(exc)}
    with contextlib.suppress(Unserializable):
        described["value"] = exceptions.encode(exc)
    return described


def rebuild(error: dict[str, Any]) -> BaseException | None:
    """Rebuild the exception of `describe`; None if it can't be rebuilt."""
    try:
        return exceptions.decode(error["value"])
    except exceptions.NOT_REBUILT:
        return None


def find_chain(error: dict[str, Any], *, is_cancelled: bool) -> Any:
    """The stacks of a recorded error, or of a cancellation that led to it; None if there are none."""
    if is_cancelled and CANCELLED in error:
        return error[CANCELLED]
    is_cancellation = str(error.get("type")).rpartition(".")[2] in _CANCELLATIONS
    return error.get(CHAIN) if is_cancelled == is_cancellation else None


def note_chains(bodies: Sequence[Body], crossing: Crossing) -> None:
    """Put the stacks of the errors of a call's responses into its meta."""
    spec, found = crossing.spec, {}
    for number, body in enumerate(bodies):
        if body.chain and body.error is not None:
            chain = chains.redact(body.chain, crossing.run.redactor)
            found[str(number)] = {CANCELLED if body.is_timed_out else CHAIN: chain}
    if found:
        spec.meta[CHAIN] = found


def attach_chains(replies: Iterable[HttpReply], meta: Mapping[str, Any]) -> None:
    """Put those stacks into the errors of the recorded responses."""
    found = meta.get(CHAIN)
    for number, reply in enumerate(replies):
        chain = found.get(str(number)) if isinstance(found, dict) else None
        if reply.error is not None and isinstance(chain, dict):
            reply.error.update(chain)
