"""An ordinary agent on smolagents: tool calls, code, managed agents; prints everything it gets.

usage: python smolagents_agent.py [SECTION ...]      all sections when none is named
The tools write to the file named by AGENT_LEDGER (default: ledger.txt).
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import ClassVar

from smolagents import CodeAgent, LogLevel, OpenAIModel, Tool, ToolCallingAgent, tool

LEDGER = Path(os.environ.get("AGENT_LEDGER", "ledger.txt"))
model = OpenAIModel("gpt-x", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


def show(*parts):
    print(*parts, flush=True)


def write(line):
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")
    return f"{line}, receipt {random.SystemRandom().randint(10**6, 10**7)}"


@tool
def buy(symbol: str, quantity: int) -> str:
    """Buy shares.

    Args:
        symbol: what
        quantity: how many
    """
    return write(f"buy {quantity} {symbol}")


@tool
def break_down(reason: str) -> str:
    """A tool that fails.

    Args:
        reason: why
    """
    write(f"broke {reason}")
    raise ValueError(f"broke down: {reason}, code {random.SystemRandom().randint(100, 999)}")


class Quote(Tool):
    name = "quote"
    description = "Ask for a price."
    inputs: ClassVar = {"symbol": {"type": "string", "description": "what"}}
    output_type = "number"

    def setup(self):
        write("quote is set up")
        super().setup()

    def forward(self, symbol: str):
        write(f"quote {symbol}")
        return random.SystemRandom().randint(1, 10**6) / 100


def order(name, **arguments):
    return f"use tool {name} with {json.dumps(arguments)}"


def say(text):
    return f"say {json.dumps({'text': text})}"


def steps(*turns):
    return "Work step by step: " + " then ".join(turns)


def show_run(section, agent, result):
    for step in agent.memory.steps:
        show(section, type(step).__name__, getattr(step, "step_number", ""))
        show(section, "  output", getattr(step, "model_output", None), getattr(step, "observations", None))
        show(section, "  error", repr(getattr(step, "error", None)))
        for call in getattr(step, "tool_calls", None) or []:
            show(section, "  call", call.id, call.name, call.arguments)
    show(section, type(result), result)


def make_agent(cls, **more):
    return cls(tools=[buy, Quote(), break_down], model=model, verbosity_level=LogLevel.OFF, **more)


def tools():
    agent = make_agent(ToolCallingAgent)
    task = steps(
        order("buy", symbol="ACME", quantity=3),
        order("quote", symbol="ACME"),
        order("final_answer", answer="bought"),
    )
    show_run("tools", agent, agent.run(task))


def failing():
    agent = make_agent(ToolCallingAgent, max_steps=2)
    show_run("failing", agent, agent.run(steps(order("break_down", reason="rust"))))
    show_run("failing", agent, agent.run(steps(order("buy", symbol="ACME"))))


def parallel():
    agent = make_agent(ToolCallingAgent)
    task = steps(" and ".join([order("quote", symbol="SAME")] * 8), order("final_answer", answer="quoted"))
    show_run("parallel", agent, agent.run(task))


def code():
    agent = make_agent(CodeAgent, additional_authorized_imports=["random"])
    task = steps(
        say("Thought: ask.\n<code>\nprices = [quote(symbol=s) for s in ('A', 'A', 'B')]\nprint(prices)\n</code>"),
        say("Thought: throw.\n<code>\nimport random\nprint(random.random(), break_down(reason='rust'))\n</code>"),
        say("Thought: buy.\n<code>\nprint(buy('ACME', quantity=int(max(prices))))\nfinal_answer(prices[0])\n</code>"),
    )
    show_run("code", agent, agent.run(task))


def stream():
    agent = make_agent(ToolCallingAgent, stream_outputs=True)
    task = steps(order("buy", symbol="S", quantity=1), order("final_answer", answer="streamed"))
    for event in agent.run(task, stream=True):
        show("stream", type(event).__name__, getattr(event, "content", ""))


def managed():
    clerk = make_agent(ToolCallingAgent, name="clerk", description="Quotes.", max_steps=3)
    boss = ToolCallingAgent(tools=[buy], model=model, managed_agents=[clerk], verbosity_level=LogLevel.OFF)
    inner = steps(order("quote", symbol="M"), order("final_answer", answer="asked")).replace(" then ", " THEN ")
    task = "Work step by step: " + order("clerk", task=inner) + " then " + order("final_answer", answer="done")
    show_run("managed", boss, boss.run(task))


SECTIONS = {
    "tools": tools,
    "failing": failing,
    "parallel": parallel,
    "code": code,
    "stream": stream,
    "managed": managed,
}

if __name__ == "__main__":
    show("smolagents", sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
