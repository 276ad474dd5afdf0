"""An ordinary LangGraph agent with a checkpointer (0.2 and 1.x), taken up again at each of its checkpoints.

usage: python checkpoint_agent.py [sync|async] [run|again|from N]
  run      goes through once
  again    goes through once, then takes the thread up at each of its checkpoints
  from N   takes the thread of an earlier process up at its N-th checkpoint, newest first
The thread is kept in the SQLite file AGENT_THREADS, in memory if that is not set.
What the agent does to the world is counted in the file AGENT_COUNTER.
"""

import asyncio
import operator
import os
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, TypedDict

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, StateGraph

COUNTER = Path(os.environ.get("AGENT_COUNTER", "counter.txt"))
THREADS = os.environ.get("AGENT_THREADS")
THREAD = {"configurable": {"thread_id": "1"}}


class State(TypedDict):
    said: Annotated[list, operator.add]


@tool
def pay(amount: int) -> str:
    """Pay, which must happen once."""
    count = int(COUNTER.read_text()) + 1 if COUNTER.exists() else 1
    COUNTER.write_text(str(count))
    return f"paid {amount}, receipt {os.urandom(4).hex()}"


def make_graph(saver):
    model = ChatOpenAI(model="gpt-x", temperature=0.7)

    def plan(state):
        return {"said": [model.invoke([("user", f"Plan after {state['said']}")]).content]}

    def act(state):
        return {"said": [pay.invoke({"amount": 100})]}

    def report(state):
        return {"said": [model.invoke([("user", f"Report on {state['said']}")]).content]}

    async def aplan(state):
        return {"said": [(await model.ainvoke([("user", f"Plan after {state['said']}")])).content]}

    async def aact(state):
        return {"said": [await pay.ainvoke({"amount": 100})]}

    is_async = "async" in sys.argv
    graph = StateGraph(State)
    graph.add_node("plan", aplan if is_async else plan)
    graph.add_node("act", aact if is_async else act)
    graph.add_node("report", report)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "act")
    graph.add_edge("act", "report")
    graph.add_edge("report", END)
    return graph.compile(checkpointer=saver)


@contextmanager
def open_saver():
    if THREADS is None:
        yield MemorySaver()
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(THREADS) as saver:
        yield saver


@asynccontextmanager
async def open_async_saver():
    if THREADS is None:
        yield MemorySaver()
        return
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(THREADS) as saver:
        yield saver


def show(*parts):
    print(*parts, flush=True)


def show_state(label, values):
    show(label, len(values["said"]))
    for text in values["said"]:
        show("  ", text)


def main(mode, number):
    with open_saver() as saver:
        graph = make_graph(saver)
        if mode != "from":
            show_state("run", graph.invoke({"said": ["begin"]}, THREAD))
        history = list(graph.get_state_history(THREAD))
        chosen = {"run": [], "again": history, "from": history[number : number + 1]}[mode]
        for snapshot in chosen:
            show("checkpoint", snapshot.metadata["step"], snapshot.next)
            show_state("again", graph.invoke(None, snapshot.config))


async def amain(mode, number):
    async with open_async_saver() as saver:
        graph = make_graph(saver)
        if mode != "from":
            show_state("run", await graph.ainvoke({"said": ["begin"]}, THREAD))
        history = [snapshot async for snapshot in graph.aget_state_history(THREAD)]
        chosen = {"run": [], "again": history, "from": history[number : number + 1]}[mode]
        for snapshot in chosen:
            show("checkpoint", snapshot.metadata["step"], snapshot.next)
            show_state("again", await graph.ainvoke(None, snapshot.config))


if __name__ == "__main__":
    how, mode, number = (*sys.argv[1:], *("sync", "run", "0")[len(sys.argv) - 1 :])
    if how == "async":
        asyncio.run(amain(mode, int(number)))
    else:
        main(mode, int(number))
    show("done")
