"""A workflow that fans out; its steps end in any order."""

import asyncio
import random
from secrets import token_hex

from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

WITH = ["llamaindex-tools"]
KIND = "tool"
CALLS = 8
BODIES = []


async def draw() -> str:
    """Draw a number."""
    BODIES.append("draw")
    await asyncio.sleep(random.random() / 100)
    return token_hex(8)


TOOL = FunctionTool.from_defaults(async_fn=draw)


class Asked(Event):
    row: int


class Drawn(Event):
    row: int
    text: str


class FanOut(Workflow):
    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> Asked:
        for row in range(8):
            ctx.send_event(Asked(row=row))

    @step(num_workers=4)
    async def answer(self, ctx: Context, ev: Asked) -> Drawn:
        drawn = Drawn(row=ev.row, text=(await TOOL.acall()).content)
        ctx.write_event_to_stream(drawn)
        return drawn

    @step
    async def gather(self, ctx: Context, ev: Drawn) -> StopEvent:
        drawn = ctx.collect_events(ev, [Drawn] * 8)
        return StopEvent(result=[(d.row, d.text) for d in drawn]) if drawn else None


async def use():
    handler = FanOut(timeout=60).run()
    seen = [(type(e).__name__, getattr(e, "row", "")) async for e in handler.stream_events()]
    return seen, await handler
