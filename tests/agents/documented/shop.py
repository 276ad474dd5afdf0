"""The tools of the agents beside it: an order goes into a database and a ledger."""

import sqlite3
import uuid
from pathlib import Path

TASK = 'Work step by step: use tool place_order with {"symbol": "ACME", "quantity": 3} then say {"text": "bought"}'


def place_order(symbol: str, quantity: int) -> str:
    """Place an order at the exchange.

    Args:
        symbol: what to buy
        quantity: how many
    """
    receipt = uuid.uuid4().hex
    with sqlite3.connect("orders.db") as db:
        db.execute("create table if not exists orders (symbol text, quantity int, receipt text)")
        db.execute("insert into orders values (?, ?, ?)", (symbol, quantity, receipt))
    with Path("ledger.txt").open("a") as ledger:
        ledger.write(f"{symbol} {quantity} {receipt}\n")
    return f"bought {quantity} {symbol}, receipt {receipt}"
