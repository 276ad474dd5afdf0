"""Redacted values of an HTTP response are restored byte for byte, for any cuts, framing and encoding."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from google.protobuf.struct_pb2 import Struct

from spanreplay.redact.sealed_values import open_sealed, seal_values
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.wire.http_reply import HttpReply, decode_reply
from spanreplay.runtime.wire.http_wire import encode_reply
from support.in_process import MemoryProcessor, make_run
from support.wire_bedrock import aws_event

CANARY: Final = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
JSON: Final = [("content-type", "application/json")]
SSE: Final = [("content-type", "text/event-stream")]


def _message() -> bytes:
    made = Struct()
    made.update({"before": 190_000, "text": f"the key {CANARY} works", "after": "é"})
    return made.SerializeToString()


def _deltas(text: str, size: int) -> list[bytes]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]


def _lines(text: str) -> list[bytes]:
    return [
        json.dumps({"message": {"content": piece}, "done": False}).encode() + b"\n"
        for piece in re.split("(?<=-)", text)
    ]


REPLIES: Final[dict[str, HttpReply]] = {
    "JSON": HttpReply(
        200, headers=JSON, chunks=[(0, b'{"access_token": "tok-Zx81-qqPl-9931", "pin": 4711, "n": 1.50}')]
    ),
    "JSON in escapes": HttpReply(
        200, headers=JSON, chunks=[(0, b'{"password":"pa\\u0073s\\"w\\/rd-4711","x":"\\u00e9"}')]
    ),
    "JSON in JSON": HttpReply(
        200, headers=JSON, chunks=[(0, json.dumps({"arguments": json.dumps({"password": 'p"4711-wörd'})}).encode())]
    ),
    "a text": HttpReply(200, headers=[("content-type", "text/plain")], chunks=[(3, f"use {CANARY}, please".encode())]),
    "Latin-1": HttpReply(
        200, headers=[("content-type", "text/plain")], chunks=[(0, f"clé: {CANARY}".encode("latin-1")), (1, b" \xe9")]
    ),
    "a stream of deltas": HttpReply(200, headers=SSE, chunks=list(enumerate(_deltas(f"the key is {CANARY}.", 7)))),
    "lines of JSON": HttpReply(200, headers=JSON, chunks=list(enumerate(_lines(f"the key is {CANARY}.")))),
    "events of AWS": HttpReply(
        200,
        headers=[("content-type", "application/vnd.amazon.eventstream")],
        chunks=[
            (
                0,
                aws_event(
                    "contentBlockDelta", json.dumps({"delta": {"text": "the key is sk-proj-Zx9Yw8Vu7Ts6"}}).encode()
                ),
            ),
            (
                1,
                aws_event(
                    "contentBlockDelta", json.dumps({"delta": {"text": "Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7."}}).encode()
                ),
            ),
        ],
    ),
    "protobuf": HttpReply(200, headers=[("content-type", "application/x-protobuf")], chunks=[(0, _message())]),
    "cookies": HttpReply(
        200,
        headers=[("set-cookie", "sid=abc123def456ghi789; Path=/"), ("set-cookie", "id=Zx81qqPl9931; HttpOnly")],
        chunks=[(0, b"ok")],
    ),
    "headers": HttpReply(401, headers=[("x-api-key", "Zx81qqPl9931AbCd"), ("location", f"/in?token={CANARY}")]),
    "a URL": HttpReply(200, url=f"https://bot:pa55w0rd@example.org/in?api_key={CANARY}&a=%20b", chunks=[(0, b"ok")]),
    "a redirect": HttpReply(
        200, chunks=[(0, b"ok")], hops=[HttpReply(302, headers=[("set-cookie", "sid=abc123def456ghi789")])]
    ),
    "a failure": HttpReply(
        0, end="error", error={"type": "httpx.ReadError", "message": f"refused: api_key={CANARY}", "at": "send"}
    ),
    "a failure later": HttpReply(
        200, chunks=[(0, b"the key")], end="error", error={"type": "OSError", "message": f"bad token={CANARY}"}
    ),
}


def _there_and_back(reply: HttpReply) -> tuple[str, HttpReply]:
    """Return the response as recorded, and as served with the key."""
    run: Any = make_run(MemoryProcessor())
    spec = Spec("http", "GET x", "read", "http/1", {}, "{}")
    response, _ = encode_reply(run, reply, spec)
    opened = open_sealed(run.redactor, seal_values(run.redactor, response, spec.raw), response)
    assert opened is not None
    return response, decode_reply(opened.response)


@pytest.mark.parametrize("name", REPLIES)
def test_r9_sealed_response_comes_back_to_the_byte(name: str) -> None:
    """Status, headers, cookies, URL, redirects, failures and each piece of the body equal those the agent saw."""
    response, back = _there_and_back(REPLIES[name])
    assert back == REPLIES[name]
    assert CANARY not in response


def test_r9_stream_cut_anywhere_comes_back_to_the_byte() -> None:
    """For any cut of a body inside a secret, each piece has its original length."""
    body = f'{{"note": "use {CANARY} now", "é": 1}}'.encode()
    for at in range(1, len(body), 2):
        reply = HttpReply(200, headers=JSON, chunks=[(0, body[:at]), (5, body[at:])])
        assert _there_and_back(reply)[1] == reply


@pytest.mark.parametrize(
    "cookie", ["sid=abc123def456ghi789", "session_identifier=Zx81qqPl9931AbCd", "__Host-id=a.b-c_4711"]
)
@pytest.mark.parametrize(
    "form", ["cookie: {}", "set-cookie: {}", "{}", "got {} here", "{{'set-cookie': '{}'}}", "[('a', '{}')]"]
)
def test_r9_cookie_has_one_token_wherever_it_is_printed(form: str, cookie: str) -> None:
    """A header that the agent prints reads the same, whether it holds the value or a replay's token."""
    header = f"{cookie}; Path=/; HttpOnly"
    recording, replay = make_run(MemoryProcessor()), make_run(MemoryProcessor())
    reply = HttpReply(200, headers=[("set-cookie", header)])
    response, _ = encode_reply(recording, reply, Spec("http", "GET x", "read", "http/1", {}, "{}"))
    replay.redactor.recall(response)
    served = dict(decode_reply(response).headers)["set-cookie"]
    assert cookie.partition("=")[2] not in served
    assert replay.redactor.text(form.format(served)) == recording.redactor.text(form.format(header))
