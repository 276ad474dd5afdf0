"""Unmodified agents of LlamaIndex, openai-agents, AutoGen, Haystack and LangGraph replay byte for byte."""

from __future__ import annotations

import json
from typing import Final

import pytest

from support.agents import AGENTS, ENVIRONMENTS, without_instrumentors
from support.provider import Provider
from support.replaying import Workplace
from support.sampling import IS_WHOLE
from support.seeding import fixed_seed
from support.spans import assert_same_spans

RUNS: Final = {
    "llamaindex-0.14": (
        "openai2",
        "llama_index",
        ("llamaindex_agent.py", "agent", "predict", "state", "hand_over", "retrieve", "workflow"),
    ),
    "llamaindex-0.11": ("old", "llama_index", ("llamaindex_agent.py", "agent", "predict", "retrieve", "workflow")),
    "openai-agents": (
        "openai-agents",
        "openai_agents",
        ("openai_agents_agent.py", "run", "run_sync", "stream", "hand_off", "as_tool"),
    ),
    "autogen": (
        "openai2",
        "autogen_agentchat",
        ("autogen_agent.py", "run", "tokens", "team", "swarm", "as_tool"),
    ),
    "haystack": ("openai2", "haystack", ("haystack_agent.py", "agent", "agent_async", "pipeline")),
    "langgraph-1.2": ("openai2", "langchain", ("langgraph_agent.py", "react", "react_async", "fan_out")),
}
"""Environment, the framework's own OpenInference instrumentor, script and modes."""

BY_HAND: Final = """
import runpy
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
LlamaIndexInstrumentor().instrument(skip_dep_check=True)
runpy.run_path({path!r}, run_name="__main__")
"""
"""OpenTelemetry leaves this instrumentor out where llama-index-multi-modal-llms-openai is not installed."""


def _there(workplace: Workplace, environment: str, instrumentor: str = "") -> Workplace:
    """The workplace with another interpreter, which loads at most one instrumentor."""
    python = ENVIRONMENTS[environment]
    if not python.exists():
        pytest.skip(f"no {python}: `make matrix` builds it")
    environ = {
        **workplace.environ,
        **without_instrumentors(*filter(None, [instrumentor])),
        "OPENAI_AGENTS_DISABLE_TRACING": "0" if instrumentor == "openai_agents" else "1",
        "HAYSTACK_TELEMETRY_ENABLED": "False",
        **fixed_seed(),  # Haystack's spans name a component's inputs in the order of a set
    }
    return Workplace(workplace.path, environ, python)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.sampled(3)
def test_u1_agent_of_a_framework_replays_byte_for_byte(name: str, provider: Provider, workplace: Workplace) -> None:
    """With the provider gone: the same output, no tool body run, no socket, the same OpenInference spans."""
    environment, instrumentor, (script, *modes) = RUNS[name]
    there = _there(workplace, environment, instrumentor)
    agent = AGENTS / script
    if instrumentor == "llama_index":
        agent = there.write("agent.py", BY_HAND.format(path=str(agent)))
    recorded = there.record(agent, *modes)
    provider.stop()
    database = workplace.path / "notes.db"
    before = database.read_bytes()
    recording = there.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    replayed = there.replay(agent, *modes)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout)
    assert replayed.verdict["sockets_denied"] == []
    assert replayed.verdict["counts"]["live"] == 0
    assert database.read_bytes() == before
    assert assert_same_spans(workplace.path / ".spanreplay", recording.run_id) == {instrumentor}


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["openai2", "old"])
@pytest.mark.sampled(1)
def test_s8_fan_out_workflow_replays_the_same_events_fifty_times(
    environment: str, provider: Provider, workplace: Workplace
) -> None:
    """With eight events for four workers and 50 workflows, each workflow replays its own sequence of events."""
    there = _there(workplace, environment)
    agent = AGENTS / "llamaindex_agent.py"
    rounds = 50 if IS_WHOLE or environment == "openai2" else 10
    recorded = there.record(agent, "workflows", ROUNDS=str(rounds))
    provider.stop()
    replayed = there.replay(agent, "workflows", ROUNDS=str(rounds))
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert len({line.split(" ", 2)[2] for line in recorded.stdout.splitlines() if "Drawn" in line}) == 8 * rounds


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("environment", ["openai2", "old"])
@pytest.mark.sampled(2)
def test_s7_graph_is_taken_up_at_any_checkpoint_and_does_nothing_twice(
    environment: str, how: str, provider: Provider, workplace: Workplace
) -> None:
    """In a replay the graph resumes from each checkpoint to the same end, and its effect happens once."""
    there = _there(workplace, environment)
    counter = workplace.path / "counter.txt"
    there.environ["AGENT_COUNTER"] = str(counter)
    agent = AGENTS / "checkpoint_agent.py"
    there.record(agent, how, "run")
    provider.stop()
    assert counter.read_text() == "1"
    replayed = there.replay(agent, how, "again")
    assert counter.read_text() == "1"
    parts = replayed.stdout.removesuffix("done\n").split("checkpoint ")
    first = parts[0].removeprefix("run")
    assert [part.partition("again")[2] for part in parts[1:]] == [first] * 5, replayed.stderr
    assert replayed.verdict["sockets_denied"] == []


@pytest.mark.slow
def test_s7_langgraph_itself_does_it_twice(provider: Provider, workplace: Workplace) -> None:
    """Without us, the same agent resumed at the three checkpoints before its payment pays three more times."""
    there = _there(workplace, "openai2")
    counter = workplace.path / "counter.txt"
    there.record(AGENTS / "checkpoint_agent.py", "sync", "again", AGENT_COUNTER=str(counter), SPANREPLAY_MODE="off")
    assert counter.read_text() == "4"


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["openai2", "old"])
@pytest.mark.sampled(1)
def test_s7_thread_in_a_database_is_taken_up_in_another_process(
    environment: str, provider: Provider, workplace: Workplace
) -> None:
    """A thread kept in SQLite resumes from each checkpoint in a new process; no effect is repeated."""
    there = _there(workplace, environment)
    counter = workplace.path / "counter.txt"
    there.environ.update(AGENT_COUNTER=str(counter), AGENT_THREADS=str(workplace.path / "threads.db"))
    agent = AGENTS / "checkpoint_agent.py"
    recorded = there.record(agent, "sync", "run")
    provider.stop()
    assert there.replay(agent, "sync", "run").stdout == recorded.stdout
    ends = []
    for number in (1, 2, 4):
        replayed = there.replay(agent, "sync", "from", str(number), options=["--live", "tool:sqlite3.*"])
        ends.append(replayed.stdout.partition("again")[2])
    assert ends == [recorded.stdout.partition("run")[2]] * 3
    assert counter.read_text() == "1"


@pytest.mark.slow
def test_u1_traces_of_openai_agents_go_nowhere_in_a_replay(provider: Provider, workplace: Workplace) -> None:
    """The SDK's own trace exporter is another tool's telemetry: not a call of the run, and silent in a replay."""
    there = _there(workplace, "openai-agents", "openai_agents")
    recorded = there.record(AGENTS / "openai_agents_agent.py", "run_sync")
    provider.stop()
    recording = there.recording()
    assert {c.kind for c in recording.calls} == {"llm", "tool"}
    assert not [c for c in recording.calls if "traces/ingest" in json.loads(c.request).get("url", "")]
    replayed = there.replay(AGENTS / "openai_agents_agent.py", "run_sync")
    assert (replayed.status, replayed.stdout) == (0, recorded.stdout), replayed.stderr
