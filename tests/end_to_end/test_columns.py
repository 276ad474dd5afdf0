"""Facts about a run's model calls are in columns that SQL can query."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.provider import Provider
from support.replaying import BIN, Workplace
from support.repository import commit
from support.sql import ask
from support.up_server import start_up

AGENT = """
import os
from groq import Groq
messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "hello"}]
Groq().chat.completions.create(
    model=os.environ["MODEL"], temperature=float(os.environ["TEMPERATURE"]), messages=messages)
"""


@dataclass(frozen=True)
class Stored:
    """A stopped server's data, the two commits, and the run ids in recording order."""

    data_dir: Path
    first_commit: str
    second_commit: str
    runs: list[str]
    fingerprint: str


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Four runs recorded from an unmodified agent and shipped to a real server, which then stopped."""
    path = tmp_path_factory.mktemp("agent")
    with Provider() as provider, start_up(tmp_path_factory.mktemp("up")) as server:
        workplace = Workplace(path, provider.environ())
        agent = workplace.write("agent.py", AGENT)
        first = commit(path, "first")
        workplace.record(agent, MODEL="gpt-x", TEMPERATURE="0.7")
        workplace.record(agent, MODEL="gpt-x-2026-10-01", TEMPERATURE="0.7")
        workplace.record(agent, MODEL="gpt-x", TEMPERATURE="0.2")
        second = commit(path, "second")
        workplace.record(agent, MODEL="gpt-x", TEMPERATURE="0.7")
        runs = [recording.run_id for recording in workplace.recordings()]
        shipped = subprocess.run(
            [str(BIN / "spanreplay"), "ship", "--endpoint", server.otlp_endpoint],
            cwd=path,
            env=workplace.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shipped.returncode == 0, shipped.stderr
        assert server.stop() == 0, server.log
    return Stored(server.data_dir, first, second, runs, provider.fingerprint)


@pytest.mark.slow
def test_s3_planted_run_is_found_by_commit_models_and_temperature(stored: Stored) -> None:
    """Of four runs, the one that matches commit, resolved alias and temperature is found, and no other."""
    found = ask(
        stored.data_dir,
        f"SELECT run FROM calls WHERE git_sha = '{stored.first_commit}' AND response_model != model"
        " AND temperature = 0.7",
    )
    assert [row["run"] for row in found] == [stored.runs[0]]
    assert stored.first_commit != stored.second_commit


@pytest.mark.slow
def test_s23_alias_and_resolved_model_are_both_queryable(stored: Stored) -> None:
    """The model asked for, the model that answered and its fingerprint are columns."""
    asked = ask(stored.data_dir, "SELECT run FROM calls WHERE model = 'gpt-x' ORDER BY run")
    answered = ask(stored.data_dir, "SELECT run FROM calls WHERE response_model = 'gpt-x-2026-10-01' ORDER BY run")
    assert [row["run"] for row in asked] == [stored.runs[0], *stored.runs[2:]]
    assert [row["run"] for row in answered] == stored.runs
    prints = ask(stored.data_dir, f"SELECT count() AS calls FROM calls WHERE fingerprint = '{stored.fingerprint}'")
    assert [int(row["calls"]) for row in prints] == [4]


@pytest.mark.slow
def test_s22_envelope_is_in_columns(stored: Stored) -> None:
    """Times, parameters, prompt hash, tokens and the caller's place are columns of their own."""
    rows = ask(
        stored.data_dir,
        "SELECT kind, name, lane, outcome, temperature, system_prompt_hash, code, finish_reason,"
        " start_ns < end_ns AS has_times, tokens_in > 0 AND tokens_out > 0 AS has_tokens"
        f" FROM calls WHERE run = '{stored.runs[2]}'",
    )
    assert rows == [
        {
            "kind": "llm",
            "name": "openai.chat.completions",
            "lane": "main",
            "outcome": "ok",
            "temperature": 0.2,
            "system_prompt_hash": "a51f2b2e7365696fe7021d1e404dc043361edf8441c421c41ba3f55a6b4d71c6",
            "code": "agent.py:5 <module>",
            "finish_reason": "stop",
            "has_times": 1,
            "has_tokens": 1,
        }
    ]
