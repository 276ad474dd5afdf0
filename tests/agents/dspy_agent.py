"""An ordinary program on DSPy: ReAct with tools, typed predictions, tools by themselves; prints everything it gets.

usage: python dspy_agent.py [SECTION ...]      all sections when none is named
The tools write to the file named by AGENT_LEDGER (default: ledger.txt).
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Literal

import dspy
from pydantic import BaseModel

LEDGER = Path(os.environ.get("AGENT_LEDGER", "ledger.txt"))
dspy.configure(lm=dspy.LM("openai/gpt-x", api_base=os.environ["OPENAI_BASE_URL"], cache=False))


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


def settle(trade: Trade) -> Trade:
    """Settle a trade."""
    write(f"settle {trade.symbol}")
    return Trade(symbol=trade.symbol.lower(), quantity=random.SystemRandom().randint(1, 10**6))


def break_down(reason: str) -> str:
    """A tool that fails."""
    write(f"broke {reason}")
    raise ValueError(f"broke down: {reason}, code {random.SystemRandom().randint(100, 999)}")


async def quote(symbol: str) -> float:
    """Ask for a price."""
    await asyncio.sleep(random.SystemRandom().random() / 100)
    return random.SystemRandom().randint(1, 10**6) / 100


def field(name, value):
    return f"[[ ## {name} ## ]]\n{value}\n\n"


def say(*fields):
    text = "".join(field(name, value) for name, value in fields) + "[[ ## completed ## ]]\n"
    return f"say {json.dumps({'text': text})}"


def step(tool, **arguments):
    return say(("next_thought", "go on"), ("next_tool_name", tool), ("next_tool_args", json.dumps(arguments)))


def steps(*turns):
    return "Work step by step: " + " then ".join(turns)


def react():
    agent = dspy.ReAct("question -> answer", tools=[buy, settle, break_down], max_iters=6)
    question = steps(
        step("buy", symbol="ACME", quantity=3),
        step("settle", trade={"symbol": "ACME", "quantity": 3}),
        step("break_down", reason="rust"),
        step("buy", symbol="ACME"),
        step("finish"),
        say(("reasoning", "it is so"), ("answer", "bought")),
    )
    result = agent(question=question)
    for name, value in result.trajectory.items():
        show("react", name, repr(value))
    show("react", result.answer)


async def _together():
    agent = dspy.ReAct("question -> answer", tools=[quote], max_iters=3)
    question = steps(step("quote", symbol="SAME"), step("finish"), say(("reasoning", "so"), ("answer", "quoted")))

    async def one(number):
        result = await agent.acall(question=question)
        return number, result.trajectory["observation_0"]

    for number, price in await asyncio.gather(*(one(n) for n in range(5))):
        show("together", number, price)


def predict():
    class Sort(dspy.Signature):
        """Sort a message."""

        message: str = dspy.InputField()
        kind: Literal["order", "question"] = dspy.OutputField()
        score: float = dspy.OutputField()

    answer = say(("kind", "order"), ("score", random.SystemRandom().randint(1, 10**6) / 10**6))
    result = dspy.Predict(Sort)(message=steps(answer))
    show("predict", result.kind, result.score)


def tools():
    bought = dspy.Tool(buy)
    show("tools", bought(symbol="T", quantity=2))
    with dspy.context(allow_tool_async_sync_conversion=True):
        show("tools", dspy.Tool(quote)(symbol="T"))
    for arguments in ({"symbol": "T", "quantity": "many"}, {"colour": "red"}):
        try:
            bought(**arguments)
        except ValueError as exc:
            show("tools", type(exc), exc)
    calls = dspy.ToolCalls.from_dict_list([{"name": "buy", "args": {"symbol": "C", "quantity": n}} for n in range(3)])
    for call in calls.tool_calls:
        show("tools", call.execute({"buy": dspy.Tool(buy)}))


SECTIONS = {"react": react, "together": lambda: asyncio.run(_together()), "predict": predict, "tools": tools}

if __name__ == "__main__":
    show("dspy", sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
