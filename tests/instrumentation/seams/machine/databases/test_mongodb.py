"""MongoDB's documents as JSON values, and its messages as calls."""

from __future__ import annotations

import json
import zlib
from types import ModuleType
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from spanreplay import codec
from spanreplay.runtime.patches import Patches
from spanreplay.seams.machine.databases.mongodb import documents, messages, seam
from spanreplay.seams.machine.databases.mongodb.documents import Undecodable, decode, decode_exactly, encode

NAMES = st.text(max_size=5).filter(lambda name: "\0" not in name) | st.sampled_from(["$oid", "$date", "$document"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-(2**31), 2**31 - 1).map(Int64)
    | st.floats(allow_nan=False)
    | st.just(float("nan"))
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.binary(min_size=12, max_size=12).map(ObjectId)
    | st.integers(-(2**62), 2**62).map(DatetimeMS)
    | st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
    | st.builds(Binary, st.binary(max_size=4), st.sampled_from([1, 4, 5, 128]))
    | st.decimals(places=2, min_value=-1000, max_value=1000).map(Decimal128)
    | st.sampled_from([MinKey(), MaxKey(), Regex("^x", "im"), Code("f()"), Code("f()", {"n": 1})])
    | st.just(DBRef("c", 5, "d"))
)
DOCUMENTS = st.dictionaries(
    NAMES,
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)),
    max_size=4,
)


@given(DOCUMENTS)
def test_a_document_survives_the_way_through_json(document: dict[str, Any]) -> None:
    """Byte for byte, with every type; the JSON text is the one that a recording holds."""
    raw = bson.encode(document)
    shown = decode_exactly(raw)
    assert not isinstance(shown, Undecodable)
    assert encode(codec.decode(json.loads(json.dumps(codec.encode(shown))))) == raw


def test_a_document_that_json_would_change_has_no_codec() -> None:
    """A name that occurs twice and bytes that are not UTF-8 leave a hole, and never another document."""
    twice = b"\x13\0\0\0\x10a\0\1\0\0\0\x10a\0\2\0\0\0\0"
    for raw in (twice, b"\x0e\0\0\0\x02a\0\2\0\0\0\xff\0\0", b"no document"):
        with pytest.raises(codec.Unserializable):
            codec.encode({"reply": decode_exactly(raw)})


def _message(body: dict[str, Any], **sequences: list[Any]) -> bytes:
    parts = b"\0" + bson.encode(body)
    for name, found in sequences.items():
        packed = name.encode() + b"\0" + b"".join(map(bson.encode, found))
        parts += b"\1" + (len(packed) + 4).to_bytes(4, "little") + packed
    raw = (0).to_bytes(4, "little") + parts
    return (len(raw) + 16).to_bytes(4, "little") + (7).to_bytes(4, "little") + bytes(4) + b"\xdd\x07\0\0" + raw


def test_a_command_is_shown_without_what_numbers_sessions() -> None:
    """The documents of a sequence are part of it; sessions, cluster times and the time left are not."""
    command = {"insert": "c", "lsid": {"id": 1}, "txnNumber": Int64(3), "$clusterTime": {}, "$db": "d", "maxTimeMS": 99,
               "readConcern": {"afterClusterTime": Timestamp(1, 1)}}  # fmt: skip
    message = messages.parse(_message(command, documents=[{"_id": 1}, {"_id": 2}]))
    assert message is not None
    assert (message.request_id, message.has_reply) == (7, True)
    call = messages.describe(message, is_timed=True)
    assert (call.name, call.effect) == ("pymongo.insert", "irreversible")
    shown = {"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}
    assert call.arguments == {"database": "d", "command": shown}
    limited = messages.describe(message, is_timed=False).arguments["command"]
    assert limited == {**shown, "maxTimeMS": 99}


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ({"find": "c"}, "read"),
        ({"aggregate": "c", "pipeline": [{"$match": {}}]}, "read"),
        ({"aggregate": "c", "pipeline": [{"$merge": "d"}]}, "irreversible"),
        ({"explain": {"delete": "c"}}, "read"),
        ({"findAndModify": "c"}, "irreversible"),
        ({"somethingNew": 1}, "irreversible"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else each,
)
def test_a_command_that_is_not_known_to_read_changes_data(command: dict[str, Any], effect: str) -> None:
    """Also one of a newer server."""
    message = messages.parse(_message(command))
    assert message is not None
    assert messages.describe(message, is_timed=False).effect == effect


def test_a_compressed_command_is_shown_as_any_other() -> None:
    """As clients with `compressors=zlib` send it."""
    plain = _message({"ping": 1})
    packed = zlib.compress(plain[16:])
    head = (2013).to_bytes(4, "little") + len(plain[16:]).to_bytes(4, "little") + b"\2"
    message = messages.parse(plain[:12] + (2012).to_bytes(4, "little") + head + packed)
    assert message is not None
    assert message == messages.parse(plain)


def test_other_messages_are_no_commands() -> None:
    """An OP_QUERY of the handshake of old servers."""
    assert messages.parse(bytes(12) + (2004).to_bytes(4, "little")) is None


def test_a_reply_keeps_its_flags() -> None:
    """More to come: the next batch of an exhaust cursor."""
    from pymongo.message import _OpMsg

    reply = _OpMsg(2, bson.encode({"ok": 1.0}))
    built = messages.build_reply(messages.show_reply(reply))
    assert (built.flags, built.payload_document) == (2, reply.payload_document)
    assert documents.decode(built.payload_document) == {"ok": 1.0}
    assert decode(bson.encode({"a": 1})) == {"a": 1}


def test_an_older_pymongo_is_said_not_to_be_covered() -> None:
    """Before 4.9 it has no function of its own that sends: the run is incomplete, and names the version."""
    old = ModuleType("pymongo.pool")
    vars(old)["Pool"] = type("Pool", (), {"__module__": "pymongo.pool"})
    with pytest.raises(AttributeError, match=r"before 4\.9"):
        seam.install(old, Patches())
