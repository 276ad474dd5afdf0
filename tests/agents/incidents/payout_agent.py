"""A payroll agent that pays again what had been paid: the bank's timeout was no refusal."""

import sqlite3
from contextlib import closing

from langchain_core.tools import tool
from loop import ask


class BankTimeout(Exception):
    """The bank did not answer in time; whether it paid is open."""


@tool
def list_salaries(month: str) -> list[dict]:
    """Who gets what."""
    return [{"name": "Ada", "amount": 5200}, {"name": "Grace", "amount": 6100}]


@tool
def pay_salary(name: str, amount: int) -> str:
    """Pay one salary."""
    with closing(sqlite3.connect("bank.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS payouts (name TEXT, amount INTEGER)")
        db.execute("INSERT INTO payouts VALUES (?, ?)", (name, amount))
        paid = db.execute("SELECT count(*) FROM payouts WHERE name = ?", (name,)).fetchone()[0]
    if name == "Grace" and paid == 1:
        raise BankTimeout(f"no answer for {name}")
    return f"paid {amount} to {name}, {paid} times so far"


print("plan", ask("You run the payroll.", "Who is paid in June?"))
for salary in list_salaries.invoke({"month": "June"}):
    for attempt in range(3):
        try:
            print(attempt, pay_salary.invoke(salary), flush=True)
            break
        except BankTimeout as exc:
            print(attempt, type(exc).__name__, exc, exc.args, flush=True)
