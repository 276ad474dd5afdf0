"""Messages of MongoDB's wire protocol: a command as a call, its reply as a value."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.seams.machine.databases.mongodb.documents import Undecodable, decode, decode_exactly, encode

_HEADER: Final = struct.Struct("<iiii")
_COMPRESSED: Final = struct.Struct("<iiB")
_OP_MSG, _OP_COMPRESSED = 2013, 2012
_HAS_CHECKSUM, _MORE_TO_COME = 1, 2
_READS: Final = frozenset(
    {"aggregate", "buildInfo", "buildinfo", "collStats", "connectionStatus", "count", "dbHash", "dbStats", "distinct",
     "explain", "find", "getCmdLineOpts", "getLog", "getMore", "getParameter", "hello", "hostInfo", "isMaster",
     "ismaster", "killCursors", "listCollections", "listCommands", "listDatabases", "listIndexes", "ping",
     "replSetGetStatus", "serverStatus", "usersInfo", "validate"}
)  # fmt: skip
"""Commands that change no data; all others are taken to."""
_STAGES_THAT_WRITE: Final = ("$out", "$merge")
_OF_SESSION: Final = ("lsid", "$clusterTime", "txnNumber")
"""Parts of a command that number sessions and times; the client makes them."""
_SECRETS: Final = frozenset({"pwd", "payload", "speculativeAuthenticate", "key", "nonce"})
"""Parts of commands about users that hold passwords."""


class Message(NamedTuple):
    """One request as the client sends it."""

    request_id: int
    document: dict[str, Any]
    """The command, as a JSON value."""
    has_reply: bool

    @property
    def name(self) -> str:
        """The command's name."""
        return next(iter(self.document), "")


def parse(raw: Any) -> Message | None:
    """Parse a request; None if it is not an OP_MSG. Raises: ValueError, struct.error and bson's errors."""
    view = memoryview(raw)
    _, request_id, _, op_code = _HEADER.unpack(view[:16])
    body = view[16:]
    if op_code == _OP_COMPRESSED:
        from pymongo.compression_support import decompress

        op_code, size, compressor = _COMPRESSED.unpack(body[:9])
        body = memoryview(_decompress(decompress, body[9:], compressor, size))
    return _parse_body(request_id, body) if op_code == _OP_MSG else None


def _decompress(decompress: Any, packed: memoryview, compressor: int, size: int) -> Any:
    """Unpack with pymongo's function, whose newer versions also take a limit."""
    taken = decompress.__code__.co_argcount
    return decompress(*(packed, compressor, max(size, 1))[:taken])


def _parse_body(request_id: int, body: memoryview) -> Message:
    flags = int.from_bytes(body[:4], "little")
    at, end = 4, len(body) - (4 if flags & _HAS_CHECKSUM else 0)
    document: dict[str, Any] = {}
    sequences: dict[str, Any] = {}
    while at < end:
        kind, at = body[at], at + 1
        size = int.from_bytes(body[at : at + 4], "little")
        if kind == 0:
            document = decode(bytes(body[at : at + size]))
        else:
            name, found = _parse_sequence(bytes(body[at + 4 : at + size]))
            sequences[name] = found
        at += size
    return Message(request_id, {**document, **sequences}, not flags & _MORE_TO_COME)


def _parse_sequence(raw: bytes) -> tuple[str, list[Any]]:
    name, _, rest = raw.partition(b"\0")
    found, at = [], 0
    while at < len(rest):
        size = int.from_bytes(rest[at : at + 4], "little")
        found.append(decode(rest[at : at + size]))
        at += size
    return name.decode(), found


def describe(message: Message, *, is_timed: bool) -> FunctionCall:
    """Describe a command as a call; `is_timed` says that its time limit is what was left of the client's."""
    command = dict(message.document)
    database = command.pop("$db", "")
    for part in _OF_SESSION:
        command.pop(part, None)
    concern = command.get("readConcern")
    if isinstance(concern, dict) and "afterClusterTime" in concern:
        command["readConcern"] = {name: value for name, value in concern.items() if name != "afterClusterTime"}
        if not command["readConcern"]:
            del command["readConcern"]
    if is_timed:
        command.pop("maxTimeMS", None)
    name = message.name
    if _is_about_users(name):
        command = {part: "(hidden)" if part in _SECRETS else value for part, value in command.items()}
    effect = Effect.READ if _only_reads(name, command) else Effect.IRREVERSIBLE
    arguments = {"database": database, "command": command}
    return FunctionCall(Kind.TOOL.value, f"pymongo.{name}", effect.value, arguments)


def _is_about_users(name: str) -> bool:
    return name.lower().startswith(("createuser", "updateuser", "sasl", "authenticate", "copydb", "getnonce"))


def _only_reads(name: str, command: Mapping[str, Any]) -> bool:
    if name == "explain":
        return True
    stages = command.get("pipeline", ())
    writes = any(part in stage for stage in stages for part in _STAGES_THAT_WRITE if isinstance(stage, dict))
    return name in _READS and not writes


def describe_awaited() -> FunctionCall:
    """Describe the next batch of an exhaust cursor, which the server sends unasked."""
    return FunctionCall(Kind.TOOL.value, "pymongo.getMore", Effect.READ.value, {"exhaust": True})


def show_reply(reply: Any) -> Any:
    """Return the value of a reply (`pymongo.message._OpMsg`); one without a codec if it can't be kept exactly."""
    payload, flags = getattr(reply, "payload_document", None), getattr(reply, "flags", None)
    if payload is None or flags is None:
        return Undecodable()
    shown = decode_exactly(bytes(payload))
    return {"flags": flags, "reply": shown} if flags else {"reply": shown}


def build_reply(shown: Mapping[str, Any]) -> Any:
    """Return the reply that `show_reply` was given."""
    from pymongo.message import _OpMsg

    return _OpMsg(shown.get("flags", 0), encode(shown["reply"]))
