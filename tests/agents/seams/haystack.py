"""A Haystack tool."""

from secrets import token_hex

from haystack.tools import tool

BODIES = []
PROBLEM = ValueError("no such row")


@tool
def draw(row: int) -> str:
    """Draw a number."""
    BODIES.append("draw")
    return f"{row} {token_hex(8)}"


@tool
def refuse(row: int) -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise PROBLEM


def use():
    return draw.invoke(row=1)


def fail():
    return refuse.invoke(row=1)
