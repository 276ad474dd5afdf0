"""An ordinary crew on CrewAI: two agents, a chain of tasks, tools of every sort; prints everything it gets.

usage: python crewai_agent.py [SECTION ...]      all sections when none is named
The tools write to the file named by AGENT_LEDGER (default: ledger.txt).
"""

import json
import os
import random
import sys
from pathlib import Path

from crewai import LLM, Agent, Crew, Process, Task
from crewai.tools import BaseTool, tool
from pydantic import BaseModel

LEDGER = Path(os.environ.get("AGENT_LEDGER", "ledger.txt"))
llm = LLM(model="openai/gpt-x", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


def show(*parts):
    print(*parts, flush=True)


def write(line):
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")
    return f"{line}, receipt {random.SystemRandom().randint(10**6, 10**7)}"


class Trade(BaseModel):
    symbol: str
    quantity: int


@tool("buy")
def buy(symbol: str, quantity: int) -> str:
    """Buy shares."""
    return write(f"buy {quantity} {symbol}")


@tool("quote", max_usage_count=2)
def quote(symbol: str) -> dict:
    """Ask for a price; twice at most."""
    write(f"quote {symbol}")
    return {"symbol": symbol, "price": random.SystemRandom().randint(1, 10**6) / 100}


@tool("break_down")
def break_down(reason: str) -> str:
    """A tool that fails."""
    write(f"broke {reason}")
    raise ValueError(f"broke down: {reason}, code {random.SystemRandom().randint(100, 999)}")


class Settle(BaseTool):
    name: str = "settle"
    description: str = "Settle a trade."

    def _run(self, symbol: str, quantity: int = 1) -> str:
        return write(f"settle {quantity} {symbol}")


def order(name, **arguments):
    return f"use tool {name} with {json.dumps(arguments)}"


def steps(*turns):
    return "Work step by step: " + " then ".join(turns)


def make_agent(role, *tools, **more):
    return Agent(role=role, goal="Trade well.", backstory="Long.", llm=llm, tools=list(tools), **more)


def show_crew(section, crew):
    output = crew.kickoff()
    for task in output.tasks_output:
        show(section, task.agent, repr(task.raw), repr(task.pydantic))
    show(section, output.token_usage)


def chain():
    trader, clerk = make_agent("trader", buy, Settle()), make_agent("clerk", quote)
    first = Task(
        description=steps(order("buy", symbol="ACME", quantity=3), order("settle", symbol="ACME")),
        expected_output="a receipt",
        agent=trader,
    )
    second = Task(description="Report on it.", expected_output="a report", agent=clerk, context=[first])
    show_crew("chain", Crew(agents=[trader, clerk], tasks=[first, second], process=Process.sequential))


def parallel():
    clerk = make_agent("clerk", buy)
    asked = " and ".join([order("buy", symbol="SAME", quantity=n) for n in (1, 1, 2, 2, 3, 3)])
    task = Task(description=steps(asked), expected_output="receipts", agent=clerk)
    show_crew("parallel", Crew(agents=[clerk], tasks=[task]))


def limited():
    clerk = make_agent("clerk", quote)
    asked = steps(*[order("quote", symbol=symbol) for symbol in ("A", "B", "C")])
    show_crew("limited", Crew(agents=[clerk], tasks=[Task(description=asked, expected_output="prices", agent=clerk)]))


def failing():
    clerk = make_agent("clerk", break_down, buy)
    asked = steps(order("break_down", reason="rust"), order("buy", symbol="A"))
    show_crew("failing", Crew(agents=[clerk], tasks=[Task(description=asked, expected_output="any", agent=clerk)]))


def structured():
    clerk = make_agent("clerk")
    task = Task(description="Order.", expected_output="an order", agent=clerk, output_pydantic=Trade)
    show_crew("structured", Crew(agents=[clerk], tasks=[task]))


def delegated():
    boss, clerk = make_agent("boss", allow_delegation=True), make_agent("clerk", buy)
    inner = order("buy", symbol="D", quantity=7)
    asked = steps(
        order("delegate_work_to_coworker", task=f"Work step by step: {inner}", context="none", coworker="clerk")
    )
    task = Task(description=asked, expected_output="a receipt", agent=boss)
    show_crew("delegated", Crew(agents=[boss, clerk], tasks=[task]))


def together():
    clerks = [make_agent(f"clerk {n}", buy) for n in range(3)]
    tasks = [
        Task(
            description=steps(order("buy", symbol="SAME", quantity=1)),
            expected_output="a receipt",
            agent=clerk,
            async_execution=True,
        )
        for clerk in clerks
    ]
    tasks.append(Task(description="Report.", expected_output="a report", agent=clerks[0], context=tasks[:]))
    show_crew("together", Crew(agents=clerks, tasks=tasks))


def direct():
    show("direct", buy.run(symbol="X", quantity=1), Settle().run(symbol="Y"))
    show("direct", buy.to_structured_tool().invoke({"symbol": "Z", "quantity": 2}))


SECTIONS = {
    "chain": chain,
    "parallel": parallel,
    "limited": limited,
    "failing": failing,
    "structured": structured,
    "delegated": delegated,
    "together": together,
    "direct": direct,
}

if __name__ == "__main__":
    show("crewai", sys.argv[1:])
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    show("done")
