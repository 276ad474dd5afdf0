"""What the client knows of a server, as a text: a replay gives it to the client's own topology.

So retries, sessions and read preferences work as they did, and nothing is asked of a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

WIRE_VERSION: Final = 21
"""The version that an unknown server has: MongoDB 7."""
_FLAGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "RSPrimary": {"isWritablePrimary": True},
    "RSSecondary": {"secondary": True},
    "RSArbiter": {"arbiterOnly": True},
    "RSOther": {"hidden": True},
    "RSGhost": {"isreplicaset": True},
    "Mongos": {"msg": "isdbgrid", "isWritablePrimary": True},
    "Standalone": {"isWritablePrimary": True},
}
"""Type of a server → the parts of its `hello` that say so."""


def describe_server(description: Any) -> str:
    """Describe a server, which the client knows from its `hello`, as a text: the parts that decide what is sent."""
    hosts = sorted(f"{host}:{port}" for host, port in description.all_hosts)
    primary, me = description.primary, description.me
    hello: dict[str, Any] = {
        **_FLAGS.get(description.server_type_name, {}),
        "ok": 1,
        "minWireVersion": description.min_wire_version,
        "maxWireVersion": description.max_wire_version,
        "maxBsonObjectSize": description.max_bson_size,
        "maxMessageSizeBytes": description.max_message_size,
        "maxWriteBatchSize": description.max_write_batch_size,
        "logicalSessionTimeoutMinutes": description.logical_session_timeout_minutes,
        "setName": description.replica_set_name,
        "hosts": hosts,
        "primary": primary and f"{primary[0]}:{primary[1]}",
        "me": me and f"{me[0]}:{me[1]}",
        "tags": dict(description.tags),
    }
    address = list(description.address)
    kept = {name: value for name, value in hello.items() if value not in (None, [], {})}
    is_balanced = description.server_type_name == "LoadBalancer"
    return json.dumps([address, kept, is_balanced], separators=(",", ":"))


def read_server(text: str) -> tuple[tuple[str, Any], dict[str, Any]]:
    """Return the address and the `hello` of a described server."""
    from bson.objectid import ObjectId

    address, hello, is_balanced = json.loads(text)
    return tuple(address), {**hello, "serviceId": ObjectId(b"\0" * 12)} if is_balanced else hello


def default_server(topology: Any) -> str:
    """Return a server for what the recording does not have: the last known one, or one that can do most things."""
    known = getattr(topology, "_spanreplay_server", None)
    if known:
        return str(known)
    address = list(next(iter(topology.description.server_descriptions())))
    hello = {"ok": 1, "isWritablePrimary": True, "minWireVersion": 0, "maxWireVersion": WIRE_VERSION,
             "logicalSessionTimeoutMinutes": 30}  # fmt: skip
    return json.dumps([address, hello, False], separators=(",", ":"))
