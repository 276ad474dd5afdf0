"""Secrets inside bytes: protobuf keeps its form, other formats are refused, no part of a secret is stored."""

from __future__ import annotations

import base64
import json
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.redact import Redactor
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.wire import aws_events, binary
from spanreplay.runtime.wire.binary import HoldsSecret
from spanreplay.runtime.wire.http_reply import HttpReply, Truncated, body_texts, decode_reply
from spanreplay.runtime.wire.http_wire import describe_request, encode_reply
from spanreplay.seams.transport import grpc as _grpc
from support.grpc_server import GrpcServer
from support.in_process import KEY, MemoryProcessor, make_run, recorded, replayed
from support.secret_samples import SECRETS
from support.wire_bedrock import aws_event

ONE_WORD = [sample for sample in SECRETS if sample.text == sample.secret and "\n" not in sample.secret]
CANARY = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"


def _redactor() -> Any:
    return Redactor(KEY, "b").run()


def _spec() -> Spec:
    return Spec("http", "GET x", "read", "http/1", {}, "{}")


def _nest(text: str, depth: int) -> Struct:
    """A message that nests the text three levels deep."""
    value: Any = {"before": 190_000, "text": text, "é": "✓"}
    for _ in range(depth):
        value = {"inner": [value, None]}
    made = Struct()
    made.update(value)
    return made


def _texts(value: Value | Struct | ListValue) -> list[str]:
    found = []
    if isinstance(value, Struct):
        for each in value.fields.values():
            found.extend(_texts(each))
    elif isinstance(value, ListValue):
        for each in value.values:
            found.extend(_texts(each))
    elif value.WhichOneof("kind") == "string_value":
        found.append(value.string_value)
    elif value.WhichOneof("kind") == "struct_value":
        found.extend(_texts(value.struct_value))
    elif value.WhichOneof("kind") == "list_value":
        found.extend(_texts(value.list_value))
    return found


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("sample", ONE_WORD, ids=[f"{s.rule}-{len(s.secret)}" for s in ONE_WORD])
def test_r1_secret_in_protobuf_becomes_its_token(sample: Any, depth: int) -> None:
    """At any depth and length the secret is replaced by its token, and the message stays valid."""
    redact = _redactor()
    counts: dict[str, int] = {}
    clean = binary.clean_message(_nest(sample.text, depth).SerializeToString(), redact, counts)
    assert sample.secret.encode() not in clean
    texts = _texts(Struct.FromString(clean))
    assert sorted(texts) == sorted(["✓", redact.text(sample.text)])
    assert sum(counts.values()) == 1
    assert binary.clean_message(clean, redact, {}) == clean


@given(st.recursive(st.text(max_size=40) | st.floats(allow_nan=False), lambda inner: st.lists(inner, max_size=4)))
def test_protobuf_without_secrets_stays_byte_for_byte(value: Any) -> None:
    """Bytes without secrets stay unchanged."""
    made = Struct()
    made.update({"value": value})
    message = made.SerializeToString()
    assert binary.clean_message(message, _redactor(), {}) == message


@given(st.binary(max_size=200))
def test_any_bytes_are_cleaned_or_refused(body: bytes) -> None:
    """Random bytes contain no secret, so they stay unchanged."""
    assert binary.clean_message(body, _redactor(), {}) == body
    assert binary.unstored_bytes(json.loads(json.dumps(binary.stored_bytes(body)))) == body


@pytest.mark.parametrize("before", [b"\x00\x01", b"\xd9\x2f", b"\xffx/", b"\xff" + b"3", b"\xff" + b"a3"], ids=repr)
def test_r1_secret_in_unknown_bytes_is_refused(before: bytes) -> None:
    """A secret after any length prefix is found; a response is refused, a request's secret is masked."""
    body = b"\xfe\xff" + before + CANARY.encode() + b"\xff\x00"
    with pytest.raises(HoldsSecret):
        binary.clean_message(body, _redactor(), {})
    sent = binary.clean_sent(body, _redactor(), {})
    assert b"Zx9Yw8" not in sent
    assert b"rdx-" in sent


def test_r1_value_known_from_elsewhere_is_found_in_bytes() -> None:
    """A password that no pattern matches is found in protobuf and other bytes once its name has revealed it."""
    redact = _redactor()
    redact.value({"password": "correct horse battery"})
    clean = binary.clean_message(_nest("it is correct horse battery.", 1).SerializeToString(), redact, {})
    assert b"horse" not in clean
    with pytest.raises(HoldsSecret):
        binary.clean_message(b"\xff\x00\x15correct horse battery\xff", redact, {})


def test_r1_response_with_a_secret_in_bytes_is_a_hole() -> None:
    """The response is not stored, the call says why it can't be replayed, and reading it says the same."""
    spec = _spec()
    body = b"\x89PNG\x00" + CANARY.encode() + b"\xff"
    reply = HttpReply(200, headers=[("content-type", "image/png")], chunks=[(0, body[:20]), (1, body[20:])])
    text, texts = encode_reply(make_run(MemoryProcessor()), reply, spec)
    assert (texts, "Zx9Yw8" in text, CANARY[20:] in text) == ([], False, False)
    assert base64.b64encode(CANARY.encode())[4:-4].decode() not in text
    assert "secret" in spec.hole
    with pytest.raises(Truncated, match="secret"):
        decode_reply(text)


def test_r1_text_of_another_character_set_is_redacted() -> None:
    """Latin-1 is not UTF-8, but it is text."""
    body = f"schlüssel: {CANARY} ende".encode("latin-1")
    reply = HttpReply(200, headers=[("content-type", "text/plain; charset=iso-8859-1")], chunks=[(0, body)])
    spec = _spec()
    text, _ = encode_reply(make_run(MemoryProcessor()), reply, spec)
    (again,) = decode_reply(text).chunks
    assert again[1].startswith("schlüssel: rdx-".encode("latin-1"))
    assert again[1].endswith(b" ende")
    assert spec.hole == ""


def test_r1_upload_with_a_secret_in_bytes_keeps_its_key() -> None:
    """A request's bytes are redacted before their key is made, and equal bytes have equal keys."""
    run = make_run(MemoryProcessor())
    body = b"--b\r\n\r\n\xff\x00" + CANARY.encode() + b"\r\n--b--"
    headers = [("content-type", "multipart/form-data; boundary=b")]
    first, _ = describe_request(run, "POST", "http://h/", headers, body)
    second, _ = describe_request(run, "POST", "http://h/", headers, body)
    stored = base64.b64decode(json.loads(first.request)["body_b64"])
    assert b"Zx9Yw8" not in stored
    assert b"rdx-" in stored
    assert first.key_fields == second.key_fields


# ── AWS event messages ──────────────────────────────────────────────────────────────────────────────
def _events(texts: list[str]) -> list[bytes]:
    deltas = [{"contentBlockIndex": 0, "delta": {"text": text}} for text in texts]
    chunks = [base64.b64encode(json.dumps({"generation": text}).encode()).decode() for text in texts]
    return [
        *(aws_event("contentBlockDelta", json.dumps(delta, ensure_ascii=False).encode()) for delta in deltas),
        *(aws_event("chunk", json.dumps({"bytes": chunk, "p": "ab"}).encode()) for chunk in chunks),
    ]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_s26_event_messages_come_back_in_the_same_pieces(size: int) -> None:
    """For any cuts, even inside the last message, the bytes are the same."""
    body = b"".join(_events(["é one", "two", ""]))[:-5]
    chunks = [(at, body[at : at + size]) for at in range(0, len(body), size)]
    reply = HttpReply(200, headers=[("content-type", aws_events.MEDIA_TYPE)], chunks=chunks, end="closed")
    text, texts = encode_reply(make_run(MemoryProcessor()), reply, _spec())
    assert decode_reply(text) == reply
    assert len(texts) == 5
    assert body_texts(reply) == texts
    assert '"é one"' in texts[0]


def test_r1_secret_across_event_messages_is_redacted() -> None:
    """A secret that is streamed in pieces is replaced, in plain messages and in base64 inside them."""
    pieces = [CANARY[:10], CANARY[10:25], CANARY[25:]]
    reply = HttpReply(
        200,
        headers=[("content-type", aws_events.MEDIA_TYPE)],
        chunks=list(enumerate(_events(["key: ", *pieces, " end"]))),
    )
    text, texts = encode_reply(make_run(MemoryProcessor()), reply, _spec())
    again = b"".join(chunk for _, chunk in decode_reply(text).chunks)
    found = aws_events.split_events(again)
    assert found is not None
    assert [aws_events.to_text(event) for event in found[0]] == texts
    assert len(texts) == 10
    for piece in pieces:
        assert piece not in "".join(texts)
    assert "".join(texts).count("rdx-") == 2


# ── gRPC ────────────────────────────────────────────────────────────────────────────────────────────
def test_r1_canary_in_grpc_messages_is_nowhere_and_replays() -> None:
    """Protobuf messages with a secret are recorded without it; a replay with the key serves it, as text."""
    with GrpcServer() as oracle:

        def agent() -> list[str]:
            with grpc.insecure_channel(oracle.target) as channel:
                echo = channel.unary_unary(
                    "/test.Oracle/Echo",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=Struct.FromString,
                )
                return sorted(_texts(echo(_nest(CANARY, 2), timeout=5)))

        seams = ((_grpc.install, grpc),)
        recording = recorded(agent, seams)
        oracle.stop()
        again = replayed(agent, recording, seams=seams)
    (call,) = recording.calls
    stored = call.request + call.response
    assert "Zx9Yw8" not in stored
    for offset in range(3):
        assert base64.b64encode(b"." * offset + CANARY.encode())[4:-4].decode() not in stored
    assert again.error is None, again.error
    assert again.result == sorted([CANARY, "✓"])
    assert again.kinds() == []
