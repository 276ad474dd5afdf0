"""Smolagents tools: a function and a class; the final answer is none."""

from secrets import token_hex
from typing import ClassVar

from smolagents import FinalAnswerTool, Tool, tool

BODIES = []
CALLS = 2
PROBLEM = ValueError("no such row")


@tool
def draw(row: int) -> str:
    """Draw a number.

    Args:
        row: which
    """
    BODIES.append("draw")
    return f"{row} {token_hex(8)}"


class Draw(Tool):
    name = "draw_too"
    description = "Draw a number."
    inputs: ClassVar = {"row": {"type": "integer", "description": "which"}}
    output_type = "string"

    def forward(self, row: int) -> str:
        BODIES.append("draw_too")
        return f"{row} {token_hex(8)}"


@tool
def refuse(row: int) -> str:
    """Refuse.

    Args:
        row: which
    """
    BODIES.append("refuse")
    raise PROBLEM


def use():
    return [FinalAnswerTool()(answer=draw(row=1)), Draw()({"row": 2}, sanitize_inputs_outputs=True)]


def fail():
    return refuse(1)
