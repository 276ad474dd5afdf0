"""An AutoGen tool."""

from secrets import token_hex

from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool

BODIES = []
PROBLEM = ValueError("no such row")


def draw(row: int) -> str:
    """Draw a number."""
    BODIES.append("draw")
    return f"{row} {token_hex(8)}"


async def refuse(row: int) -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise PROBLEM


async def use():
    tool = FunctionTool(draw, "Draw a number.")
    return await tool.run_json({"row": 1}, CancellationToken(), call_id="call_1")


async def fail():
    return await FunctionTool(refuse, "Refuse.").run_json({"row": 1}, CancellationToken())
