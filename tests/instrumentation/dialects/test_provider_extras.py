"""Fields that providers add to the protocols that they share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spanreplay.dialects import Dialect, find_dialect, meta
from spanreplay.runtime.wire.aws_events import read_events
from spanreplay.runtime.wire.http_reply import HttpReply
from spanreplay.runtime.wire.http_wire import HttpExchange, read_meta
from support.dialect_samples import MODELS, PROFILE
from support.wire_bedrock import aws_event
from support.wire_openai import sse


def _find(path: str, host: str = "http://127.0.0.1", body: Any = None) -> Dialect:
    found = find_dialect("POST", host + path) if body is None else find_dialect("POST", host + path, body)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.deepseek.com/chat/completions", "deepseek"),
        ("https://api.x.ai/v1/chat/completions", "xai"),
        ("https://api.together.xyz/v1/chat/completions", "together"),
        ("https://openrouter.ai/api/v1/chat/completions", "openrouter"),
        ("https://api.fireworks.ai/inference/v1/chat/completions", "fireworks"),
        ("https://x.services.ai.azure.com/models/chat/completions?api-version=1", "azure"),
        ("https://x.openai.azure.com/openai/v1/chat/completions", "azure"),
        ("https://l-aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints/openapi/chat/completions", "google"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", "google"),
        ("https://llm.example.test/proxy/v1/chat/completions", "openai"),
        ("https://api.voyageai.com/v1/embeddings", "voyageai"),
        ("https://api.jina.ai/v1/rerank", "jina"),
        ("https://api.cohere.com/v2/chat", "cohere"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse", "aws"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/model/m/invoke", "aws"),
    ],
)
def test_host_names_the_provider_and_the_path_the_protocol(url: str, provider: str) -> None:
    """Compatible hosts need no row of their own: an unknown host with a known path is understood."""
    dialect = find_dialect("POST", url)
    assert dialect is not None
    assert dialect.provider == provider


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"prompt": "a picture of a cat"}),
        ("/score", {"player": 1}),
        ("/model/m/invoke", {"anything": 1}),
        ("/models/imagen-x:predict", {"instances": [{"prompt": "a cat"}]}),
        ("/api/generate", {"model": "llama-x"}),
        ("/v1/chat", {"messages": []}),
        ("/completions", {"done": True}),
        ("/agent/invoke", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_another_service_on_a_like_path_is_plain_http(path: str, body: Any) -> None:
    """A path alone does not make a model call; the body must fit too."""
    assert find_dialect("POST", f"http://service.test{path}", body) is None


def test_azure_filter_results_are_read_over() -> None:
    """Azure's first chunk has no choice and others carry filter results; a filtered answer says so."""
    dialect = _find("/openai/deployments/prod/chat/completions")
    head = {"id": "c", "model": "gpt-x-2026-10-01", "system_fingerprint": "fp"}
    safe = {"hate": {"filtered": False, "severity": "safe"}}
    events = [
        {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "half "}, "content_filter_results": safe}]},
        {**head, "choices": [{"index": 0, "delta": {}, "content_filter_offsets": {"check_offset": 1}}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter"}]},
    ]
    meaning = dialect.read_response(200, [sse(event).decode() for event in events], True)
    assert (meaning.text, meaning.finish_reason, meaning.is_complete) == ("half ", "content_filter", True)
    assert (meaning.model, meaning.fingerprint) == ("gpt-x-2026-10-01", "fp")


@pytest.mark.parametrize("name", ["ollama_chat", "ollama_generate"])
def test_s22_ollama_streams_unless_told_otherwise(name: str) -> None:
    """A request that does not mention streaming asks for a stream; only `false` does not."""
    dialect, body = MODELS[name].dialect(), MODELS[name].ask("hi")
    assert "stream" not in body
    assert dialect.read_request(body).is_stream
    assert not dialect.read_request({**body, "stream": False}).is_stream


def test_groq_states_the_usage_of_a_stream_in_its_own_field() -> None:
    """Tokens are counted from `x_groq`."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": 7}}
    meaning = _find("/openai/v1/chat/completions").read_response(200, [sse({**last, "x_groq": usage}).decode()], True)
    assert (meaning.tokens_in, meaning.tokens_out) == (5, 7)


def test_reasoning_is_no_part_of_the_answer() -> None:
    """A model's reasoning, under any of its names, is not part of the answer's text."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        message = {"role": "assistant", "content": "so", name: "let me think"}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop", "prompt_logprobs": [None]}]}
        assert _find("/v1/chat/completions").read_response(200, [json.dumps(answer)]).text == "so"
    mistral = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    answer = {"choices": [{"index": 0, "message": {"content": mistral}, "finish_reason": "stop"}]}
    assert _find("/v1/chat/completions").read_response(200, [json.dumps(answer)]).text == "so"
    cohere = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]
    answer = {"message": {"content": cohere}, "finish_reason": "COMPLETE"}  # type: ignore[dict-item]  # another shape
    assert _find("/v2/chat").read_response(200, [json.dumps(answer)]).text == "so"


def test_bedrock_exception_within_a_stream_is_read() -> None:
    """An exception message after some text makes the answer an error, and keeps the text."""
    sample = MODELS["bedrock_converse"]
    assert sample.stream is not None
    pieces = sample.stream(sample.ask("hi"))[:6]
    pieces.append(aws_event("throttlingException", b'{"message":"slow down"}', "exception"))
    meaning = sample.dialect(is_stream=True).read_response(200, read_events(b"".join(pieces)), True)
    assert (meaning.error, meaning.is_complete) == ("throttlingException: slow down", False)
    assert meaning.text.startswith("Answer")


def test_voyage_states_only_the_total_of_tokens() -> None:
    """An embedding's total counts as its input."""
    answer = {"object": "list", "data": [], "model": "voyage-x", "usage": {"total_tokens": 9}}
    assert _find("/v1/embeddings").read_response(200, [json.dumps(answer)]).tokens_in == 9


def test_scores_of_every_provider_are_read() -> None:
    """Cohere, Jina and vLLM call them results, Voyage calls them data, TEI returns a bare list."""
    rows = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
    bare = [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.1}]
    for answer in ({"results": rows}, {"data": rows}, bare):
        assert _find("/rerank").read_response(200, [json.dumps(answer)]).scores == ((1, 0.9), (0, 0.1))


@pytest.mark.parametrize(
    ("model", "ask", "answer", "text", "reason", "tokens"),
    [
        (
            "ai21.j2-ultra-v1",
            {"prompt": "hi", "maxTokens": 9, "temperature": 0.7, "topP": 0.9},
            {
                "id": 1234,
                "prompt": {"text": "hi", "tokens": [{}, {}]},
                "completions": [{"data": {"text": "so", "tokens": [{}]}, "finishReason": {"reason": "endoftext"}}],
            },
            "so",
            "endoftext",
            (2, 1),
        ),
        (
            "cohere.command-text-v14",
            {"prompt": "hi", "max_tokens": 9, "temperature": 0.7, "p": 0.9},
            {"generations": [{"finish_reason": "COMPLETE", "id": "g", "text": "so"}], "id": "i", "prompt": "hi"},
            "so",
            "COMPLETE",
            (-1, -1),
        ),
    ],
    ids=["AI21", "Command"],
)
def test_s22_bedrock_reads_prompts_of_other_vendors(
    model: str, ask: dict[str, Any], answer: dict[str, Any], text: str, reason: str, tokens: tuple[int, int]
) -> None:
    """Text, reason, parameters and, if the body has them, tokens are read; omitting a parameter changes the key."""
    dialect = _find(f"/model/{model}/invoke", body=ask)
    request, meaning = dialect.read_request(ask), dialect.read_response(200, [json.dumps(answer)])
    assert (request.kind, request.name, request.model, request.ignored) == ("llm", "bedrock.text", model, ())
    assert {k: v for k, v in meta(request).items() if k in ("temperature", "top_p", "max_tokens")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 9,
    }
    assert (meaning.text, meaning.finish_reason, meaning.is_complete) == (text, reason, True)
    assert (meaning.tokens_in, meaning.tokens_out) == tokens


def test_s22_command_streams_text_by_text() -> None:
    """Each chunk has a text; the last has the finish reason and the counts."""
    dialect = _find("/model/cohere.command-text-v14/invoke-with-response-stream", body={"prompt": "hi"})
    counts = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 2, "outputTokenCount": 3}}
    chunks = [{"text": "so ", "is_finished": False}, {"text": "it is", "is_finished": False}]
    end = {"is_finished": True, "finish_reason": "COMPLETE", **counts}
    meaning = dialect.read_response(200, [json.dumps(chunk) + "\n" for chunk in (*chunks, end)], True)
    assert (meaning.text, meaning.finish_reason, meaning.is_complete) == ("so it is", "COMPLETE", True)
    assert (meaning.tokens_in, meaning.tokens_out) == (2, 3)


@pytest.mark.parametrize(
    ("model", "body", "kind"),
    [
        (PROFILE, {"inputText": "a"}, "embedding"),
        (PROFILE, {"inputText": "a", "textGenerationConfig": {}}, "llm"),
        (PROFILE, {"texts": ["a"], "input_type": "search_query"}, "embedding"),
        ("arn:aws:bedrock:us-east-1::foundation-model/amazon.titan-text-lite-v1", {"inputText": "a"}, "llm"),
        ("arn:aws:bedrock:us-east-1::foundation-model/amazon.titan-embed-text-v2:0", {"inputText": "a"}, "embedding"),
        ("arn:aws:bedrock:us-east-1:111122223333:provisioned-model/p1", {"inputText": "a"}, "embedding"),
        ("amazon.titan-text-lite-v1", {"inputText": "a"}, "llm"),
    ],
)
def test_s22_model_behind_an_arn_is_known_by_its_body(model: str, body: dict[str, Any], kind: str) -> None:
    """An inference profile hides its model: a body with generation settings is text, any other an embedding."""
    path = "/model/" + model.replace(":", "%3A").replace("/", "%2F") + "/invoke"
    found = _find(path, body=body).read_request(body)
    assert (found.kind, found.model) == (kind, model)


@pytest.mark.parametrize("is_stream", [False, True])
def test_s22_empty_tool_call_is_none(is_stream: bool) -> None:
    """Snowflake's Cortex adds an empty call to messages without calls; it is ignored."""
    place = "delta" if is_stream else "message"
    choice = {"index": 0, place: {"role": "assistant", "content": "so", "tool_calls": [{}]}, "finish_reason": "stop"}
    text = sse({"choices": [choice]}).decode() if is_stream else json.dumps({"choices": [choice]})
    meaning = _find("/api/v2/cortex/v1/chat/completions", "https://a.snowflakecomputing.com").read_response(200, [text])
    assert (meaning.text, meaning.tool_calls, meaning.messages[0].tool_calls) == ("so", (), ())
    said = {"messages": [{"role": "assistant", "content": "so", "tool_calls": [{"function": {"arguments": ""}}]}]}
    (message,) = _find("/v1/chat/completions").read_message(said["messages"][0])
    assert message.tool_calls == ()


def test_s22_writers_completions_are_read() -> None:
    """A body without a finish reason is complete; each chunk has a `value`; cached tokens have its own spelling."""
    dialect = _find("/v1/completions", "https://api.writer.com", {"model": "palmyra-x5", "prompt": "hi"})
    assert dialect.provider == "writer"
    whole = dialect.read_response(200, [json.dumps({"choices": [{"text": "so"}], "model": "palmyra-x5"})])
    assert (whole.text, whole.is_complete) == ("so", True)
    pieces = [sse({"value": piece}).decode() for piece in ("so", " it", " is")]
    cut = dialect.read_response(200, pieces, True)
    assert (cut.text, cut.is_complete) == ("so it is", False)
    assert dialect.read_response(200, [*pieces, "data: [DONE]\n\n"], True).is_complete
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_token_details": {"cached_tokens": 5}}
    answer = {"choices": [{"message": {"content": "so"}, "finish_reason": "stop"}], "usage": usage}
    chat = _find("/v1/chat", body={"model": "palmyra-x5", "messages": [{"role": "user", "content": "hi"}]})
    assert (chat.name, chat.read_response(200, [json.dumps(answer)]).tokens_cache_read) == ("writer.chat", 5)


def test_s22_interaction_of_an_agent_and_of_steps_is_read() -> None:
    """The agent is read as the model, input steps as messages, and results name the calls that they answer."""
    body = {
        "agent": "deep-research-pro",
        "previous_interaction_id": "interactions/1",
        "input": [
            {"type": "user_input", "content": [{"type": "text", "text": "pay"}]},
            {"type": "function_call", "id": "c1", "name": "pay", "arguments": {"amount": 1}},
            {"type": "function_result", "call_id": "c1", "name": "pay", "result": {"ok": True}},
        ],
    }
    dialect = _find("/v1beta/interactions", body=body)
    request = dialect.read_request(body)
    assert (request.model, request.tool_call_ids) == ("deep-research-pro", ("c1",))
    said = [message for item in dialect.conversation(body) for message in dialect.read_message(item)]
    assert [(m.role, m.text, [c.name for c in m.tool_calls]) for m in said] == [
        ("user", "pay", []),
        ("assistant", "", ["pay"]),
        ("tool", '{"ok":true}', []),
    ]
    running = {"id": "interactions/2", "status": "in_progress"}
    assert not dialect.read_response(200, [json.dumps(running)]).is_complete
    older = {"status": "completed", "outputs": [{"type": "text", "text": "so"}]}
    assert dialect.read_response(200, [json.dumps(older)]).text == "so"


@pytest.mark.parametrize(
    ("headers", "tokens"),
    [
        ([("X-Amzn-Bedrock-Input-Token-Count", "11"), ("X-Amzn-Bedrock-Output-Token-Count", "3")], (11, 3)),
        ([("x-amzn-bedrock-input-token-count", "many"), ("x-amzn-bedrock-output-token-count", "9" * 99)], (None, None)),
        ([], (None, None)),
    ],
    ids=["stated", "no numbers", "none"],
)
def test_s22_tokens_are_read_from_bedrocks_headers(
    headers: list[tuple[str, str]], tokens: tuple[int | None, int | None]
) -> None:
    """If a body has no token counts, the headers have them; a body's own count wins."""
    ask = {"prompt": "hi"}
    dialect = _find("/model/cohere.command-text-v14/invoke", body=ask)
    exchange = HttpExchange(dialect, dialect.read_request(ask))
    answer = json.dumps({"generations": [{"finish_reason": "COMPLETE", "text": "so"}]})
    found = read_meta(exchange, HttpReply(200, headers=headers), [answer], is_stream=False)
    assert (found.get("tokens_in"), found.get("tokens_out")) == tokens
    counted = json.dumps({"generation": "so", "prompt_token_count": 7, "generation_token_count": 5})
    found = read_meta(exchange, HttpReply(200, headers=headers), [counted], is_stream=False)
    assert (found["tokens_in"], found["tokens_out"]) == (7, 5)
