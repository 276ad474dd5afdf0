"""What tools change in an object that a framework hands to them, where parts of it can't be recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.agents import ENVIRONMENTS
from support.provider import Provider
from support.replaying import Workplace, assert_same

AGENTS: Final = """
import asyncio, random, threading
from dataclasses import dataclass, field
from openai import AsyncOpenAI
from agents import Agent, RunContextWrapper, Runner, function_tool, set_default_openai_client, set_tracing_disabled

set_tracing_disabled(True)

@dataclass
class Desk:
    client: AsyncOpenAI
    lock: threading.Lock = field(default_factory=threading.Lock)
    seats: list = field(default_factory=list)
    mood: str = "calm"

@function_tool
async def book(desk: RunContextWrapper[Desk], seat: str) -> str:
    \"\"\"Book a seat.\"\"\"
    with desk.context.lock:
        desk.context.seats.append(f"{seat}-{random.randint(10**6, 10**7)}")
    desk.context.mood = "busy"
    return "booked"

def instruct(desk, agent):
    return f"You are {desk.context.mood}. Booked: {', '.join(desk.context.seats)}"

async def main():
    desk = Desk(AsyncOpenAI())
    set_default_openai_client(desk.client)
    agent = Agent(name="clerk", instructions=instruct, model="gpt-x", tools=[book])
    for seat in ("4a", "5b"):
        print((await Runner.run(agent, 'use tool book with {"seat": "%s"}' % seat, context=desk)).final_output)
    print(desk.seats, desk.mood)

asyncio.run(main())
"""
PYDANTIC_AI: Final = """
import asyncio, random, threading
from dataclasses import dataclass, field
from pydantic_ai import Agent, RunContext

@dataclass
class Desk:
    lock: threading.Lock = field(default_factory=threading.Lock)
    seats: list = field(default_factory=list)

agent = Agent("openai-chat:gpt-x", deps_type=Desk)

@agent.instructions
def instruct(context: RunContext[Desk]) -> str:
    return f"Booked: {', '.join(context.deps.seats)}"

@agent.tool
async def book(context: RunContext[Desk], seat: str) -> str:
    \"\"\"Book a seat.\"\"\"
    context.deps.seats.append(f"{seat}-{random.randint(10**6, 10**7)}")
    return "booked"

async def main():
    desk = Desk()
    for seat in ("4a", "5b"):
        print((await agent.run('use tool book with {"seat": "%s"}' % seat, deps=desk)).output)
    print(desk.seats)

asyncio.run(main())
"""
DELEGATION: Final = """
import asyncio
from pydantic_ai import Agent, RunContext

clerk = Agent("openai-chat:gpt-x")
agent = Agent("openai-chat:gpt-x")

@agent.tool
async def ask_clerk(context: RunContext[None], question: str) -> str:
    \"\"\"Ask the clerk.\"\"\"
    return (await clerk.run(question, usage=context.usage)).output

async def main():
    done = await agent.run('use tool ask_clerk with {"question": "5b-?"}')
    usage = done.usage
    print(done.output, usage.requests, usage.input_tokens, usage.output_tokens)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("script", "place"),
    [(AGENTS, "openai-agents"), (PYDANTIC_AI, "openai3"), (DELEGATION, "openai3")],
    ids=["openai-agents", "pydantic-ai", "delegation"],
)
def test_u1_s50_what_a_tool_changes_beside_a_client_is_changed_again(
    tmp_path: Path, provider: Provider, script: str, place: str
) -> None:
    """A context that holds a lock and a client beside the data, and the tokens of an agent that a tool has asked."""
    workplace = Workplace(tmp_path, provider.environ(), ENVIRONMENTS[place])
    workplace.write("agent.py", script)
    recorded = workplace.record("agent.py")
    assert "5b-" in recorded.stdout
    provider.stop()
    assert_same(workplace.replay("agent.py"), recorded.stdout)


GLOBAL: Final = """
import random
from spanreplay import boundary

CART = []

@boundary("tool")
def buy(thing):
    CART.append(f"{thing} {random.random()}")
    with open("bought.txt", "a") as bought:
        print(thing, file=bought)
    return "bought"

print(buy("apples"), CART)
"""


def test_n12_p12_what_a_tool_changed_in_memory_comes_from_its_code(tmp_path: Path) -> None:
    """A global that the program reads elsewhere is not recorded: the tool's code runs again, unless the plan serves it.

    Its random values are as recorded, and what it writes stays in the sandbox.
    """
    workplace = Workplace(tmp_path)
    workplace.write("agent.py", GLOBAL)
    recorded = workplace.record("agent.py")
    (tmp_path / "bought.txt").unlink()
    served = workplace.replay("agent.py", options=("--stub", "tool"))
    assert served.verdict["verdict"] == "diverged"
    assert "tools do not run in a replay (tool:buy): what they changed in memory" in served.stderr
    again = workplace.replay("agent.py")
    assert again.verdict["verdict"] == "identical", again.stderr
    assert again.verdict["counts"]["rerun"] == 1
    assert "did tools leave something in memory?" in again.stderr
    assert again.stderr.count(recorded.stdout) == 1
    assert not (tmp_path / "bought.txt").exists()


def test_n12_p12_what_a_tool_changed_in_memory_is_there_for_changed_code_too(tmp_path: Path) -> None:
    """An edit that changes nothing is no difference; one that does is still one, and so is one of a call."""
    workplace = Workplace(tmp_path)
    workplace.write("agent.py", GLOBAL)
    workplace.record("agent.py")
    workplace.write("agent.py", GLOBAL.replace("print(", "print(*(), "))
    assert workplace.replay("agent.py").verdict["verdict"] == "identical"
    for changed in (GLOBAL.replace("print(", "print('now', "), GLOBAL.replace('buy("apples")', 'buy("pears")')):
        workplace.write("agent.py", changed)
        replayed = workplace.replay("agent.py")
        assert replayed.verdict["verdict"] == "diverged"
        assert "rerun" not in replayed.verdict["counts"]
