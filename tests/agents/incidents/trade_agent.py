"""A desk assistant that is told dollars and orders shares: $1,000 becomes 1,000 shares at $190."""

import json
import sqlite3
from contextlib import closing

from langchain_core.tools import tool
from loop import MODEL, client

TICKET = 'Buy NVDA for $1,000, please: use tool buy with {"symbol": "NVDA", "dollars": 1000}'
BUY = {
    "type": "function",
    "function": {
        "name": "buy",
        "parameters": {
            "type": "object",
            "properties": {"symbol": {"type": "string"}, "dollars": {"type": "number"}},
        },
    },
}


@tool
def get_quote(symbol: str) -> float:
    """Price of one share in dollars."""
    return {"NVDA": 190.0}[symbol]


@tool
def place_order(symbol: str, quantity: int, price: float) -> str:
    """Send an order to the exchange."""
    with closing(sqlite3.connect("book.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS orders (symbol TEXT, quantity INTEGER, price REAL)")
        db.execute("INSERT INTO orders VALUES (?, ?, ?)", (symbol, quantity, price))
    return f"filled {quantity} {symbol} at {price}"


messages = [{"role": "system", "content": "You trade for a desk."}, {"role": "user", "content": TICKET}]
answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[BUY], temperature=0.7)
for call in answer.choices[0].message.tool_calls:
    wish = json.loads(call.function.arguments)
    price = get_quote.invoke({"symbol": wish["symbol"]})
    quantity = int(wish["dollars"])
    print(place_order.invoke({"symbol": wish["symbol"], "quantity": quantity, "price": price}), flush=True)
print("done", answer.usage.total_tokens > 0)
