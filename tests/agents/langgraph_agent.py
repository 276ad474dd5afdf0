"""An ordinary LangGraph agent (0.2 and 1.x): a model, tools that write to SQLite, parallel tool calls.

usage: python langgraph_agent.py [MODE ...]      modes: see MODES; "parallel" when none is named
The tools write to the SQLite file named by AGENT_DB (default: notes.db).
"""

import asyncio
import operator
import os
import random
import sqlite3
import sys
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, TypedDict

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import Send

DB = os.environ.get("AGENT_DB", "notes.db")
SYSTEM = ("system", "You keep notes. Use the tools.")


def connect():
    db = sqlite3.connect(DB, timeout=30)
    db.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
    return db


@dataclass
class Forecast:
    city: str
    degrees: int
    unit: str = "C"


def write_note(text):
    with closing(connect()) as db, db:
        row = db.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid
    return f"note {row} ({text}) saved, receipt {random.randint(10**6, 10**7)}"


@tool
def add_note(text: str) -> str:
    """Write a note."""
    return write_note(text)


@tool
def add_two_notes(text: str) -> list[str]:
    """Write a note twice, through the other tool."""
    return [add_note.invoke({"text": f"{text} {n}"}) for n in ("once", "twice")]


@tool
def delete_notes(older_than: int) -> dict:
    """Delete the notes before an id."""
    with closing(connect()) as db, db:
        gone = db.execute("DELETE FROM notes WHERE id < ?", (older_than,)).rowcount
    return {"deleted": gone, "receipt": random.randint(10**6, 10**7)}


@tool
def get_forecast(city: str) -> Forecast:
    """Forecast for a city."""
    return Forecast(city, random.randint(-20, 40))


@tool(response_format="content_and_artifact")
def get_chart(city: str) -> tuple[str, Forecast]:
    """Chart of a city, with its data as artifact."""
    return f"chart of {city}", Forecast(city, random.randint(-20, 40))


@tool
def break_down(reason: str) -> str:
    """A tool that fails."""
    raise ValueError(f"broke down: {reason}, code {random.randint(100, 999)}")


@tool
async def add_note_async(text: str) -> str:
    """Write a note from a coroutine."""
    await asyncio.sleep(random.random() / 100)
    return await asyncio.to_thread(write_note, text)


class Shelf(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return [
            Document(page_content=f"{query} on page {random.randint(1, 999)}", metadata={"rank": rank})
            for rank in range(3)
        ]


SYNC_TOOLS = [add_note, add_two_notes, delete_notes, get_forecast, get_chart, break_down]
TOOLS = [*SYNC_TOOLS, add_note_async]


def make_graph(tools):
    model = ChatOpenAI(model=os.environ.get("AGENT_MODEL", "gpt-x"), temperature=0.7).bind_tools(tools)

    def call_model(state):
        return {"messages": [model.invoke([SYSTEM, *state["messages"]])]}

    async def acall_model(state):
        return {"messages": [await model.ainvoke([SYSTEM, *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", acall_model if add_note_async in tools else call_model)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def show(*parts):
    print(*parts, flush=True)


def show_messages(mode, messages):
    for message in messages:
        show(mode, type(message).__name__, repr(message.content))
        for call in getattr(message, "tool_calls", []):
            show(mode, "  call", call["id"], call["name"], call["args"])
        if message.type == "tool":
            show(
                mode,
                "  result of",
                message.tool_call_id,
                message.name,
                message.status,
                repr(message.artifact),
            )
        if message.type == "ai":
            meta = message.response_metadata
            show(mode, "  meta", meta.get("id"), meta.get("model_name"), meta.get("finish_reason"))
            show(mode, "  usage", message.usage_metadata)


def ask(*orders):
    return {"messages": [("user", " then ".join(" and ".join(turn) for turn in orders))]}


def order(name, args):
    return f"use tool {name} with {args}"


def parallel():
    prompt = ask(
        [
            order("add_note", '{"text": "milk"}'),
            order("get_forecast", '{"city": "Paris"}'),
            order("get_chart", '{"city": "Oslo"}'),
        ],
        [order("delete_notes", '{"older_than": 3}'), order("break_down", '{"reason": "rust"}')],
    )
    show_messages("parallel", make_graph(SYNC_TOOLS).invoke(prompt)["messages"])


def ten():
    prompt = ask([order("add_note", f'{{"text": "note {i}"}}') for i in range(10)])
    show_messages("ten", make_graph(SYNC_TOOLS).invoke(prompt)["messages"])


def ten_same():
    prompt = ask([order("add_note", '{"text": "the same"}')] * 10)
    show_messages("ten_same", make_graph(SYNC_TOOLS).invoke(prompt)["messages"])


def ten_async():
    prompt = ask([order("add_note_async", '{"text": "the same"}')] * 10)
    show_messages("ten_async", asyncio.run(make_graph(TOOLS).ainvoke(prompt))["messages"])


def nested():
    prompt = ask([order("add_two_notes", '{"text": "eggs"}')])
    show_messages("nested", make_graph(SYNC_TOOLS).invoke(prompt)["messages"])


def stream():
    prompt = ask([order("add_note", '{"text": "bread"}')])
    for update in make_graph(SYNC_TOOLS).stream(prompt, stream_mode="updates"):
        for node, change in update.items():
            show("stream", node)
            show_messages("stream", change["messages"])


def tokens():
    prompt = ask([order("get_forecast", '{"city": "Rome"}')])
    for chunk, meta in make_graph(SYNC_TOOLS).stream(prompt, stream_mode="messages"):
        show("tokens", meta["langgraph_node"], type(chunk).__name__, repr(chunk.content))


class Ideas(TypedDict):
    answers: Annotated[list, operator.add]


def fan_out():
    """Five branches ask the same question; each must keep its own answer."""
    model = ChatOpenAI(model=os.environ.get("AGENT_MODEL", "gpt-x"), temperature=0.7)
    shelf = Shelf()

    def think(state):
        facts = shelf.invoke("granite")
        answer = model.invoke([("user", "Have an idea.")])
        return {"answers": [(state["branch"], answer.content, [d.page_content for d in facts])]}

    graph = StateGraph(Ideas)
    graph.add_node("think", think)
    graph.add_conditional_edges(START, lambda _: [Send("think", {"branch": i}) for i in range(5)], ["think"])
    graph.add_edge("think", END)
    for branch, text, pages in graph.compile().invoke({"answers": []})["answers"]:
        show("fan_out", branch, text, pages)


REACT = ask(
    [order("add_note_async", '{"text": "the same"}')] * 3 + [order("get_forecast", '{"city": "Oslo"}')],
    [order("break_down", '{"reason": "rust"}')],
)


def make_react_agent(tools):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its successor is in another package
        return create_react_agent(ChatOpenAI(model="gpt-x", temperature=0.7), ToolNode(tools, handle_tool_errors=True))


def react():
    prompt = ask([order("add_note", '{"text": "milk"}')] * 3, [order("break_down", '{"reason": "rust"}')])
    show_messages("react", make_react_agent(SYNC_TOOLS).invoke(prompt)["messages"])


def react_async():
    show_messages("react_async", asyncio.run(make_react_agent(TOOLS).ainvoke(REACT))["messages"])


MODES = {
    "react": react,
    "react_async": react_async,
    "parallel": parallel,
    "ten": ten,
    "ten_same": ten_same,
    "ten_async": ten_async,
    "nested": nested,
    "stream": stream,
    "tokens": tokens,
    "fan_out": fan_out,
}

if __name__ == "__main__":
    show("langgraph", sys.argv[1:])
    for mode in sys.argv[1:] or ["parallel"]:
        MODES[mode]()
    show("done")
