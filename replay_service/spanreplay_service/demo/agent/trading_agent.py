"""A trading assistant: it reads a customer's request, looks things up and places one order.

usage: python trading_agent.py --user u-204 "sell $1,200 worth of ACME"
"""
# ruff: noqa: T201

import argparse
import os
import sqlite3
from contextlib import closing
from contextvars import ContextVar

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

LEDGER = os.environ.get("LEDGER", "ledger.sqlite")
USER_ID = os.environ.get("USER_ID", "u-204")
USER = ContextVar("USER", default=USER_ID)
SYSTEM = "You are the trading desk's assistant. Look up the position and the quote, then place one order."


def open_ledger():
    return closing(sqlite3.connect(LEDGER))


@tool
def get_position(symbol: str) -> dict:
    """How many shares of a symbol the customer holds."""
    with open_ledger() as db:
        row = db.execute(
            "SELECT quantity FROM positions WHERE user_id = ? AND symbol = ?", (USER.get(), symbol)
        ).fetchone()
    return {"symbol": symbol, "quantity": row[0] if row else 0}


@tool
def get_quote(symbol: str) -> dict:
    """The price of one share."""
    with open_ledger() as db:
        row = db.execute("SELECT price FROM quotes WHERE symbol = ?", (symbol,)).fetchone()
    return {"symbol": symbol, "price": row[0] if row else None}


@tool(return_direct=True)
def place_order(symbol: str, side: str, quantity: float, notional_usd: float) -> str:
    """Place an order for a quantity of shares. It is executed at once."""
    with open_ledger() as db, db:
        (price,) = db.execute("SELECT price FROM quotes WHERE symbol = ?", (symbol,)).fetchone()
        value = quantity * price
        order = (USER.get(), symbol, side, quantity, price, value)
        number = db.execute("INSERT INTO orders VALUES (NULL, ?, ?, ?, ?, ?, ?)", order).lastrowid
        change = quantity if side == "buy" else -quantity
        db.execute(
            "UPDATE positions SET quantity = quantity + ? WHERE user_id = ? AND symbol = ?",
            (change, USER.get(), symbol),
        )
    return f"order {number} executed: {side} {quantity:,.2f} {symbol} at ${price:,.2f} = ${value:,.2f}"


TOOLS = [get_position, get_quote, place_order]


def make_agent():
    model = ChatOpenAI(model="desk-1", temperature=0).bind_tools(TOOLS)

    def think(state):
        return {"messages": [model.invoke([("system", SYSTEM), *state["messages"]])]}

    def after_tools(state):
        return END if state["messages"][-1].name == place_order.name else "think"

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(TOOLS))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_conditional_edges("tools", after_tools, ["think", END])
    return graph.compile()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("request", nargs="?", default=os.environ.get("REQUEST", "sell $1,200 worth of ACME"))
    parser.add_argument("--user", default=USER_ID)
    args = parser.parse_args()
    USER.set(args.user)
    final = make_agent().invoke({"messages": [("user", args.request)]})["messages"][-1]
    print(f"customer {args.user}: {args.request}")
    print(f"confirmation: {final.content}")
