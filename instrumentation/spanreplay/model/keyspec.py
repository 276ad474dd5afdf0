"""The request fields that make up a key: one allow-list per kind, versioned.

A key is computed from an allow-list, so that a field that a provider or SDK adds tomorrow changes no key.
Fields that are not on the list are reported by `select`, never silently lost. An allow-list is frozen once
released: a change of its meaning is a new row with the next number.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from spanreplay.model.errors import ConfigError

__all__ = ["KEYSPECS", "KeySpec", "http_fields", "keyspec", "select"]


@dataclass(frozen=True)
class KeySpec:
    """One allow-list.

    `renamed`: fields in which opaque ids are replaced by their order of first occurrence.
    `is_api`: the request of a JSON API, where null and absent mean the same.
    `is_codec`: values come from `spanreplay.codec`, whose tagged dicts are unordered in a key.
    """

    name: str
    fields: frozenset[str]
    renamed: frozenset[str] = frozenset()
    is_api: bool = False
    is_codec: bool = False


def _api(name: str, fields: str, *, renamed: str = "") -> KeySpec:
    return KeySpec(name, frozenset(fields.split()), frozenset(renamed.split()), is_api=True)


def _leaf(name: str, fields: str) -> KeySpec:
    return KeySpec(name, frozenset(fields.split()), is_codec=True)


# Fields that vLLM and SGLang accept in addition to OpenAI's.
_ENGINE: Final = (
    "guided_decoding_backend guided_whitespace_pattern allowed_token_ids include_stop_str_in_output "
    "spaces_between_special_tokens return_tokens_as_token_ids return_token_ids vllm_xargs regex ebnf json_schema "
    "stop_regex no_stop_trim separate_reasoning stream_reasoning lora_path custom_logit_processor custom_params "
    "return_hidden_states input_ids"
)
# Left out everywhere, because they do not affect the answer: user, metadata, safety_identifier, request and
# trace ids, service_tier, store, stream_options, prompt_cache_key, prompt_cache_retention, priority.
_ROWS: Final = (
    _api(
        "openai_chat/1",
        "model messages tools tool_choice functions function_call response_format temperature top_p "
        "top_k top_a min_p typical_p seed max_tokens max_completion_tokens min_tokens stop "
        "stop_token_ids ignore_eos n best_of use_beam_search length_penalty frequency_penalty "
        "presence_penalty repetition_penalty logit_bias bad_words logprobs top_logprobs "
        "prompt_logprobs parallel_tool_calls reasoning reasoning_effort thinking think "
        "enable_thinking thinking_budget include_reasoning verbosity modalities audio prediction "
        "web_search_options stream guided_json guided_regex guided_choice guided_grammar "
        "structured_outputs chat_template chat_template_kwargs add_generation_prompt "
        "continue_final_message documents truncate_prompt_tokens format options raw suffix echo "
        "mm_processor_kwargs logits_processors skip_special_tokens models plugins transforms "
        "safe_prompt prompt_mode random_seed agent_id guardrails data_sources extra_body search_parameters "
        "disable_reasoning reasoning_format compound_custom search_settings citation_options "
        f"{_ENGINE}",
        renamed="messages",
    ),
    _api(
        "openai_completions/1",
        "model prompt prompt_embeds suffix stream temperature top_p top_k min_p typical_p seed max_tokens min_tokens "
        "stop random_seed n best_of use_beam_search length_penalty frequency_penalty presence_penalty "
        "repetition_penalty logit_bias logprobs echo prompt_logprobs stop_token_ids ignore_eos bad_words "
        "response_format add_special_tokens skip_special_tokens truncate_prompt_tokens guided_json guided_regex "
        f"guided_choice guided_grammar structured_outputs logits_processors {_ENGINE}",
    ),
    _api(
        "openai_responses/1",
        "model input instructions prompt previous_response_id conversation tools tool_choice "
        "max_tool_calls parallel_tool_calls text temperature top_p top_k top_logprobs seed "
        "max_output_tokens reasoning truncation include modalities stop stream background "
        "context_management",
        renamed="input",
    ),
    _api("openai_compact/1", "model input instructions previous_response_id", renamed="input"),
    _api(
        "openai_input_tokens/1",
        "model input instructions previous_response_id conversation tools tool_choice parallel_tool_calls text "
        "reasoning truncation",
        renamed="input",
    ),
    _api(
        "openai_embeddings/1",
        "model input dimensions encoding_format input_type task truncate truncation "
        "truncate_prompt_tokens embedding_types normalize instruction prompt prompt_name output_dtype "
        "output_dimension late_chunking",
    ),
    _api(
        "anthropic_messages/1",
        "model messages system tools tool_choice max_tokens temperature top_p top_k stop_sequences "
        "stream thinking mcp_servers container context_management output_format output_config effort "
        "betas fallbacks",
        renamed="messages",
    ),
    _api(
        "anthropic_count_tokens/1",
        "model messages system tools tool_choice thinking mcp_servers context_management output_format output_config "
        "betas",
        renamed="messages",
    ),
    _api(
        "google_interactions/1",
        "model agent agent_config input system_instruction tools generation_config safety_settings stream background "
        "previous_interaction_id cached_content environment response_format response_mime_type response_modalities",
        renamed="input",
    ),
    _api(
        "google_generate/1",
        "model stream contents systemInstruction system_instruction generationConfig generation_config "
        "tools toolConfig tool_config safetySettings safety_settings cachedContent cached_content "
        "modelArmorConfig model_armor_config",
        renamed="contents",
    ),
    _api("google_embed/1", "model content requests instances parameters taskType title outputDimensionality"),
    _api(
        "bedrock_converse/1",
        "model stream messages system inferenceConfig toolConfig guardrailConfig additionalModelRequestFields "
        "promptVariables additionalModelResponseFieldPaths outputConfig",
        renamed="messages",
    ),
    _api(
        "bedrock_nova/1",
        "model stream messages system inferenceConfig toolConfig schemaVersion additionalModelRequestFields",
        renamed="messages",
    ),
    _api(
        "bedrock_text/1",
        "model stream prompt inputText textGenerationConfig images temperature top_p top_k max_gen_len max_tokens stop "
        "maxTokens minTokens topP topKReturn numResults stopSequences countPenalty presencePenalty frequencyPenalty "
        "p k stop_sequences num_generations return_likelihoods logit_bias truncate",
    ),
    _api(
        "bedrock_embed/1",
        "model stream inputText inputImage embeddingConfig dimensions normalize embeddingTypes texts images inputs "
        "input_type truncate embedding_types output_dimension max_tokens taskType singleEmbeddingParams "
        "segmentedEmbeddingParams",
    ),
    _api(
        "cohere_chat/1",
        "model stream messages tools tool_choice strict_tools documents citation_options response_format "
        "safety_mode max_tokens stop_sequences temperature seed frequency_penalty presence_penalty k p logprobs "
        "thinking raw_prompting reasoning_effort",
        renamed="messages",
    ),
    _api(
        "cohere_chat_v1/1",
        "model stream message preamble chat_history conversation_id prompt_truncation connectors "
        "search_queries_only documents citation_quality temperature max_tokens max_input_tokens k p seed "
        "stop_sequences frequency_penalty presence_penalty raw_prompting return_prompt tools tool_results "
        "force_single_step response_format safety_mode",
    ),
    _api(
        "cohere_embed/1",
        "model texts images inputs input_type embedding_types truncate max_tokens output_dimension",
    ),
    _api(
        "writer_chat/1",
        "model messages tools tool_choice response_format temperature top_p n max_tokens stop stream logprobs",
        renamed="messages",
    ),
    _api(
        "ollama_chat/1",
        "model stream messages tools format options think logprobs top_logprobs truncate",
        renamed="messages",
    ),
    _api(
        "ollama_generate/1",
        "model stream prompt suffix images format options system template raw think context logprobs top_logprobs "
        "truncate",
    ),
    _api("ollama_embed/1", "model input prompt truncate options dimensions"),
    _api(
        "sglang_generate/1",
        "model stream text input_ids input_embeds image_data audio_data video_data sampling_params return_logprob "
        "logprob_start_len top_logprobs_num token_ids_logprob return_text_in_logprobs lora_path "
        "custom_logit_processor return_hidden_states",
    ),
    _api(
        "vllm_tokenize/1",
        "model prompt messages tokens add_special_tokens return_token_strs add_generation_prompt "
        "continue_final_message chat_template chat_template_kwargs mm_processor_kwargs tools",
    ),
    _api(
        "rerank/1",
        "model query queries text_1 data_1 documents texts text_2 data_2 top_n top_k rank_fields return_documents "
        "max_chunks_per_doc max_tokens_per_doc truncation truncate raw_scores return_text truncate_prompt_tokens "
        "instruction activation softmax use_activation",
    ),
    KeySpec("http/1", frozenset({"method", "url", "body"})),
    KeySpec("mcp/1", frozenset({"server", "method", "params"})),
    _leaf("tool/1", "name arguments"),
    _leaf("retriever/1", "name arguments"),
    _leaf("compute/1", "name arguments"),
    _leaf("human/1", "name prompt arguments"),
)
KEYSPECS: Final[Mapping[str, KeySpec]] = {row.name: row for row in _ROWS}


def keyspec(name: str) -> KeySpec:
    """The allow-list with this name and version.

    Raises: ConfigError for a name that this version of spanreplay does not know.
    """
    found = KEYSPECS.get(name)
    if found is None:
        raise ConfigError(
            f"unknown keyspec {name!r}",
            hint="the recording was made by a newer spanreplay; upgrade, or record the run again",
        )
    return found


def select(name: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Split a request into the fields of its key and the names of the fields that the key ignores.

    For `http/1`, `body` is the recorded request object (method, url, headers, body | body_text | body_b64).
    """
    spec = keyspec(name)
    if name == "http/1":
        return http_fields(body), sorted(set(body) - {"method", "url", "body", "body_text", "body_b64"})
    kept = {field: value for field, value in body.items() if field in spec.fields}
    if spec.is_api and None in kept.values():
        kept = {field: value for field, value in kept.items() if value is not None}
    params = kept.get("params")
    if name == "mcp/1" and isinstance(params, dict) and "_meta" in params:
        # Progress tokens are counters of the transport and depend on scheduling.
        kept["params"] = {key: value for key, value in params.items() if key != "_meta"}
    return kept, sorted([field for field in body if field not in spec.fields])


# ── http ────────────────────────────────────────────────────────────────────────────────────────────
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_BOUNDARY: Final = re.compile(r'boundary="?([^";,\s]+)', re.IGNORECASE)
_FORM: Final = "application/x-www-form-urlencoded"


def http_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """The key fields of a recorded HTTP request: method, URL without user-info, body in normal form."""
    fields: dict[str, Any] = {
        "method": str(request.get("method", "GET")).upper(),
        "url": _normal_url(str(request.get("url", ""))),
    }
    content_type = _header(request.get("headers"), "content-type")
    if "body" in request:
        fields["body"] = _without_rpc_id(request["body"])
    elif isinstance(request.get("body_text"), str):
        fields["body"] = _normal_text(request["body_text"], content_type)
    elif isinstance(request.get("body_b64"), str):
        fields["body"] = _normal_bytes(request["body_b64"], content_type)
    return fields


def _header(headers: Any, name: str) -> str:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    for pair in pairs:
        key, value = pair
        if str(key).lower() == name:
            return str(value)
    return ""


def _normal_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return {"text": url}
    host = (parts.hostname or "").lower()
    try:
        port = parts.port
    except ValueError:
        port = None
    if port is not None and port != _DEFAULT_PORTS.get(parts.scheme.lower()):
        host = f"{host}:{port}"
    query = sorted(parse_qsl(parts.query, keep_blank_values=True), key=lambda pair: pair[0])
    return {
        "origin": f"{parts.scheme.lower()}://{host}",
        "path": parts.path or "/",
        "query": [list(pair) for pair in query],
    }


def _without_rpc_id(body: Any) -> Any:
    """Remove the `id` of a JSON-RPC envelope, which only pairs request and answer on the wire."""
    if isinstance(body, dict) and "jsonrpc" in body and "id" in body:
        return {key: value for key, value in body.items() if key != "id"}
    return body


def _normal_text(text: str, content_type: str) -> Any:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _FORM:
        pairs = sorted(parse_qsl(text, keep_blank_values=True), key=lambda pair: pair[0])
        return {"form": [list(pair) for pair in pairs]}
    if kind.startswith("multipart/"):
        boundary = _boundary(text[:200], content_type)
        return {"multipart": text.replace(boundary, "boundary") if boundary else text}
    return {"text": text}


def _normal_bytes(body_b64: str, content_type: str) -> Any:
    try:
        body = base64.b64decode(body_b64, validate=True)
    except (binascii.Error, ValueError):
        return {"b64": body_b64}
    if content_type.strip().lower().startswith("multipart/"):
        boundary = _boundary(body[:200].decode("latin-1"), content_type)
        if boundary:
            body = body.replace(boundary.encode("latin-1"), b"boundary")
    return {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}


def _boundary(head: str, content_type: str) -> str:
    """The random separator of a multipart body, from its header, else from its first line."""
    named = _BOUNDARY.search(content_type)
    if named:
        return named.group(1)
    first = head.split("\r\n", 1)[0]
    return first[2:] if first.startswith("--") and len(first) > 2 else ""
