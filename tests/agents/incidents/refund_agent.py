"""A support agent that refunds twice: the model asks for the same refund two times, and nobody notices."""

import sqlite3
from contextlib import closing

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import tool
from loop import ask


class Policies(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(page_content=f"Rule on {query}: refund once, within 30 days.", metadata={"page": 12})]


@tool
def get_order(order_id: str) -> dict:
    """An order and what was paid for it."""
    return {"order_id": order_id, "paid": 1240.5, "items": ["chair", "desk"]}


@tool
def issue_refund(order_id: str, amount: float) -> str:
    """Pay money back to the customer."""
    with closing(sqlite3.connect("payments.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS refunds (order_id TEXT, amount REAL)")
        db.execute("INSERT INTO refunds VALUES (?, ?)", (order_id, amount))
    return f"refunded {amount} for {order_id}"


topic = ask("Name the topic of the ticket in one word.", "The desk from order A-7 came broken.")
rules = Policies().invoke("broken goods")
print("rules", [(rule.page_content, rule.metadata) for rule in rules])
refund = 'use tool issue_refund with {"order_id": "A-7", "amount": 1240.5}'
ask(
    f"You handle refunds. {rules[0].page_content}",
    f'The ticket: broken desk. use tool get_order with {{"order_id": "A-7"}} then {refund} and {refund}',
    [get_order, issue_refund],
)
