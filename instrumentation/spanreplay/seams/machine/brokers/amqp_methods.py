"""Methods of AMQP 0-9-1 as clients name them that follow its specification: what each asks or tells the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spanreplay.model.call import Effect
from spanreplay.runtime.calls.taking import Source

__all__ = ["CAPABILITIES", "METHODS", "Request", "make_source"]


class Request(NamedTuple):
    """What a method does: the name of its call, and its effect."""

    name: str
    effect: Effect


_READ, _WRITE, _FINAL = Effect.READ, Effect.WRITE, Effect.IRREVERSIBLE
METHODS: Final[Mapping[str, Request]] = {
    "basic_publish": Request("publish", _WRITE),
    "basic_get": Request("get", _WRITE),
    "basic_ack": Request("ack", _WRITE),
    "basic_reject": Request("reject", _WRITE),
    "basic_cancel": Request("cancel", _WRITE),
    "basic_qos": Request("set_qos", _READ),
    "basic_recover": Request("recover", _WRITE),
    "flow": Request("flow", _READ),
    "exchange_declare": Request("declare_exchange", _WRITE),
    "exchange_delete": Request("delete_exchange", _FINAL),
    "exchange_bind": Request("bind_exchange", _WRITE),
    "exchange_unbind": Request("unbind_exchange", _WRITE),
    "queue_declare": Request("declare_queue", _WRITE),
    "queue_bind": Request("bind_queue", _WRITE),
    "queue_unbind": Request("unbind_queue", _WRITE),
    "queue_purge": Request("purge_queue", _FINAL),
    "queue_delete": Request("delete_queue", _FINAL),
    "tx_select": Request("begin", _WRITE),
    "tx_commit": Request("commit", _WRITE),
    "tx_rollback": Request("rollback", _WRITE),
}


def make_source(queue: Any, owner: Any) -> Source:
    """Return what a consumer of a queue takes messages from; all queues that the broker has named are called alike."""
    name = str(queue)
    return Source(f"amqp {_DRAWN if name.startswith(_DRAWN) else name}", id(owner))


_DRAWN: Final = "amq.gen"
"""Beginning of the names that RabbitMQ draws."""
CAPABILITIES: Final[Mapping[str, bool]] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "exchange_exchange_bindings": True,
    "publisher_confirms": True,
}
"""What a server can do, where nothing was recorded of it."""
