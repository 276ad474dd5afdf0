"""An ordinary agent on Agno: tools, hooks, session state, streaming, teams; prints everything it gets.

usage: python agno_agent.py [SECTION ...]      all sections when none is named
The tools write to the file named by AGENT_LEDGER (default: ledger.txt).
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from agno.agent import Agent
from agno.exceptions import RetryAgentRun
from agno.models.openai import OpenAIChat
from agno.run import RunContext
from agno.team import Team
from agno.tools import Toolkit, tool
from pydantic import BaseModel

LEDGER = Path(os.environ.get("AGENT_LEDGER", "ledger.txt"))


def show(*parts):
    print(*parts, flush=True)


def write(line):
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")
    return f"{line}, receipt {random.SystemRandom().randint(10**6, 10**7)}"


class Trade(BaseModel):
    symbol: str
    quantity: int


def buy(symbol: str, quantity: int) -> str:
    """Buy shares."""
    return write(f"buy {quantity} {symbol}")


async def quote(symbol: str) -> dict:
    """Ask for a price."""
    await asyncio.sleep(random.SystemRandom().random() / 100)
    return {"symbol": symbol, "price": random.SystemRandom().randint(1, 10**6) / 100}


def remember(run_context: RunContext, note: str) -> str:
    """Keep a note in the session."""
    held = run_context.session_state.setdefault("notes", [])
    held.append(write(f"note {note}"))
    return f"{len(held)} notes"


def hesitate(amount: int) -> str:
    """A tool that asks the model to try again."""
    write(f"hesitate {amount}")
    if amount > 5:
        raise RetryAgentRun(f"{amount} is too much, code {random.SystemRandom().randint(100, 999)}")
    return "done"


def break_down(reason: str) -> str:
    """A tool that fails."""
    write(f"broke {reason}")
    raise ValueError(f"broke down: {reason}, code {random.SystemRandom().randint(100, 999)}")


def audit(function_name, function_call, arguments):
    show("  hook before", function_name, arguments)
    result = function_call(**arguments)
    show("  hook after", function_name, result)
    return result


@tool(tool_hooks=[audit])
def settle(symbol: str) -> Trade:
    """Settle; the result is a model."""
    write(f"settle {symbol}")
    return Trade(symbol=symbol.lower(), quantity=random.SystemRandom().randint(1, 10**6))


@tool(stop_after_tool_call=True)
def close_book(day: str):
    """Close the book, line by line."""
    for line in range(3):
        yield write(f"close {day} {line}") + "\n"


class Shelf(Toolkit):
    def __init__(self):
        super().__init__(name="shelf", tools=[self.look_up])

    def look_up(self, term: str) -> str:
        """Look a term up."""
        return write(f"look up {term}")


def make_agent(**more):
    tools = [buy, remember, hesitate, break_down, settle, close_book, Shelf()]
    return Agent(model=OpenAIChat(id="gpt-x"), tools=tools, instructions="You trade.", **more)


def make_async_agent(**more):
    return Agent(model=OpenAIChat(id="gpt-x"), tools=[buy, quote], instructions="You trade.", **more)


def order(name, **arguments):
    return f"use tool {name} with {json.dumps(arguments)}"


def show_run(section, response):
    show(section, type(response.content), response.content, response.status)
    for message in response.messages or []:
        calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.tool_calls or []]
        show(section, " ", message.role, repr(message.content), message.tool_call_id, message.tool_call_error, calls)
    for call in response.tools or []:
        show(section, "  tool", call.tool_call_id, call.tool_name, call.tool_args, repr(call.result))


def tools():
    task = " and ".join([order("buy", symbol="A", quantity=1), order("look_up", term="x"), order("settle", symbol="B")])
    show_run("tools", make_agent().run(task))


def state():
    agent = make_agent(session_state={"notes": []}, add_session_state_to_context=True)
    response = agent.run(order("remember", note="milk") + " then " + order("remember", note="eggs"))
    show_run("state", response)
    show("state", response.session_state)
    show("state", agent.run("What are the notes?", session_state=response.session_state).content)


def failing():
    task = " then ".join([order("break_down", reason="rust"), order("hesitate", amount=7), order("buy", symbol="A")])
    show_run("failing", make_agent().run(task))


def generator():
    show_run("generator", make_agent().run(order("close_book", day="monday")))


def structured():
    response = Agent(model=OpenAIChat(id="gpt-x"), output_schema=Trade).run("Give me an order.")
    show("structured", type(response.content), repr(response.content))


def stream():
    for event in make_agent().run(order("buy", symbol="S", quantity=2), stream=True, stream_events=True):
        show("stream", type(event).__name__, repr(getattr(event, "content", None)))


def team():
    clerk = Agent(name="clerk", role="quotes", model=OpenAIChat(id="gpt-x"), tools=[buy])
    crew = Team(members=[clerk], model=OpenAIChat(id="gpt-x"))
    task = order("buy", symbol="T", quantity=5)
    response = crew.run(f"use tool delegate_task_to_member with {json.dumps({'member_id': 'clerk', 'task': task})}")
    show("team", response.content)
    for member in response.member_responses:
        show_run("team", member)


async def _together():
    agent = make_async_agent()
    show_run("together", await agent.arun(" and ".join([order("quote", symbol="SAME")] * 8)))
    async for event in agent.arun(order("buy", symbol="S", quantity=2), stream=True):
        show("together", type(event).__name__, repr(getattr(event, "content", None)))

    async def one(number):
        response = await make_async_agent().arun(" and ".join([order("quote", symbol="SAME")] * 2))
        return number, [c.result for c in response.tools]

    for number, results in await asyncio.gather(*(one(n) for n in range(4))):
        show("together", number, results)


SECTIONS = {
    "tools": tools,
    "state": state,
    "failing": failing,
    "generator": generator,
    "structured": structured,
    "stream": stream,
    "team": team,
    "together": lambda: asyncio.run(_together()),
}

if __name__ == "__main__":
    show("agno", sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
