"""CrewAI tools: a function, a class, a structured tool."""

import os
from secrets import token_hex

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true")

from crewai.tools import BaseTool, tool

BODIES = []
CALLS = 4
PROBLEM = ValueError("no such row")


@tool("draw")
def draw(row: int) -> str:
    """Draw a number."""
    BODIES.append("draw")
    return f"{row} {token_hex(8)}"


class Draw(BaseTool):
    name: str = "draw too"
    description: str = "Draw a number."

    def _run(self, row: int) -> str:
        BODIES.append("draw too")
        return f"{row} {token_hex(8)}"


@tool("refuse")
def refuse(row: int) -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise PROBLEM


def use():
    structured = draw.to_structured_tool(), Draw().to_structured_tool()
    return [draw.run(row=1), Draw().run(row=2), *(each.invoke({"row": 3}) for each in structured)]


def fail():
    return refuse.run(row=1)
