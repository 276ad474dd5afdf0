"""Attributes that Phoenix shows for a recorded call, derived from its payload, in every dialect, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spanreplay.model import attributes as names
from spanreplay.recording.otlp.otlp import decode_value, encode_attributes
from spanreplay.runtime.calls.spec import Spec
from spanreplay.runtime.wire.aws_events import MEDIA_TYPE
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.runtime.wire.http_wire import encode_reply
from spanreplay_collector.phoenix.boundary import SPAN_KIND, derive_attributes
from support.dialect_samples import EVERY, MODELS, Sample
from support.in_process import MemoryProcessor, make_run

HOST = "http://127.0.0.1:8000"


def _shown(path: str, body: Any, pieces: list[bytes], kind: str) -> dict[str, Any]:
    """Return the derived attributes of a call, using the recorded form of its response."""
    is_aws = pieces[0][:1] == b"\0"
    reply = HttpReply(
        200,
        headers=[("content-type", MEDIA_TYPE if is_aws else "application/json")],
        chunks=list(enumerate(pieces)),
    )
    response, _ = encode_reply(make_run(MemoryProcessor()), reply, Spec(kind, "x", "read", "http/1", {}, "{}"))
    held = {
        names.KIND: kind,
        names.REQUEST: json.dumps({"method": "POST", "url": HOST + path, "headers": {}, "body": body}),
        names.RESPONSE: response,
    }
    if kind in ("llm", "embedding"):
        held[SPAN_KIND] = kind.upper()
    derived = derive_attributes(encode_attributes(held))
    return {name: decode_value(value) for name, value in derived.items()}


@pytest.mark.parametrize("sample", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_every_models_call_shows_its_messages(sample: Sample, is_stream: bool) -> None:
    """Messages of the request and of the answer are shown, also from event messages and JSON lines."""
    body = sample.ask_stream() if is_stream else sample.ask("hi")
    assert sample.stream is not None
    pieces = sample.stream(body) if is_stream else [json.dumps(sample.answer(body)).encode()]
    path = sample.stream_path or sample.path if is_stream else sample.path
    shown = _shown(path, body, pieces, "llm")
    assert shown["llm.output_messages.0.message.content"].startswith("Answer")
    assert shown["output.value"] == shown["llm.output_messages.0.message.content"]
    assert json.loads(shown["input.value"]) == body
    assert shown["llm.input_messages.0.message.role"] in ("system", "user")


@pytest.mark.parametrize("name", [name for name in EVERY if "rerank" in name or "tokenize" in name])
def test_rerankers_and_tokenizers_show_what_they_were_asked(name: str) -> None:
    """A model call that is not a chat is shown as its own kind."""
    sample = EVERY[name]
    body = sample.ask("hi")
    pieces = [json.dumps(sample.answer(body)).encode()]
    shown = _shown(sample.path, body, pieces, sample.dialect().kind.value)
    assert json.loads(shown["input.value"]) == body
    assert ("reranker.query" in shown) == ("rerank" in name)
