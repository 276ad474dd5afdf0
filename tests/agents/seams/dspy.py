"""DSPy tools, sync and async."""

import asyncio
from secrets import token_hex

import dspy

BODIES = []
CALLS = 2
PROBLEM = ValueError("no such row")


def draw(row: int) -> str:
    """Draw a number."""
    BODIES.append("draw")
    return f"{row} {token_hex(8)}"


async def adraw(row: int) -> str:
    """Draw a number."""
    BODIES.append("adraw")
    return f"{row} {token_hex(8)}"


def refuse(row: int) -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise PROBLEM


def use():
    return [dspy.Tool(draw)(row=1), asyncio.run(dspy.Tool(adraw).acall(row=1))]


def fail():
    return dspy.Tool(refuse)(row=1)
