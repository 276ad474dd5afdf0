"""A router's choice of model is part of the request: a model SDK's random choices are repeated in a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from support.installing import install
from support.provider import Provider
from support.replaying import Workplace

ROUTER: Final = """
import random

def pick(models):
    first = random.choices(models, weights=[3] * len(models))[0]
    return [first, random.choice(models), *random.sample(models, len(models))]
"""
AGENT: Final = """
import asyncio
import litellm
from openai import AsyncOpenAI

client = AsyncOpenAI()

async def ask(text):
    answers = []
    for model in litellm.pick([f"model-{number}" for number in range(9)]):
        answer = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
        answers.append(f"{answer.model}: {answer.choices[0].message.content}")
    return answers

async def main():
    for each in await asyncio.gather(*(ask(f"question {number}") for number in range(4))):
        print(each)

asyncio.run(main())
"""


def test_what_a_router_picks_is_picked_again(workplace: Workplace, provider: Provider, tmp_path: Path) -> None:
    """Four concurrent tasks make their own choices; a changed prompt is the one difference."""
    site = tmp_path / "site-packages"
    install(site, "litellm", {"litellm/__init__.py": ROUTER})
    workplace.environ.update(provider.environ(), PYTHONPATH=str(site))
    workplace.write("agent.py", AGENT)
    done = workplace.record("agent.py")
    provider.stop()
    replayed = workplace.replay("agent.py")
    assert (replayed.stdout, replayed.status) == (done.stdout, 0), replayed.stderr
    workplace.write("agent.py", AGENT.replace("question {number}", "query {number}"))
    changed = workplace.replay("agent.py")
    assert set(changed.causes()) == {("changed_call", "llm:openai.chat.completions")}
    assert {each["path"] for found in changed.verdict["divergences"] for each in found["diff"]} == {
        "messages[0].content"
    }
