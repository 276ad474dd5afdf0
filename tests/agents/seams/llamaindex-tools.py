"""A LlamaIndex function tool."""

from secrets import token_hex

from llama_index.core.tools import FunctionTool

BODIES = []
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


CALLS = 3


async def use():
    tool = FunctionTool.from_defaults(fn=draw)
    both = FunctionTool.from_defaults(async_fn=adraw)
    assert tool.fn is draw
    results = [tool.call(row=1), await tool.acall(row=2), await both.acall(row=3)]
    return [(r.content, r.raw_output, r.tool_name) for r in results]


def fail():
    return FunctionTool.from_defaults(fn=refuse).call(row=1)
