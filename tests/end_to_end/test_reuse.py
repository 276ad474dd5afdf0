"""Answers of earlier runs are given to later ones that ask the same, where the user wants that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from support.provider import Provider
from support.replaying import Workplace

AGENT: Final = """
import asyncio, os, sys
import aiohttp, httpx, openai, requests

url, prompt = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ.get("PROMPT", "hello")
body = {"model": "gpt-x", "messages": [{"role": "user", "content": prompt}]}
asked = {"model": "gpt-s", "messages": body["messages"]}

async def stream():
    chunks = await openai.AsyncOpenAI().chat.completions.create(**asked, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])

async def post(model):
    async with aiohttp.ClientSession() as session, session.post(url, json={**body, "model": model}) as response:
        return (await response.json())["choices"][0]["message"]["content"]

async def main():
    print(await asyncio.gather(stream(), post("gpt-a"), post("gpt-b")))

asyncio.run(main())
for chunk in openai.OpenAI().chat.completions.create(**{**asked, "model": "gpt-t"}, stream=True):
    print(chunk.choices[0].delta.content if chunk.choices else "", end="")
print(requests.post(url, json={**body, "model": "gpt-r"}).json()["choices"][0])
print(httpx.post(url, json=body).json()["choices"][0])
"""
CALLS: Final = 6
SAMPLES: Final = """
import os, sys
import httpx

body = {"model": "gpt-x", "messages": [{"role": "user", "content": os.environ.get("PROMPT", "hello")}]}
for _ in range(int(sys.argv[1])):
    response = httpx.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body)
    print(response.status_code, response.json().get("choices"))
"""


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A folder in which answers are reused."""
    found = Workplace(tmp_path, {"SPANREPLAY_REUSE": "llm:*"})
    found.write("agent.py", AGENT)
    found.write("samples.py", SAMPLES)
    return found


def _run(place: Workplace, provider: Provider, *arguments: str, **environ: str) -> tuple[str, str]:
    """Record an agent; return what it printed on standard output and on standard error."""
    process = place.spawn(["python", *arguments], **provider.environ(), **environ)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return stdout, stderr


def _list(place: Workplace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(place.run("ls", "--json").stdout)
    return found


def test_s41_a_second_identical_prompt_is_served_and_costs_nothing(place: Workplace) -> None:
    """Through four HTTP clients, streamed or not; both runs are complete recordings of their own."""
    with Provider() as provider:
        first, _ = _run(place, provider, "agent.py")
        assert len(provider.requests) == CALLS
    with Provider(port=provider.port) as provider:
        second, _ = _run(place, provider, "agent.py")
        assert provider.requests == []
    assert second == first
    new, old = _list(place)
    assert (new["status"], new["calls"], new["llm_calls"]) == ("ok", CALLS, CALLS)
    assert old["tokens_in"] > 0
    assert new["tokens_in"] == new["tokens_out"] == 0
    shown = place.run("show", new["run_id"]).stdout
    assert shown.count(f"answer of run {old['run_id'][:13]}") == CALLS
    for run in (new, old):
        replayed = place.run("replay", run["run_id"])
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_s41_n_samples_of_one_prompt_stay_n_samples(place: Workplace) -> None:
    """Within a run each answer is served once, and a prompt that is asked more often goes live for the rest."""
    with Provider() as provider:
        first, _ = _run(place, provider, "samples.py", "3")
        assert len(set(first.splitlines())) == len(provider.requests) == 3
        second, _ = _run(place, provider, "samples.py", "5")
        assert len(provider.requests) == 5
    assert len(set(second.splitlines())) == 5
    assert second.splitlines()[:3] == first.splitlines()


def test_s41_an_answer_has_an_age_and_an_owner(place: Workplace) -> None:
    """Nobody is served what is too old, what another user was told, or what another address said."""
    with Provider() as provider:
        _run(place, provider, "samples.py", "1", SPANREPLAY_USER_ID="u-1")
        _run(place, provider, "samples.py", "1", SPANREPLAY_USER_ID="u-2")
        assert len(provider.requests) == 2
        _run(place, provider, "samples.py", "2", SPANREPLAY_USER_ID="u-2", SPANREPLAY_REUSE_SCOPE="app")
        assert len(provider.requests) == 4  # kept for users, not for the agent
        _run(place, provider, "samples.py", "2", SPANREPLAY_USER_ID="u-3", SPANREPLAY_REUSE_SCOPE="app")
        assert len(provider.requests) == 4
        with Provider() as other:
            _run(place, other, "samples.py", "1", SPANREPLAY_USER_ID="u-1")
            assert len(other.requests) == 1
        _run(place, provider, "samples.py", "1", SPANREPLAY_USER_ID="u-1", SPANREPLAY_REUSE_TTL="0s")
        assert len(provider.requests) == 5


def test_s41_what_failed_or_hides_something_is_not_kept(place: Workplace) -> None:
    """An error is not repeated to later runs, and a token is never given to an agent in place of a secret."""
    secret = "sk-proj-Zq3v8Tn1Lw6Xc0Rb5Yh2Kd9Mf4Gs7Jp"
    with Provider() as provider:
        first, _ = _run(place, provider, "samples.py", "1", PROMPT="fail 500 once")
        assert first.startswith("500")
        again, _ = _run(place, provider, "samples.py", "1", PROMPT="fail 500 once")
        assert again.startswith("200")
        for _ in range(2):
            told, _ = _run(place, provider, "samples.py", "1", PROMPT=f"my key is {secret}")
            assert secret in told
        assert len(provider.requests) == 4
    kept = b"".join(path.read_bytes() for path in place.path.rglob("*.json"))
    assert kept
    assert secret.encode() not in kept


def test_s41_c9_erased_answers_are_given_to_nobody(place: Workplace) -> None:
    """Also those of runs that have left the directory."""
    with Provider() as provider:
        _run(place, provider, "samples.py", "1", SPANREPLAY_USER_ID="u-1")
        for path in (place.path / ".spanreplay" / "spool").glob("*.spool"):
            path.unlink()
        done = place.run("erase", "--user", "u-1", "--yes")
        assert "erased 1 run" in done.stderr
        _run(place, provider, "samples.py", "1", SPANREPLAY_USER_ID="u-1")
        assert len(provider.requests) == 2


BROKEN: Final = (
    ('"status": 200', '"status": 500'),
    ('"status": 200', '"status": "ok"'),
    ('"end": "complete"', '"end": "closed"'),
    ('"end": "complete"', '"end": "complete", "hops": [{"error": {}}]'),
    ('"end": "complete"', '"end": "complete", "extra": {"said": "rdx-bcdfghjklmnpqrstv"}'),
    ('{"status"', '["status"'),
)
"""What is replaced in a kept answer, so that it is none."""


def test_s41_what_is_no_whole_answer_is_not_given(place: Workplace) -> None:
    """Whoever wrote it there: the call goes live, and the run is complete."""
    with Provider() as provider:
        _run(place, provider, "samples.py", str(len(BROKEN)))
        paths = sorted((place.path / ".spanreplay" / "reuse").rglob("*.json"))
        for path, (old, new) in zip(paths, BROKEN, strict=True):
            kept = json.loads(path.read_text())
            response = json.dumps(json.loads(kept["response"]))
            assert old in response
            broken = {**kept, "response": response.replace(old, new, 1), "meta": {}}
            path.write_text(json.dumps(broken))
        _run(place, provider, "samples.py", str(len(BROKEN)))
        assert len(provider.requests) == 2 * len(BROKEN)
    assert {run["status"] for run in _list(place)} == {"ok"}


TURNS: Final = """
import asyncio, os
import httpx

async def ask(name):
    async with httpx.AsyncClient() as client:
        for number in range(3):
            body = {"model": "gpt-x", "messages": [{"role": "user", "content": f"{name} {number}"}]}
            await client.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body)
            print(name, number)

async def main():
    await asyncio.gather(ask("one"), ask("two"))

asyncio.run(main())
"""


def test_s41_tasks_take_turns_at_answers_that_are_there_at_once(place: Workplace) -> None:
    """As at answers from the network: a task that is given many doesn't hold the others up."""
    place.write("turns.py", TURNS)
    with Provider() as provider:
        _run(place, provider, "turns.py")
        told, _ = _run(place, provider, "turns.py")
        assert len(provider.requests) == 6
    assert told.splitlines() == [f"{name} {number}" for number in range(3) for name in ("one", "two")]
    replayed = place.run("replay", _list(place)[0]["run_id"])
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"SPANREPLAY_REUSE": "tool:*"}, "tool:* is no call to a model"),
        ({"SPANREPLAY_REUSE": "llm[2]"}, "counts calls"),
        ({"SPANREPLAY_REUSE_TTL": "soon"}, "'soon' is not a length of time"),
    ],
)
def test_s41_a_setting_that_is_wrong_reuses_nothing_and_says_so(
    place: Workplace, setting: dict[str, str], said: str
) -> None:
    """The agent goes on, and every call goes live."""
    with Provider() as provider:
        for _ in range(2):
            _, stderr = _run(place, provider, "samples.py", "1", **setting)
            assert stderr.count(said) == 1
        assert len(provider.requests) == 2
    assert {run["status"] for run in _list(place)} == {"ok"}
