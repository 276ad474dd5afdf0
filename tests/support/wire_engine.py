"""Routes of inference engines beside OpenAI's chat: older completions, tokens, scores, SGLang's own completion."""

from __future__ import annotations

import json
import time
from typing import Any

from support.wire_openai import sse
from support.wire_text import (
    Json,
    Line,
    count_tokens,
    make_id,
    make_text,
    make_vector,
    read_turn,
    resolve_model,
    split_text,
)


def _text(prompt: Any) -> str:
    said = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return make_text(read_turn([Line("user", said)], [], ""))


def answer_completions(body: Json, fingerprint: str) -> Json:
    """A text completion."""
    text = _text(body["prompt"])
    asked, said = count_tokens(str(body["prompt"])), count_tokens(text)
    return {
        "id": make_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": resolve_model(body["model"]),
        "system_fingerprint": fingerprint,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop", "prompt_logprobs": None}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }


def stream_completions(body: Json, fingerprint: str) -> list[bytes]:
    """The server-sent events of a text completion."""
    final = answer_completions(body, fingerprint)
    head = {k: v for k, v in final.items() if k not in ("choices", "usage")}
    *pieces, last = split_text(final["choices"][0]["text"])
    choices = [{"index": 0, "text": piece, "logprobs": None, "finish_reason": None} for piece in pieces]
    choices.append({"index": 0, "text": last, "logprobs": None, "finish_reason": "stop"})
    events = [sse({**head, "choices": [choice]}) for choice in choices]
    return [*events, sse({**head, "choices": [], "usage": final["usage"]}), sse("[DONE]")]


def answer_tokenize(body: Json) -> Json:
    """Tokens of a text, or of a conversation."""
    count = count_tokens(str(body.get("prompt") or body.get("messages")))
    return {"count": count, "max_model_len": 4096, "tokens": list(range(count)), "token_strs": None}


def answer_detokenize(body: Json) -> Json:
    """The text of tokens."""
    return {"prompt": _text(body["tokens"])}


def answer_rerank(body: Json) -> Json:
    """vLLM's scores of documents."""
    scores = sorted((abs(make_vector(1)[0]) for _ in body["documents"]), reverse=True)
    rows = zip(body["documents"], scores, strict=True)
    results = [
        {"index": index, "document": {"text": text, "multi_modal": None}, "relevance_score": score}
        for index, (text, score) in enumerate(rows)
    ]
    usage = {"prompt_tokens": 9, "total_tokens": 9}
    return {"id": make_id("score-"), "model": resolve_model(body["model"]), "usage": usage, "results": results}


def answer_score(body: Json) -> Json:
    """vLLM's scores of pairs."""
    pairs = body["text_2"] if isinstance(body["text_2"], list) else [body["text_2"]]
    rows = [{"index": i, "object": "score", "score": abs(make_vector(1)[0])} for i in range(len(pairs))]
    usage = {"prompt_tokens": 9, "total_tokens": 9}
    head = {"id": make_id("score-"), "object": "list", "created": int(time.time())}
    return {**head, "model": resolve_model(body["model"]), "data": rows, "usage": usage}


def answer_generate(body: Json) -> Json:
    """SGLang's completion."""
    text = _text(body["text"])
    about = {
        "id": make_id("", 32),
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": count_tokens(body["text"]),
        "completion_tokens": count_tokens(text),
        "cached_tokens": 1,
        "e2e_latency": 0.01,
    }
    return {"text": text, "output_ids": [1, 2], "meta_info": about}


def stream_generate(body: Json) -> list[bytes]:
    """The events of SGLang's completion: each has the whole text so far."""
    final = answer_generate(body)
    pieces = split_text(final["text"])
    running = {**final["meta_info"], "finish_reason": None}
    events = [
        sse({"text": "".join(pieces[: n + 1]), "output_ids": [1], "meta_info": running}) for n in range(len(pieces) - 1)
    ]
    return [*events, sse(final), sse("[DONE]")]
