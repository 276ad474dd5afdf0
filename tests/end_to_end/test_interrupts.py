"""Tools that wait for a person through LangGraph's `interrupt`: their body runs again for each answer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from support.graphs import ASKING, IMPORTS
from support.provider import Provider
from support.replaying import Workplace, assert_same

AGENT: Final = f'''
import asyncio, sys

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
{IMPORTS}
HOW, ANSWER = sys.argv[1], "no"


@tool
def book(seat: str) -> str:
    """Book a seat."""
    answer = interrupt({{"question": f"book {{seat}}?"}})
    return f"{{seat}}: {{answer}}, {{interrupt('really?')}}"


@tool
async def book_async(seat: str) -> str:
    """Book a seat."""
    answer = interrupt({{"question": f"book {{seat}}?"}})
    return f"{{seat}}: {{answer}}, {{interrupt('really?')}}"


TOOLS = [book_async if HOW == "async" else book]
{ASKING}
graph = builder.compile(checkpointer=InMemorySaver())
thread = {{"configurable": {{"thread_id": "1"}}}}
asked = {{"messages": [("user", f'use tool {{TOOLS[0].name}} with {{{{"seat": "7"}}}}')]}}


async def main():
    for given in (asked, Command(resume="yes"), Command(resume=ANSWER)):
        done = await graph.ainvoke(given, thread) if HOW == "async" else graph.invoke(given, thread)
        print([each.value for each in done.get("__interrupt__", ())], done["messages"][-1].content)


asyncio.run(main())
'''


@pytest.mark.slow
@pytest.mark.parametrize("how", ["async", "sync"])
def test_u1_s50_a_tool_that_waits_for_a_person_replays(tmp_path: Path, provider: Provider, how: str) -> None:
    """Two questions of one tool, each answered in a run of the graph of its own."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", AGENT)
    recorded = workplace.record("agent.py", how)
    assert "The tools said: 7: yes, no" in recorded.stdout
    provider.stop()
    assert_same(workplace.replay("agent.py", how), recorded.stdout)
