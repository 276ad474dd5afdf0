"""An ordinary agent on Google's ADK: function tools, state, transfers, streaming; prints everything it gets.

usage: python google_adk_agent.py [SECTION ...]      all sections when none is named
The tools write to the file named by AGENT_LEDGER (default: ledger.txt).
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.adk.tools import AgentTool, BaseTool, FunctionTool, ToolContext
from google.genai import types
from pydantic import BaseModel

LEDGER = Path(os.environ.get("AGENT_LEDGER", "ledger.txt"))
MODEL = "gemini-x"


def show(*parts):
    print(*parts, flush=True)


def write(line):
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")
    return f"{line}, receipt {random.SystemRandom().randint(10**6, 10**7)}"


class Trade(BaseModel):
    symbol: str
    quantity: int


def buy(symbol: str, quantity: int) -> dict:
    """Buy shares."""
    return {"status": write(f"buy {quantity} {symbol}")}


async def quote(symbol: str) -> dict:
    """Ask for a price."""
    await asyncio.sleep(random.SystemRandom().random() / 100)
    return {"symbol": symbol, "price": random.SystemRandom().randint(1, 10**6) / 100}


def settle(trade: Trade) -> str:
    """Settle a trade; its argument is a model."""
    return write(f"settle {trade.quantity} {trade.symbol}")


def remember(note: str, tool_context: ToolContext) -> str:
    """Keep a note in the session."""
    held = tool_context.state.get("notes", [])
    tool_context.state["notes"] = [*held, write(f"note {note}")]
    tool_context.state["user:count"] = len(held) + 1
    return f"{len(held) + 1} notes"


def give_up(reason: str, tool_context: ToolContext) -> str:
    """End without a summary."""
    tool_context.actions.skip_summarization = True
    return write(f"gave up: {reason}")


def break_down(reason: str) -> str:
    """A tool that fails."""
    write(f"broke {reason}")
    raise ValueError(f"broke down: {reason}, code {random.SystemRandom().randint(100, 999)}")


class Shelf(BaseTool):
    def __init__(self):
        super().__init__(name="look_up", description="Look a term up.")

    def _get_declaration(self):
        term = types.Schema(type="STRING")
        parameters = types.Schema(type="OBJECT", properties={"term": term}, required=["term"])
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters=parameters)

    async def run_async(self, *, args, tool_context):
        tool_context.state["looked_up"] = args["term"]
        return {"found": write(f"look up {args['term']}")}


def order(name, **arguments):
    return f"use tool {name} with {json.dumps(arguments)}"


async def converse(section, agent, *prompts, streaming=StreamingMode.NONE, state=None):
    runner = InMemoryRunner(agent=agent, app_name="desk")
    session = await runner.session_service.create_session(app_name="desk", user_id="ada", state=state or {})
    for prompt in prompts:
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for event in runner.run_async(
            user_id="ada",
            session_id=session.id,
            new_message=message,
            run_config=RunConfig(streaming_mode=streaming),
        ):
            parts = [p.model_dump(exclude_none=True) for p in (event.content.parts if event.content else None) or []]
            show(section, event.author, event.partial, parts, event.actions.model_dump(exclude_none=True))
    kept = await runner.session_service.get_session(app_name="desk", user_id="ada", session_id=session.id)
    show(section, "state", kept.state)
    await runner.close()


def make_agent(*tools, **more):
    return Agent(name="trader", model=MODEL, instruction="You trade.", tools=list(tools), **more)


async def tools():
    prompt = " and ".join([order("buy", symbol="A", quantity=1), order("settle", trade={"symbol": "B", "quantity": 2})])
    prompt += " then " + order("look_up", term="x") + " then " + order("buy", symbol="A")
    await converse("tools", make_agent(buy, settle, Shelf()), prompt)


async def parallel():
    await converse("parallel", make_agent(quote), " and ".join([order("quote", symbol="SAME")] * 8))


async def state():
    agent = make_agent(remember, give_up)
    agent.instruction = "You trade. Notes: {notes}"
    prompts = [order("remember", note="milk") + " then " + order("remember", note="eggs"), "What are the notes?"]
    await converse("state", agent, *prompts, order("give_up", reason="late"), state={"notes": []})


async def failing():
    try:
        await converse("failing", make_agent(break_down), order("break_down", reason="rust"))
    except ValueError as exc:
        show("failing", type(exc), exc)


async def confirmed():
    tool = FunctionTool(buy, require_confirmation=True)
    await converse("confirmed", make_agent(tool), order("buy", symbol="C", quantity=3))


async def agents():
    clerk = Agent(name="clerk", model=MODEL, description="Quotes.", tools=[quote])
    await converse("transfer", make_agent(sub_agents=[clerk]), order("transfer_to_agent", agent_name="clerk"))
    asked = order("clerk", request=order("quote", symbol="T"))
    await converse("agent tool", make_agent(AgentTool(Agent(name="clerk", model=MODEL, tools=[quote]))), asked)


async def structured():
    await converse("structured", Agent(name="trader", model=MODEL, output_schema=Trade, output_key="trade"), "Order.")


async def stream():
    await converse("stream", make_agent(buy), order("buy", symbol="S", quantity=4), streaming=StreamingMode.SSE)


SECTIONS = {
    "tools": tools,
    "parallel": parallel,
    "state": state,
    "failing": failing,
    "confirmed": confirmed,
    "agents": agents,
    "structured": structured,
    "stream": stream,
}

if __name__ == "__main__":
    show("google-adk", sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        asyncio.run(SECTIONS[section]())
    show("done")
