"""Promises of every dialect: requests, keys, answers whole and streamed, cut, broken and refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.dialects import Dialect, meta
from spanreplay.dialects._table import ROWS
from spanreplay.model.keys import compute_key
from spanreplay.model.keyspec import keyspec
from support.dialect_samples import CHAT, EVERY, MODELS, OTHERS, TOOL_PROMPT, Sample, as_texts, whole_text

every_dialect = pytest.mark.parametrize("sample", EVERY.values(), ids=EVERY)
every_model = pytest.mark.parametrize("sample", MODELS.values(), ids=MODELS)
with_tools = {name: sample for name, sample in MODELS.items() if sample.has_tools}
with_system = {name: sample for name, sample in MODELS.items() if sample.has_system}

SAID = re.compile(r"Answer \d+ of this model: [\w ]+\. You asked: (hi)?")
TRANSIENT: dict[str, Any] = {
    "request_id": "req_1",
    "served_model_name": "m-2",
    "user": "u",
    "service_tier": "default",
    "keep_alive": "5m",
    "a_field_of_next_year": [1],
}


def _key(dialect: Dialect, body: Any) -> str:
    request = dialect.read_request(body)
    return compute_key(request.keyspec, request.key_fields).hex


def test_every_row_of_the_table_has_a_sample() -> None:
    """Every row of the table has a sample here."""
    found = {type(sample.dialect()).__name__ for sample in EVERY.values()}
    assert {row[2] for row in ROWS} == found


# ── requests ────────────────────────────────────────────────────────────────────────────────────────
@every_dialect
def test_s22_request_says_model_kind_and_key(sample: Sample) -> None:
    """The model in body or URL, the kind, parameters and key are read; fields that the key ignores are named."""
    body = sample.ask("hi")
    request = sample.dialect().read_request({**body, **TRANSIENT})
    assert request.model == (sample.url_model or body.get("model", ""))
    assert request.kind == sample.dialect().kind.value
    assert request.provider == sample.dialect().system
    assert not request.is_stream or sample.dialect().is_stream_by_default
    assert set(TRANSIENT) <= set(request.ignored) <= {*TRANSIENT, "anthropic_version"}
    assert not {"messages", "prompt", "input", "tools", "contents", "texts", "documents"} & set(request.parameters)
    assert len(_key(sample.dialect(), body)) == 64


@every_model
def test_s22_request_of_a_stream_is_one(sample: Sample) -> None:
    """A stream requested by body, URL or default is recognised, and has another key than a whole answer."""
    asked = sample.dialect(is_stream=True)
    assert asked.read_request(sample.ask_stream()).is_stream
    if not sample.dialect().is_stream_by_default:
        assert _key(asked, sample.ask_stream()) != _key(sample.dialect(), sample.ask("hi"))
    else:
        assert not asked.read_request({**sample.ask("hi"), "stream": False}).is_stream


@every_dialect
def test_s34_what_providers_add_does_not_reach_the_key(sample: Sample) -> None:
    """A request id, a served model's name or a future field leaves the key unchanged."""
    body = sample.ask("hi")
    assert _key(sample.dialect(), {**body, **TRANSIENT}) == _key(sample.dialect(), body)


def _says(dialect: Dialect, field: str) -> bool:
    """Whether the URL states this field."""
    return {"model": dialect.url_model != "", "stream": dialect.is_url_stream is not None}.get(field, False)


FLIPS = [
    (name, field)
    for name, sample in EVERY.items()
    for field in sorted(keyspec(sample.dialect().keyspec).fields)
    if not (field == "model" and sample.url_model)
    and not (field == "stream" and sample.dialect().is_url_stream is not None)
]


@pytest.mark.parametrize(("name", "field"), FLIPS, ids=[f"{name}-{field}" for name, field in FLIPS])
def test_s34_each_allow_listed_field_flips_the_key(name: str, field: str) -> None:
    """Adding, removing or changing an allow-listed field changes the key."""
    sample = EVERY[name]
    dialect, body = sample.dialect(), sample.ask("hi")
    without = {k: v for k, v in body.items() if k != field}
    keys = {_key(dialect, without), _key(dialect, {**without, field: "one"}), _key(dialect, {**without, field: "two"})}
    assert len(keys) == 3


@pytest.mark.parametrize("name", [name for name, sample in EVERY.items() if sample.url_model])
def test_s34_model_in_the_url_flips_the_key(name: str) -> None:
    """The same body for another deployment or model in the URL is another call; a model in the body is ignored."""
    sample = EVERY[name]
    here = sample.dialect()
    there = type(here)(here.provider, "another", here.is_url_stream)
    assert _key(here, sample.ask("hi")) != _key(there, sample.ask("hi"))
    assert _key(here, {**sample.ask("hi"), "model": "ignored"}) == _key(here, sample.ask("hi"))


@every_model
@pytest.mark.parametrize("temperature", [0, 0.7, 1.3])
def test_s58_temperature_is_recorded_as_asked(sample: Sample, temperature: float) -> None:
    """The temperature is read as the agent asked for it, wherever the protocol puts it; an unset one stays unset."""
    assert sample.temperature is not None
    body = sample.temperature(sample.ask("hi"), temperature)
    assert meta(sample.dialect().read_request(body))["temperature"] == temperature
    assert "temperature" not in meta(sample.dialect().read_request(sample.ask("hi")))
    assert _key(sample.dialect(), body) != _key(sample.dialect(), sample.ask("hi"))


@pytest.mark.parametrize("sample", with_system.values(), ids=with_system)
def test_s28_system_prompt_has_one_hash_in_every_protocol(sample: Sample) -> None:
    """A system prompt has the same hash wherever it is; another one has another hash and key."""
    body = sample.ask("hi")
    changed = json.loads(json.dumps(body).replace("be brief", "be briefer"))
    before, after = (sample.dialect().read_request(each) for each in (body, changed))
    assert before.system_prompt_hash == CHAT.dialect().read_request(CHAT.ask("hi")).system_prompt_hash
    assert before.system_prompt_hash != after.system_prompt_hash
    assert _key(sample.dialect(), body) != _key(sample.dialect(), changed)


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────
@every_model
def test_s22_whole_and_streamed_answers_mean_the_same(sample: Sample) -> None:
    """Text, finish reason, model, usage and fingerprint are read alike from one body and from a stream."""
    answer, text = whole_text(sample)
    whole = sample.dialect().read_response(200, [text])
    streamed = sample.dialect(is_stream=True).read_response(200, sample.streamed(), True)
    assert whole.text in json.dumps(answer, ensure_ascii=False)
    for meaning in (whole, streamed):
        assert SAID.fullmatch(meaning.text), meaning.text
        assert (meaning.error, meaning.is_complete) == ("", True)
        assert [(m.role, m.text) for m in meaning.messages] == [("assistant", meaning.text)]
        assert meaning.model.endswith("-2026-10-01") == sample.has_model
        assert meaning.fingerprint == sample.fingerprint
    assert (streamed.finish_reason, streamed.tool_calls) == (whole.finish_reason, ())
    assert whole.finish_reason != ""
    assert min(whole.tokens_in, whole.tokens_out) > 0


@every_model
def test_s22_usage_of_a_stream_is_read_where_it_is_stated(sample: Sample) -> None:
    """A stream's tokens are counted as a whole answer's; OpenAI's chat states them only if asked."""
    body = {**sample.ask_stream(), "stream_options": {"include_usage": True}}
    assert sample.stream is not None
    streamed = sample.dialect(is_stream=True).read_response(200, as_texts(sample.stream(body)), True)
    assert min(streamed.tokens_in, streamed.tokens_out) > 0


@pytest.mark.parametrize("sample", with_tools.values(), ids=with_tools)
def test_s22_tool_calls_are_read_as_sent(sample: Sample) -> None:
    """Names and arguments of parallel tool calls are read from both forms."""
    whole = sample.dialect().read_response(200, [whole_text(sample, TOOL_PROMPT)[1]])
    streamed = sample.dialect(is_stream=True).read_response(200, sample.streamed(TOOL_PROMPT), True)
    for meaning in (whole, streamed):
        named = [(call.name, json.loads(call.arguments)) for call in meaning.tool_calls]
        assert named == [("pay", {"amount": 190_000}), ("note", {"text": "é"})]
        assert meaning.messages[0].tool_calls == meaning.tool_calls
        assert (meaning.text, meaning.is_complete) == ("", True)
        assert len(sample.dialect().tool_schemas(sample.ask("hi"))) == 2


@every_model
def test_s26_stream_is_read_cut_anywhere(sample: Sample) -> None:
    """A stream has the same meaning for any cuts by the transport."""
    texts = sample.streamed()
    dialect, text = sample.dialect(is_stream=True), "".join(texts)
    expected = dialect.read_response(200, texts, True)
    for size in (1, 7, 64, 1000):
        assert dialect.read_response(200, [text[at : at + size] for at in range(0, len(text), size)], True) == expected
    assert dialect.read_response(200, [text.rstrip("\n")], True) == expected


@every_model
def test_s26_cut_stream_gives_what_came(sample: Sample) -> None:
    """A stream that ended early has its text so far, is marked as incomplete, and is not an error."""
    texts = sample.streamed()
    dialect = sample.dialect(is_stream=True)
    whole = dialect.read_response(200, texts, True)
    lengths = []
    for count in range(len(texts) - 3):
        cut = dialect.read_response(200, texts[:count], True)
        assert whole.text.startswith(cut.text)
        assert (cut.is_complete, cut.error) == (False, "")
        lengths.append(len(cut.text))
    assert lengths == sorted(lengths)
    assert 0 < lengths[len(lengths) // 2 + 2] < len(whole.text)


@every_dialect
@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, '{"error":{"type":"rate_limit","message":"slow down"}}', "rate_limit: slow down"),
        (400, '{"error":{"code":"content_filter","message":"filtered"}}', "content_filter: filtered"),
        (404, '{"error":"model not found"}', "model not found"),
        (400, '{"message":"too long"}', "HTTP 400: too long"),
        (422, '{"detail":"no"}', "HTTP 422: no"),
        (502, "<html>bad gateway</html>", "HTTP 502: <html>bad gateway</html>"),
        (500, "", "HTTP 500"),
    ],
)
def test_s26_error_body_is_read(sample: Sample, status: int, body: str, error: str) -> None:
    """Every dialect reads errors in any provider's form, because these servers proxy each other."""
    for is_stream in (True, False):
        meaning = sample.dialect().read_response(status, [body], is_stream)
        assert (meaning.error, meaning.text) == (error, "")


@every_model
def test_s26_error_within_a_stream_is_read(sample: Sample) -> None:
    """An error after status 200 and some text makes the answer an error, and keeps the text."""
    texts = sample.streamed()[:7]
    is_lines = texts[0].startswith("{")
    error = '{"error":{"type":"server_error","message":"gone"}}'
    texts.append(f"{error}\n" if is_lines else f"event: error\ndata: {error}\n\n")
    meaning = sample.dialect(is_stream=True).read_response(200, texts, True)
    assert (meaning.error, meaning.is_complete) == ("server_error: gone", False)
    assert meaning.text.startswith("Answer")


@pytest.mark.parametrize("sample", OTHERS.values(), ids=OTHERS)
def test_answer_without_words_is_read(sample: Sample) -> None:
    """Embeddings, scores and tokens are complete if present, have the model if it is named, and never text."""
    meaning = sample.dialect().read_response(200, [whole_text(sample)[1]])
    assert (meaning.text, meaning.error, meaning.is_complete) == ("", "", True)
    assert meaning.model.endswith("-2026-10-01") == sample.has_model
    assert not sample.dialect().read_response(200, ["{}"]).is_complete


@every_dialect
def test_openinference_attributes_say_what_it_is(sample: Sample) -> None:
    """Every dialect gives its span's kind, its input and, for a model, its messages."""
    dialect, body = sample.dialect(), sample.ask("hi")
    request = dialect.read_request(body)
    response = dialect.read_response(200, [whole_text(sample)[1]])
    shown = dialect.openinference(body, request, response)
    kinds = {"llm": "LLM", "embedding": "EMBEDDING", "retriever": "RERANKER", "compute": "CHAIN"}
    assert shown["openinference.span.kind"] == kinds[request.kind]
    assert json.loads(str(shown["input.value"])) == body
    if request.kind == "llm":
        assert shown.get("llm.output_messages.0.message.content", "") == response.text
        last = max(int(name.split(".")[2]) for name in shown if name.startswith("llm.input_messages."))
        assert shown[f"llm.input_messages.{last}.message.content"] == "hi"
    if request.kind == "retriever":
        assert shown["reranker.query"] == "which?"
        assert {shown[f"reranker.input_documents.{n}.document.content"] for n in (0, 1)} == {"one", "two"}
        assert shown["reranker.output_documents.0.document.score"] == response.scores[0][1]


# ── anything ────────────────────────────────────────────────────────────────────────────────────────
WORDS = [
    *("choices", "delta", "message", "content", "tool_calls", "function", "index", "usage", "error", "type", "text"),
    *("toolUse", "toolResult", "contentBlockDelta", "contentBlockStart", "contentBlockIndex", "output", "metadata"),
    *("event_type", "chat_history", "tool_results", "role", "options", "results", "data", "documents", "tokens"),
    *("usage", "inputTextTokenCount", "generation", "instances", "requests", "parts", "meta_info", "finish_reason"),
    *("steps", "step", "delta", "interaction", "status", "arguments", "singleEmbeddingParams", "generations", "data"),
    *("value", "completions", "finishReason", "input", "prompt", "object"),
    *("amazon-bedrock-invocationMetrics", "billed_units", "input_tokens", "images", "source", "bytes", "messages"),
]
broken_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=25,
)


@settings(deadline=None, max_examples=200)
@given(broken_json, st.sampled_from([200, 400]))
def test_every_dialect_reads_any_json_without_an_error(value: Any, status: int) -> None:
    """Any JSON in a body gives a meaning without an error."""
    text = json.dumps(value)
    for sample in EVERY.values():
        dialect = sample.dialect()
        dialect.accepts(value)
        request = dialect.read_request(value)
        for chunks in ([text], [f"data: {text}\n\ndata: {text}\n\n"], [f"{text}\n{text}\n"]):
            response = dialect.read_response(status, chunks, True)
            assert len(dialect.openinference(value, request, response)) <= 100
            assert isinstance(meta(request, response), dict)
