"""Agno function calls: plain, async, a generator, with state."""

import asyncio
from secrets import token_hex

from agno.run import RunContext
from agno.tools.function import Function, FunctionCall

BODIES = []
CALLS = 4


def draw(row: int) -> str:
    """Draw a number."""
    BODIES.append("draw")
    return f"{row} {token_hex(8)}"


async def adraw(row: int) -> str:
    """Draw a number."""
    BODIES.append("adraw")
    return f"{row} {token_hex(8)}"


def draw_three(row: int):
    """Draw three numbers."""
    BODIES.append("draw_three")
    for _ in range(3):
        yield token_hex(8)


def keep(run_context: RunContext, row: int) -> str:
    """Draw a number and keep it."""
    BODIES.append("keep")
    run_context.session_state["drawn"] = token_hex(8)
    return "kept"


def refuse(row: int) -> str:
    """Refuse."""
    BODIES.append("refuse")
    raise ValueError("no such row")


def make_call(function, state=None):
    made = Function.from_callable(function)
    made._run_context = RunContext(run_id="r", session_id="s", session_state=state)
    return FunctionCall(function=made, arguments={"row": 1}, call_id="call_1")


def use():
    state = {}
    results = [
        make_call(draw).execute().result,
        asyncio.run(make_call(adraw).aexecute()).result,
        list(make_call(draw_three).execute().result),
        make_call(keep, state).execute().result,
    ]
    return results, state


def fail():
    return make_call(refuse).execute().error
