"""The facts that every recorded model call carries, whatever SDK made it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spanreplay.dialects import ResponseMeaning, find_dialect
from spanreplay.model.call import CallRecord, Recording
from support.agents import AGENTS, CURRENT, LITELLM
from support.provider import Provider
from support.replaying import Workplace


@dataclass(frozen=True)
class Sdk:
    """One SDK: its requests and how its provider phrases the answers."""

    script: str
    name: str
    provider: str
    model: str
    has_fingerprint: bool = True
    fourth_temperature: float = 1.3
    seed: int | None = 7
    python: Path = CURRENT


SDKS = {
    "openai": Sdk("ask_openai.py", "openai.chat.completions", "openai", "gpt-x"),
    "anthropic": Sdk("ask_anthropic.py", "anthropic.messages", "anthropic", "claude-x", False, 1.0, None),
    "langchain": Sdk("ask_langchain.py", "openai.chat.completions", "openai", "gpt-x"),
    "google-genai": Sdk("ask_google.py", "google.generate_content", "google", "gemini-x", False),
    "litellm": Sdk("ask_litellm.py", "openai.chat.completions", "openai", "gpt-x", python=LITELLM),
}
# SHA-256 of the canonical JSON of ["You are terse."]
SYSTEM_PROMPT_HASH = "a51f2b2e7365696fe7021d1e404dc043361edf8441c421c41ba3f55a6b4d71c6"


def _record(sdk: Sdk, workplace: Workplace) -> tuple[Recording, list[dict[str, Any]]]:
    """The recording of the five questions, and the program's output for each."""
    there = Workplace(workplace.path, workplace.environ, sdk.python)
    # Without it LiteLLM fetches a price list from the internet at import.
    done = there.record(AGENTS / "envelope" / sdk.script, LITELLM_LOCAL_MODEL_COST_MAP="True")
    return there.recording(), [json.loads(line) for line in done.stdout.splitlines()]


def _read(call: CallRecord) -> tuple[list[str], ResponseMeaning]:
    """A call's chunks, and their content parsed again from the recorded bytes."""
    request, response = json.loads(call.request), json.loads(call.response)
    dialect = find_dialect(request["method"], request["url"], request["body"])
    assert dialect is not None
    chunks = [chunk for _, chunk in response["chunks"]]
    return chunks, dialect.read_response(response["status"], chunks, bool(call.meta["stream"]))


def _assert_identified(sdk: Sdk, recording: Recording, call: CallRecord) -> None:
    """A call has its run, times, place and key."""
    root = recording.root
    assert call.run_id == root.run_id
    assert len(call.run_id) == 32
    assert root.start_ns <= call.start_ns <= call.end_ns <= root.end_ns
    assert call.trace_id == root.trace_id
    assert (call.boundary, call.lane) == (f"llm:{sdk.name}", "main")
    assert sdk.script in call.code
    assert (len(call.key), call.keyspec.endswith("/1")) == (64, True)


def _assert_asked(sdk: Sdk, call: CallRecord, sent: Any, temperature: float | None) -> None:
    """The request matches what the provider got, with only the parameters that the program set."""
    assert json.loads(call.request)["body"] == sent
    assert (call.meta["model"], call.meta["provider"]) == (sdk.model, sdk.provider)
    assert call.meta["system_prompt_hash"] == SYSTEM_PROMPT_HASH
    assert call.meta.get("temperature") == temperature
    wire = sent.get("generationConfig", sent)
    assert wire.get("temperature") == temperature


def _assert_answered(sdk: Sdk, provider: Provider, call: CallRecord, got: dict[str, Any]) -> None:
    """The answer matches what the program got, from the model that gave it."""
    chunks, meaning = _read(call)
    assert call.outcome == "ok"
    assert meaning.text == got["text"]
    assert [(c.name, json.loads(c.arguments)) for c in meaning.tool_calls] == [
        (n, json.loads(a)) for n, a in got["calls"]
    ]
    assert call.meta["response_model"] == meaning.model == f"{sdk.model}-2026-10-01"
    assert call.meta.get("fingerprint") == (provider.fingerprint if sdk.has_fingerprint else None)
    assert call.meta["finish_reason"] == meaning.finish_reason != ""
    assert min(call.meta["tokens_in"], call.meta["tokens_out"]) > 0
    offsets = [at for at, _ in json.loads(call.response)["chunks"]]
    assert offsets == sorted(offsets)
    assert len(chunks) >= 11 if call.meta["stream"] else len(chunks) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sdk", SDKS.values(), ids=SDKS)
@pytest.mark.sampled(3)
def test_s22_s58_every_model_call_has_its_envelope(sdk: Sdk, provider: Provider, workplace: Workplace) -> None:
    """Run, times, models asked and answered, parameters, prompts, chunks, tool calls, completion and usage."""
    if not sdk.python.exists():
        pytest.skip(f"no {sdk.python}: tools/agents.sh makes it")
    recording, printed = _record(sdk, workplace)
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert len(recording.calls) == len(printed) == len(provider.requests) == 5
    temperatures = [0.7, None, 0, sdk.fourth_temperature, 0.2]
    for call, (_, sent), temperature in zip(recording.calls, provider.requests, temperatures, strict=True):
        _assert_identified(sdk, recording, call)
        _assert_asked(sdk, call, sent, temperature)
    for call, got in zip(recording.calls[:4], printed, strict=False):
        _assert_answered(sdk, provider, call, got)
    first, streamed, paid, failed = (recording.calls[n] for n in (0, 2, 3, 4))
    assert (first.meta["top_p"], first.meta["max_tokens"], first.meta.get("seed")) == (0.9, 50, sdk.seed)
    assert [c.meta["stream"] for c in recording.calls] == [c is streamed for c in recording.calls]
    assert [(c.name, json.loads(c.arguments)) for c in _read(paid)[1].tool_calls] == [("pay", {"amount": 190_000})]
    assert (failed.outcome, json.loads(failed.response)["status"], printed[4]) == ("error", 400, {"error": 400})


ASKS_NOBODY = """
from openai import APIConnectionError, OpenAI
try:
    OpenAI(max_retries=0).chat.completions.create(model="gpt-x", temperature=0.7,
        messages=[{"role": "system", "content": "You are terse."}, {"role": "user", "content": "hi"}])
except APIConnectionError as exc:
    print(type(exc).__name__)
"""


def test_s22_call_without_an_answer_says_what_was_asked(provider: Provider, workplace: Workplace) -> None:
    """If the provider is down, the requested model, parameters and prompt are recorded all the same."""
    provider.stop()
    recorded = workplace.record(workplace.write("agent.py", ASKS_NOBODY))
    (call,) = workplace.recording().calls
    assert recorded.stdout == "APIConnectionError\n"
    assert call.outcome == "error"
    assert {name: value for name, value in call.meta.items() if name != "chain"} == {  # how it failed
        "model": "gpt-x",
        "provider": "openai",
        "system_prompt_hash": SYSTEM_PROMPT_HASH,
        "temperature": 0.7,
        "stream": False,
        "timeout_s": {"connect": 5.0, "read": 600.0},
    }
