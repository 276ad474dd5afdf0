"""An ordinary agent on pydantic-ai: tools, structured output, retries, streaming; prints everything it gets.

usage: python pydantic_ai_agent.py [SECTION ...]      all sections when none is named
The tools write to the file named by AGENT_LEDGER (default: ledger.txt).
"""

import asyncio
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, ToolReturn

MODEL = "openai-chat:gpt-x"
LEDGER = Path(os.environ.get("AGENT_LEDGER", "ledger.txt"))


def show(*parts):
    print(*parts, flush=True)


def write(line):
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")
    return f"{line}, receipt {random.SystemRandom().randint(10**6, 10**7)}"


@dataclass
class Desk:
    clerk: str
    bought: list = field(default_factory=list)


@dataclass
class Quote:
    symbol: str
    price: float


class Trade(BaseModel):
    symbol: str
    quantity: int


agent = Agent(MODEL, deps_type=Desk, instructions="You trade.", retries=3)


@agent.instructions
def tell(ctx: RunContext[Desk]) -> str:
    return f"Bought so far: {ctx.deps.bought}"


@agent.tool
def buy(ctx: RunContext[Desk], symbol: str, quantity: int) -> str:
    """Buy shares."""
    ctx.deps.bought.append(write(f"{ctx.deps.clerk} buys {quantity} {symbol}"))
    return ctx.deps.bought[-1]


@agent.tool_plain
async def quote(symbol: str) -> Quote:
    """Ask for a price."""
    await asyncio.sleep(random.SystemRandom().random() / 100)
    return Quote(symbol, random.SystemRandom().randint(1, 10**6) / 100)


@agent.tool
def settle(ctx: RunContext[Desk], trade: Trade) -> Trade:
    """Settle a trade; its argument and its result are models."""
    write(f"settle {trade.symbol}")
    return Trade(symbol=trade.symbol.lower(), quantity=trade.quantity + random.SystemRandom().randint(1, 10**6))


@agent.tool
def hesitate(ctx: RunContext[Desk], amount: int) -> str:
    """A tool that asks the model to try again."""
    write(f"hesitate {amount} attempt {ctx.retry}")
    if ctx.retry < 1:
        raise ModelRetry(f"{amount} is too much, code {random.SystemRandom().randint(100, 999)}")
    return write("hesitated")


@agent.tool_plain
def chart(symbol: str) -> ToolReturn:
    """A tool whose result has more than the model sees."""
    write(f"chart {symbol}")
    return ToolReturn(return_value=f"chart of {symbol}", metadata={"points": random.SystemRandom().randint(1, 10**6)})


@agent.tool_plain
def break_down(reason: str) -> str:
    """A tool that fails."""
    write(f"broke {reason}")
    raise ValueError(f"broke down: {reason}, code {random.SystemRandom().randint(100, 999)}")


def order(name, args):
    return f"use tool {name} with {args}"


def show_messages(section, messages):
    for message in messages:
        for part in message.parts:
            shown = {k: v for k, v in vars(part).items() if k != "timestamp"}
            show(section, type(message).__name__, type(part).__name__, shown)


def tools():
    prompt = (
        " and ".join([order("buy", '{"symbol": "ACME", "quantity": 3}'), order("quote", '{"symbol": "ACME"}')])
        + " then "
        + order("settle", '{"trade": {"symbol": "ACME", "quantity": 3}}')
    )
    result = agent.run_sync(prompt, deps=Desk("Ada"))
    show_messages("tools", result.all_messages())
    show("tools", result.output, result.usage)


def parallel():
    prompt = " and ".join([order("quote", '{"symbol": "SAME"}')] * 10)
    show_messages("parallel", agent.run_sync(prompt, deps=Desk("Ada")).all_messages())


def retries():
    result = agent.run_sync(
        order("hesitate", '{"amount": 7}')
        + " then "
        + order("hesitate", '{"amount": 5}')
        + " then "
        + order("buy", '{"symbol": "NO"}')
        + " then "
        + order("chart", '{"symbol": "A"}'),
        deps=Desk("Bob"),
    )
    show_messages("retries", result.all_messages())


def failing():
    try:
        agent.run_sync(order("break_down", '{"reason": "rust"}'), deps=Desk("Eve"))
    except ValueError as exc:
        show("failing", type(exc), exc, exc.args)


def structured():
    typed = Agent(MODEL, output_type=Trade)
    result = typed.run_sync('use tool final_result with {"symbol": "X", "quantity": 4}')
    show("structured", type(result.output), repr(result.output))
    again = typed.run_sync(
        'use tool final_result with {"symbol": "X"} then use tool final_result with {"symbol": "Y", "quantity": 5}'
    )
    show_messages("structured", again.all_messages())
    show("structured", repr(again.output))


def validated():
    typed = Agent(MODEL, output_type=Trade, retries=3)

    @typed.output_validator
    def check(trade: Trade) -> Trade:
        if trade.quantity < 10:
            raise ModelRetry("more, please")
        return trade

    result = typed.run_sync(
        'use tool final_result with {"symbol": "X", "quantity": 4} then use tool final_result with '
        '{"symbol": "Y", "quantity": 50}'
    )
    show_messages("validated", result.all_messages())
    show("validated", repr(result.output))


def output_function():
    def book(symbol: str, quantity: int) -> str:
        """Book it."""
        return write(f"book {quantity} {symbol}")

    typed = Agent(MODEL, output_type=[book])
    show("output_function", typed.run_sync('use tool final_result with {"symbol": "X", "quantity": 4}').output)


async def _stream():
    async with agent.run_stream(order("quote", '{"symbol": "S"}'), deps=Desk("Ada")) as result:
        async for text in result.stream_text(delta=True):
            show("stream", repr(text))
    show_messages("stream", result.all_messages())
    async with agent.run_stream("be slow", deps=Desk("Ada")) as result:
        async for text in result.stream_text(debounce_by=0.03):
            show("stream slow", repr(text))
    async with agent.run_stream("leave early", deps=Desk("Ada")) as result:
        async for text in result.stream_text(delta=True):
            show("stream early", repr(text))
            break


async def _iterate():
    async with agent.iter(order("buy", '{"symbol": "I", "quantity": 1}'), deps=Desk("Ada")) as run:
        async for node in run:
            show("iterate", type(node).__name__)
            if Agent.is_call_tools_node(node) or Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        show("iterate", type(event).__name__)
        show("iterate", run.result.output)


async def _together():
    async def one(number):
        prompt = " and ".join([order("quote", '{"symbol": "SAME"}')] * 2)
        result = await agent.run(prompt, deps=Desk(f"clerk {number}"))
        return [p.content for m in result.all_messages() for p in m.parts if p.part_kind == "tool-return"]

    for number, found in enumerate(await asyncio.gather(*(one(n) for n in range(5)))):
        show("together", number, found)


def delegate():
    """A tool that runs another agent."""
    boss = Agent(MODEL)

    @boss.tool_plain
    async def ask_clerk(symbol: str) -> str:
        """Ask a clerk."""
        return (await agent.run(order("quote", f'{{"symbol": "{symbol}"}}'), deps=Desk("clerk"))).output

    show_messages("delegate", boss.run_sync(order("ask_clerk", '{"symbol": "D"}')).all_messages())


SECTIONS = {
    "tools": tools,
    "parallel": parallel,
    "retries": retries,
    "failing": failing,
    "structured": structured,
    "validated": validated,
    "output_function": output_function,
    "stream": lambda: asyncio.run(_stream()),
    "iterate": lambda: asyncio.run(_iterate()),
    "together": lambda: asyncio.run(_together()),
    "delegate": delegate,
}

if __name__ == "__main__":
    show("pydantic-ai", sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
