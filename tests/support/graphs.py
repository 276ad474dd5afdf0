"""The part that LangGraph agents of tests have in common: a model that is asked, and a node for its tools."""

from __future__ import annotations

from typing import Final

IMPORTS: Final = """
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
"""
BUILDER: Final = """
builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "ask")
builder.add_conditional_edges("ask", tools_condition)
builder.add_edge("tools", "ask")
"""
"""Makes `builder` of the agent's own function `ask` and of TOOLS."""
ASKING: Final = f"""
model = ChatOpenAI(model="gpt-x").bind_tools(TOOLS)


async def ask_async(state: MessagesState):
    return {{"messages": [await model.ainvoke(state["messages"])]}}


def ask_now(state: MessagesState):
    return {{"messages": [model.invoke(state["messages"])]}}


ask = ask_async if HOW == "async" else ask_now
{BUILDER}"""
"""The same with a model that is asked in a coroutine if HOW is `async`."""
