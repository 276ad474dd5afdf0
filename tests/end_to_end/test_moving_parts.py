"""Each of an agent's eight moving parts is changed between recording and replay, and the report names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.provider import Provider
from support.replaying import Replayed, Workplace

AGENT = """
import datetime, json, os
from pathlib import Path
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from groq import Groq
import spanreplay

change = os.environ.get("CHANGE", "")


class Index(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        rows = json.loads(Path("index.json").read_text())
        return [Document(text, id=name) for name, text in rows.items()]


@spanreplay.boundary("tool", name="get_price", effect="read")
def get_price(symbol):
    return Path("price.txt").read_text().strip()


client = Groq()
documents = Index().invoke("refund policy")
price = get_price("ACME")
system = "You are careful." if change != "prompt" else "You are bold."
history = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "how can I help?"},
]
if change == "history":
    history = history[2:]
messages = [{"role": "system", "content": system}, *history]
messages += [{"role": "user", "content": "What day is it?"}]
if os.environ.get("TELLS_TIME"):
    messages[-1]["content"] = f"It is {datetime.datetime.now().isoformat()}. What day is it?"
answer = client.chat.completions.create(
    model="gpt-y" if change == "model" else "gpt-x",
    temperature=0.9 if change == "sampler" else 0.1,
    messages=messages,
)
print(answer.choices[0].message.content)
print([d.id for d in documents], price)
"""
INDEX = '{"doc-1": "refunds within 14 days", "doc-2": "no refunds on sale items"}'


@pytest.fixture
def agent(workplace: Workplace) -> Path:
    """An agent with a retriever, a tool and a model."""
    workplace.write("index.json", INDEX)
    workplace.write("price.txt", "100\n")
    return workplace.write("agent.py", AGENT)


def the_cause(replayed: Replayed) -> dict[str, Any]:
    """The one divergence that is not downstream of another."""
    assert replayed.status == 3, replayed.stderr
    found = [d for d in replayed.verdict["divergences"] if not d["downstream"]]
    assert len(found) == 1, [(d["kind"], d["message"]) for d in found]
    cause: dict[str, Any] = found[0]
    return cause


@pytest.mark.parametrize("part", ["prompt", "history", "model", "sampler"])
@pytest.mark.sampled(2)
def test_s21_changed_request_names_the_moving_part(
    part: str, agent: Path, provider: Provider, workplace: Workplace
) -> None:
    """The report says whether prompt, history, model or temperature changed."""
    workplace.record(agent)
    provider.stop()
    cause = the_cause(workplace.replay(agent, CHANGE=part))
    assert (cause["kind"], cause["part"]) == ("changed_call", part)
    assert cause["boundary"] == "llm:openai.chat.completions"


def test_s21_s54_changed_index_names_the_chunks(agent: Path, provider: Provider, workplace: Workplace) -> None:
    """If the index has changed, a live retriever's report names the chunks; a stubbed one serves the recorded ones."""
    recorded = workplace.record(agent)
    provider.stop()
    workplace.write("index.json", '{"doc-1": "refunds within 30 days", "doc-3": "ask a manager"}')
    stubbed = workplace.replay(agent)
    assert (stubbed.status, stubbed.stdout) == (0, recorded.stdout)
    live = the_cause(workplace.replay(agent, options=["--live", "retriever:*"]))
    assert (live["kind"], live["part"]) == ("output_changed", "retrieval")
    assert live["chunks"] == [
        {"index": 0, "name": "doc-1", "change": "changed"},
        {"index": 1, "name": "doc-3", "change": "injected"},
        {"index": 1, "name": "doc-2", "change": "dropped"},
    ]


def test_s21_changed_tool_is_named(agent: Path, provider: Provider, workplace: Workplace) -> None:
    """A live tool that returns a different result is the cause."""
    workplace.record(agent)
    provider.stop()
    workplace.write("price.txt", "900\n")
    cause = the_cause(workplace.replay(agent, options=["--live", "tool:*"]))
    assert (cause["kind"], cause["part"], cause["boundary"]) == ("output_changed", "tools", "tool:get_price")


def test_s21_changed_time_is_named(agent: Path, provider: Provider, workplace: Workplace) -> None:
    """With a live clock, a prompt that contains the time differs, and the report names the clock."""
    workplace.record(agent, TELLS_TIME="1")
    provider.stop()
    cause = the_cause(workplace.replay(agent, options=["--live", "clock:*"], TELLS_TIME="1"))
    assert (cause["kind"], cause["part"]) == ("changed_call", "clock")
    assert cause["causes"][0]["kind"] == "clock"
    assert cause["causes"][0]["strength"] == "value"


@pytest.mark.parametrize(
    ("part", "date", "fingerprint"),
    [("serving", "", "fp_other"), ("model", "-2027-01-01", "fp_same"), ("sampler", "", "fp_same")],
    ids=["serving", "model", "sampler"],
)
@pytest.mark.sampled(1)
def test_s21_live_model_that_answers_otherwise_names_why(
    part: str,
    date: str,
    fingerprint: str,
    agent: Path,
    provider: Provider,
    workplace: Workplace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reason is another serving stack, another model behind the name, or only the sampler."""
    provider.fingerprint = "fp_same"
    workplace.record(agent)
    provider.fingerprint = fingerprint
    if date:
        monkeypatch.setattr("support.wire_text.MODEL_DATE", date)
    cause = the_cause(workplace.replay(agent, options=["--live", "llm:*"]))
    assert (cause["kind"], cause["part"]) == ("output_changed", part)


@pytest.mark.parametrize("now", ["plan-2", ""], ids=["another", "none"])
def test_s21_engine_that_computes_in_another_way_is_the_serving_stack(
    now: str, agent: Path, provider: Provider, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If model and fingerprint match but the engine states another determinism, the serving stack is the reason."""
    provider.fingerprint = "fp_same"
    provider.determinism = "plan-1"
    workplace.record(agent)
    provider.determinism = now
    cause = the_cause(workplace.replay(agent, options=["--live", "llm:*"]))
    assert (cause["kind"], cause["part"]) == ("output_changed", "serving")
