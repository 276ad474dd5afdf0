"""Unmodified agents are recorded, the provider is stopped, and they replay byte for byte."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import CallRecord, Recording
from support.agents import AGENTS, PYTHONS, without_instrumentors
from support.ports import free_port, wait_for_port
from support.provider import Provider
from support.replaying import CONTAINER, Replayed, Workplace
from support.spans import assert_same_spans


@dataclass(frozen=True)
class AgentRun:
    """A command, and the OpenInference instrumentors under which it runs."""

    command: tuple[str, ...]
    instrumentors: tuple[str, ...]
    silent: tuple[str, ...] = ()
    """Instrumentors that make no spans of their own."""


AGENT_RUNS: Final = {
    "openai": AgentRun(("openai_agent.py",), ("openai",)),
    "anthropic": AgentRun(("anthropic_agent.py",), ("anthropic",)),
    "langgraph": AgentRun(
        ("langgraph_agent.py", "parallel", "nested", "stream", "tokens", "fan_out", "ten_async"),
        ("langchain", "openai"),
    ),
    "langgraph_react": AgentRun(("langgraph_agent.py", "react", "react_async"), ("langchain", "openai")),
    "mcp": AgentRun(("mcp_agent.py",), ("mcp", "openai"), silent=("mcp",)),
}
OLD_ANTHROPIC: Final = AgentRun(
    ("anthropic_agent.py", "create", "tools", "stream", "stream_break", "streaming_response", "count_tokens", "async"),
    ("anthropic",),
)
"""Every instrumentor that supports Anthropic's SDK 0.49 breaks its raw responses and its stream helper."""
RUNS: Final = {
    **{f"{generation}-{name}": (generation, run) for generation in PYTHONS for name, run in AGENT_RUNS.items()},
    "old-anthropic": ("old", AgentRun(("anthropic_agent.py",), ())),
    "old-anthropic-traced": ("old", OLD_ANTHROPIC),
}


def assert_identical(replayed: Replayed, stdout: str, recording: Recording) -> None:
    """Assert that the replay gave the same output, paid nothing and opened no socket."""
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.status == 0
    assert replayed.stdout == stdout
    assert replayed.verdict["stdout"] == {**replayed.verdict["stdout"], "compared": True, "equal": True}
    counts = replayed.verdict["counts"]
    assert counts["exact"] + counts["covered"] == counts["recorded"] == len(recording.calls)
    assert replayed.verdict["sockets_denied"] == []
    assert replayed.verdict["tokens"]["live"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.sampled(6)
def test_u1_s61_unmodified_agent_replays_byte_for_byte(name: str, provider: Provider, workplace: Workplace) -> None:
    """With the provider's server stopped, an unmodified agent prints the same bytes and makes the same spans."""
    generation, run = RUNS[name]
    python = PYTHONS[generation]
    if not python.exists():
        pytest.skip(f"no {python}: `make matrix` builds it")
    there = Workplace(workplace.path, {**workplace.environ, **without_instrumentors(*run.instrumentors)}, python)
    script, *args = run.command
    recorded = there.record(AGENTS / script, *args)
    provider.stop()
    database = workplace.path / "notes.db"
    before = database.read_bytes() if database.exists() else b""
    recording = there.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    replayed = there.replay(AGENTS / script, *args)
    assert_identical(replayed, recorded.stdout, recording)
    assert (database.read_bytes() if database.exists() else b"") == before
    traced = assert_same_spans(workplace.path / ".spanreplay", recording.run_id)
    assert traced == set(run.instrumentors) - set(run.silent)


def test_s26_stream_chunks_and_rate_limit_come_back(provider: Provider, workplace: Workplace) -> None:
    """A stream of 13 chunks replays as 13 chunks; a recorded 429 raises the SDK's RateLimitError again."""
    args = ("stream", "rate_limited")
    recorded = workplace.record(AGENTS / "openai_agent.py", *args)
    provider.stop()
    replayed = workplace.replay(AGENTS / "openai_agent.py", *args)
    assert "stream 13 chunks" in replayed.stdout
    assert "RateLimitError 429" in replayed.stdout
    assert_identical(replayed, recorded.stdout, workplace.recording())


def test_s61_early_break_is_recorded_as_far_as_it_was_read(provider: Provider, workplace: Workplace) -> None:
    """A stream that the agent leaves early keeps the chunks that were read, and is marked."""
    source = (
        "from openai import OpenAI\n"
        "stream = OpenAI().chat.completions.create(model='gpt-x', stream=True,\n"
        "    messages=[{'role': 'user', 'content': 'hello'}])\n"
        "for n, chunk in enumerate(stream):\n"
        "    print(n, chunk.choices[0].delta.content, flush=True)\n"
        "    if n == 3: break\n"
    )
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent)
    provider.stop()
    recording = workplace.recording()
    assert '"end":"closed"' in recording.calls[0].response
    assert_identical(workplace.replay(agent), recorded.stdout, recording)


READS_ON = """
import sys
from openai import OpenAI
stream = OpenAI().chat.completions.create(model='gpt-x', stream=True,
    messages=[{'role': 'user', 'content': 'hello'}])
for n, chunk in enumerate(stream):
    if n == int(open('limit').read()): break
stream.close()
"""


def test_reading_a_stream_further_than_recorded_diverges(provider: Provider, workplace: Workplace) -> None:
    """Unrecorded chunks are not invented: the replay reports `stream_overrun`."""
    agent = workplace.write("agent.py", READS_ON)
    workplace.write("limit", "2")
    workplace.record(agent)
    provider.stop()
    workplace.write("limit", "9")
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert replayed.causes() == [("stream_overrun", "llm:openai.chat.completions")]


def test_s15_forty_identical_prompts_keep_their_own_answers(provider: Provider, workplace: Workplace) -> None:
    """Of 40 concurrent identical prompts, each task gets its own recorded completion: their vote is the same."""
    recorded = workplace.record(AGENTS / "openai_agent.py", "forty")
    provider.stop()
    recording = workplace.recording()
    assert len({c.response for c in recording.calls}) == len(recording.calls) >= 40
    assert len({c.key for c in recording.calls}) == 1
    votes = Counter(len(_said(call).split(":")[1]) % 5 for call in recording.calls)
    replayed = workplace.replay(AGENTS / "openai_agent.py", "forty")
    assert_identical(replayed, recorded.stdout, recording)
    (majority,) = [line for line in replayed.stdout.splitlines() if line.startswith("majority")]
    answer, count = map(int, re.findall(r"\d+", majority))
    assert votes[answer] == count == max(votes.values())


def _said(call: CallRecord) -> str:
    """The text of a model's recorded answer."""
    body = json.loads("".join(text for _, text in json.loads(call.response)["chunks"]))
    found: str = body["choices"][0]["message"]["content"]
    return found


TOOLS_UNDER_JITTER = """
import asyncio, os, random, sys, time
import spanreplay
rng = random.Random(int(os.environ["JITTER"]))
bodies = 0

@spanreplay.boundary("tool", name="lookup")
async def lookup(query):
    global bodies
    bodies += 1
    await asyncio.sleep(rng.random() / 200)
    return f"{query} {os.urandom(8).hex()}"

async def worker(n):
    return n, await lookup("the same")

async def main():
    for n, answer in await asyncio.gather(*(worker(n) for n in range(10))):
        print(n, answer)

for _ in range(int(os.environ["ROUNDS"])):
    asyncio.run(main())
print("bodies", bodies, file=sys.stderr)
"""


def test_s15_ten_parallel_identical_tool_calls_pair_right(workplace: Workplace) -> None:
    """Ten parallel identical tool calls, 50 rounds with new delays: every task gets its own result, no body runs."""
    agent = workplace.write("agent.py", TOOLS_UNDER_JITTER)
    recorded = workplace.record(agent, JITTER="1", ROUNDS="50")
    replayed = workplace.replay(agent, JITTER="2", ROUNDS="50")
    assert_identical(replayed, recorded.stdout, workplace.recording())
    assert "bodies 0" in replayed.stderr


LEDGER = """
import json, os, sqlite3, sys
import spanreplay
from openai import OpenAI

@spanreplay.boundary("tool", name="delete", effect="irreversible")
def delete(row):
    with sqlite3.connect("ledger.db") as db:
        db.execute("DELETE FROM ledger WHERE id = ?", (row,))
    return f"deleted {row}"

client = OpenAI()
prompt = os.environ.get("PROMPT", "be careful")
messages = [{"role": "system", "content": prompt}, {"role": "user", "content": "clean up"}]
print(client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
for row in range(int(os.environ.get("ROWS", "2"))):
    print(delete(row))
"""


@pytest.fixture
def ledger(workplace: Workplace) -> Path:
    """An observable side effect: a table with ten rows."""
    import sqlite3

    path = workplace.path / "ledger.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE ledger (id INTEGER)")
        db.executemany("INSERT INTO ledger VALUES (?)", [(n,) for n in range(10)])
    db.close()
    return path


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_s27_one_call_more_than_recorded_is_never_made(provider: Provider, workplace: Workplace, ledger: Path) -> None:
    """An agent that deletes once more than recorded is stopped: exit 3, the database untouched, the call named."""
    agent = workplace.write("agent.py", LEDGER)
    workplace.record(agent)
    provider.stop()
    before = _hash(ledger)
    replayed = workplace.replay(agent, ROWS="3")
    assert replayed.status == 3
    assert replayed.causes() == [("extra_call", "tool:delete")]
    assert _hash(ledger) == before


def test_s27_one_call_less_than_recorded_is_reported(provider: Provider, workplace: Workplace, ledger: Path) -> None:
    """A recorded call that is no longer made gives one `missing_call`."""
    agent = workplace.write("agent.py", LEDGER)
    workplace.record(agent)
    provider.stop()
    before = _hash(ledger)
    replayed = workplace.replay(agent, ROWS="1")
    assert replayed.status == 3
    assert replayed.causes() == [("missing_call", "tool:delete")]
    assert _hash(ledger) == before


def test_s28_changed_prompt_is_a_changed_call(provider: Provider, workplace: Workplace, ledger: Path) -> None:
    """A changed system prompt stops the replay, names the place of the change, and opens no socket."""
    agent = workplace.write("agent.py", LEDGER)
    workplace.record(agent)
    asked = len(provider.requests)
    replayed = workplace.replay(agent, PROMPT="be bold")
    assert replayed.status == 3
    assert replayed.causes() == [("changed_call", "llm:openai.chat.completions")]
    diff = replayed.verdict["divergences"][0]["diff"]
    assert diff == [{"path": "messages[0].content", "recorded": "be careful", "now": "be bold", "at": 3}]
    assert len(provider.requests) == asked
    assert replayed.verdict["tokens"]["live"] == 0


def test_s28_changed_prompt_can_be_served_by_position(provider: Provider, workplace: Workplace, ledger: Path) -> None:
    """With `--on-change serve` the edited prompt gets the recorded answer, so that control flow can be tested."""
    agent = workplace.write("agent.py", LEDGER)
    recorded = workplace.record(agent)
    provider.stop()
    before = _hash(ledger)
    replayed = workplace.replay(agent, PROMPT="be bold", options=["--on-change", "serve"])
    assert replayed.stdout == recorded.stdout
    assert replayed.status == 3
    assert replayed.causes() == [("changed_call", "llm:openai.chat.completions")]
    assert _hash(ledger) == before


def test_s2_tools_live_models_stubbed(provider: Provider, workplace: Workplace, ledger: Path) -> None:
    """With `--live 'tool:*'` the tool's body runs; the model's answer comes from the recording."""
    agent = workplace.write("agent.py", LEDGER)
    recorded = workplace.record(agent)
    provider.stop()
    before = _hash(ledger)
    guarded = LEDGER.replace("    with sqlite3", '    return "blocked"\n    with sqlite3', 1)
    workplace.write("agent.py", guarded)
    replayed = workplace.replay(agent, options=["--live", "tool:*"])
    assert replayed.status == 3
    assert set(replayed.causes()) == {("output_changed", "tool:delete")}
    assert replayed.stdout.splitlines() == [recorded.stdout.splitlines()[0], "blocked", "blocked"]
    assert replayed.verdict["counts"]["live"] == 2
    assert _hash(ledger) == before


@pytest.mark.parametrize("within", [(), CONTAINER], ids=["laptop", "air-gapped container"])
def test_s62_replay_file_needs_no_server_and_no_directory(
    provider: Provider, workplace: Workplace, tmp_path_factory: pytest.TempPathFactory, within: tuple[str, ...]
) -> None:
    """A `.replay` file replays in an empty directory with nothing running, even without a network."""
    if within and subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel lets nobody make namespaces")
    agent = workplace.write("agent.py", READS_ON)
    workplace.write("limit", "2")
    recorded = workplace.record(agent)
    file = workplace.path / "run.replay"
    run_id = workplace.recording().run_id
    done = workplace.run("export", run_id, "-o", str(file))
    assert done.returncode == 0, done.stderr
    recording = workplace.recording()
    provider.stop()
    elsewhere = Workplace(tmp_path_factory.mktemp("laptop"), workplace.environ)
    elsewhere.write("agent.py", READS_ON)
    elsewhere.write("limit", "2")
    elsewhere.within = within
    replayed = elsewhere.replay("agent.py", source=str(file))
    assert_identical(replayed, recorded.stdout, recording)
    if within:  # not even the loopback interface is up
        seen = subprocess.run([*within, "cat", "/proc/net/route"], capture_output=True, text=True, check=True).stdout
        assert len(seen.splitlines()) <= 1, seen


def test_s11_one_variable_switches_off_record_replay(provider: Provider, workplace: Workplace) -> None:
    """SPANREPLAY_MODE alone decides whether the same script runs unrecorded, recorded or replayed."""
    agent = workplace.write(
        "agent.py", LEDGER.replace('for row in range(int(os.environ.get("ROWS", "2"))):', "for row in ():")
    )
    workplace.record(agent, SPANREPLAY_MODE="off")
    assert not (workplace.path / ".spanreplay").exists()
    recorded = workplace.record(agent, SPANREPLAY_MODE="record")
    asked = len(provider.requests)
    provider.stop()
    again = workplace.record(agent, SPANREPLAY_MODE="replay")
    assert again.stdout == recorded.stdout
    assert "identical" in again.stderr
    assert len(provider.requests) == asked


def test_an_api_key_is_nowhere_in_the_data_directory(provider: Provider, workplace: Workplace) -> None:
    """No file of the recording or of a replay contains the key that the agent authenticates with."""
    key = "sk-proj-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe9Dc8Ba7"
    workplace.environ["OTEL_RESOURCE_ATTRIBUTES"] = f"deployment.token={key},team=blue"
    recorded = workplace.record(AGENTS / "openai_agent.py", "create", "stream", OPENAI_API_KEY=key)
    provider.stop()
    replayed = workplace.replay(AGENTS / "openai_agent.py", "create", "stream", OPENAI_API_KEY=key)
    assert replayed.stdout == recorded.stdout, replayed.stderr
    files = [p for p in (workplace.path / ".spanreplay").rglob("*") if p.is_file()]
    assert files
    assert [p for p in files if key.encode() in p.read_bytes()] == []


@pytest.mark.slow
@pytest.mark.parametrize("generation", PYTHONS)
def test_u1_mcp_over_streamable_http_replays_with_the_server_gone(generation: str, workplace: Workplace) -> None:
    """An MCP session over streamable HTTP replays without its server; its HTTP traffic is not a separate boundary."""

    python = PYTHONS[generation]
    if not python.exists():
        pytest.skip(f"no {python}: `make matrix` builds it")
    there = Workplace(workplace.path, workplace.environ, python)
    port = free_port()
    server = subprocess.Popen([str(python), str(AGENTS / "mcp_http_server.py"), str(port)], env=there.environ)
    try:
        wait_for_port(port)
        url = f"http://127.0.0.1:{port}/mcp"
        recorded = there.record(AGENTS / "mcp_http_agent.py", AGENT_MCP_URL=url)
    finally:
        server.kill()
        server.wait()
    recording = there.recording()
    assert {c.kind for c in recording.calls} == {"mcp"}
    assert_identical(there.replay(AGENTS / "mcp_http_agent.py", AGENT_MCP_URL=url), recorded.stdout, recording)


PASSWORD_IN_PROMPT = """
from openai import OpenAI
messages = [{"role": "user", "content": "log in with password=Tr0ub4dor&3x"}]
print(OpenAI().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
"""


def test_redacted_request_replays_with_any_key_and_another_one_is_named(
    provider: Provider, workplace: Workplace
) -> None:
    """A prompt with a secret replays; without the key the verdict says that hidden values were not compared."""
    agent = workplace.write("agent.py", PASSWORD_IN_PROMPT)
    workplace.record(agent)
    provider.stop()
    recording = workplace.recording()
    assert "Tr0ub4dor" not in recording.calls[0].request
    replayed = workplace.replay(agent)
    assert replayed.verdict["counts"]["exact"] == 1, replayed.stderr
    elsewhere = workplace.replay(agent, SPANREPLAY_REDACT_KEY=str(workplace.path / "other.key"))
    assert elsewhere.verdict["verdict"] == "identical", elsewhere.stderr
    assert "values that redaction hides" in elsewhere.stderr
