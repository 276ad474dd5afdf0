"""A graph that fans out; the nodes end in any order."""

import asyncio
import operator
import random
from secrets import token_hex
from typing import Annotated, TypedDict

from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

WITH = ["langchain-tools"]
CALLS = 5
BODIES = []
PROBLEM = ValueError("no such row")


class State(TypedDict):
    drawn: Annotated[list, operator.add]


@tool
async def draw() -> str:
    """Draw a number."""
    BODIES.append("draw")
    await asyncio.sleep(random.random() / 100)
    return token_hex(8)


@tool
async def refuse() -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise PROBLEM


def fan_out(work):
    async def node(state):
        return {"drawn": [(state["branch"], await work.ainvoke({}))]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    branches = range(5) if work is draw else range(1)
    graph.add_conditional_edges(START, lambda _: [Send("node", {"branch": i}) for i in branches], ["node"])
    graph.add_edge("node", END)
    return graph.compile()


async def use():
    return (await fan_out(draw).ainvoke({"drawn": []}))["drawn"]


async def fail():
    return await fan_out(refuse).ainvoke({"drawn": []})
