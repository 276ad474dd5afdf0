"""Tools whose bodies ask a model: a replay serves them whole, and says so where code has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from support.graphs import ASKING, IMPORTS
from support.provider import Provider
from support.replaying import Workplace, assert_same

AGENT: Final = f'''
{IMPORTS}
PROMPT, HOW = "Be kind. ", "now"
clerk = ChatOpenAI(model="gpt-x")


@tool
def research(question: str) -> str:
    """Research."""
    return clerk.invoke(PROMPT + question).content


TOOLS = [research]
{ASKING}
asked = {{"messages": [("user", 'use tool research with {{"question": "7"}}')]}}
print(builder.compile().invoke(asked)["messages"][-1].content)
'''


def test_p12_a_changed_prompt_of_a_model_that_a_tool_asks_is_a_difference(tmp_path: Path, provider: Provider) -> None:
    """The verdict counts what was compared, and what the tool asks is compared where code has changed.

    Where the plan serves the tool all the same, the verdict names it.
    """
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", AGENT)
    recorded = workplace.record("agent.py")
    same = workplace.replay("agent.py")
    assert_same(same, recorded.stdout)
    assert "identical: 3 calls, all as recorded, and 1 inside them that was not made again" in same.stderr
    assert "not exercised" not in same.stderr
    within = workplace.replay("agent.py", options=("--rerun", "tool:research"))
    assert_same(within, recorded.stdout)
    assert "identical: 4 calls, all as recorded; 1 tool call ran again" in within.stderr

    workplace.write("agent.py", AGENT.replace("Be kind", "Be rude"))
    changed = workplace.replay("agent.py", options=("--stub", "tool"))
    assert changed.verdict["unexercised"] == [
        {"boundary": "tool:research", "calls": 1, "inside": ["llm:openai.chat.completions"]}
    ]
    assert "not exercised: what tool:research asks llm:openai.chat.completions" in changed.stderr
    assert "--rerun tool:research" in changed.stderr
    for options in ((), ("--rerun", "tool:research"), ("--live", "tool:research")):
        found = workplace.replay("agent.py", options=options)
        assert found.causes()[0] == ("changed_call", "llm:openai.chat.completions"), found.stderr

    workplace.write("agent.py", AGENT + "\nunused = 1\n")
    unchanged = workplace.replay("agent.py")
    assert unchanged.verdict["verdict"] == "identical", unchanged.stderr
    assert unchanged.verdict["counts"]["rerun"] == 1
    assert "unexercised" not in unchanged.verdict


DRAWING: Final = f'''
import asyncio, datetime, os, random, time, uuid
{IMPORTS}
HOW = "async"
clerk = ChatOpenAI(model="gpt-x")


async def ask_twice(question):
    """In tasks of its own, each of which reads the clock."""
    async def one(number):
        await asyncio.sleep(0.01)
        return (await clerk.ainvoke(f"{{number}} {{question}} {{time.time()}} {{random.random()}}")).content

    return await asyncio.gather(asyncio.create_task(one(1)), asyncio.create_task(one(2)))


@tool
async def research(question: str) -> str:
    """Research."""
    started = datetime.datetime.now()
    found = await ask_twice(f"{{question}} {{started}} {{uuid.uuid4()}} {{os.urandom(4).hex()}}")
    with open("notes.txt", "a") as notes:
        notes.write(f"{{found}} after {{datetime.datetime.now() - started}}\\n")
    print("noted", random.choice("abcdefgh"), time.time())
    return f"{{found}} {{random.getrandbits(64)}} {{time.time_ns()}}"


TOOLS = [research]
{ASKING}
asked = {{"messages": [("user", 'use tool research with {{"question": "7"}}')]}}
print(asyncio.run(builder.compile().ainvoke(asked))["messages"][-1].content)
print(random.random(), time.time(), open("notes.txt").read())
'''


def test_p12_a_tool_that_runs_again_reads_the_clock_and_random_sources_as_recorded(
    tmp_path: Path, provider: Provider
) -> None:
    """Its requests, result and output are as recorded, although time and chance are in each of them.

    Its effects stay in the sandbox.
    """
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", DRAWING)
    recorded = workplace.record("agent.py")
    asked = len(provider.requests)
    notes = tmp_path / "notes.txt"
    written = notes.read_text(encoding="utf-8")
    assert_same(workplace.replay("agent.py"), recorded.stdout)
    again = workplace.replay("agent.py", options=("--rerun", "tool"))
    assert_same(again, recorded.stdout)
    assert again.verdict["counts"]["rerun"] == 1
    assert len(provider.requests) == asked
    assert notes.read_text(encoding="utf-8") == written

    workplace.write("agent.py", DRAWING.replace("random.getrandbits(64)} {", "random.getrandbits(64)}, {"))
    changed = workplace.replay("agent.py", options=("--rerun", "tool"))
    assert changed.causes()[0] == ("output_changed", "tool:research"), changed.stderr


STATEFUL: Final = AGENT.replace(
    "    return clerk.invoke(PROMPT + question).content",
    "    asked = clerk.invoke(PROMPT + question).content\n    return asked + os.environ.get('STATE', '')",
).replace("PROMPT, HOW", "import os\nPROMPT, HOW")


def test_p12_a_difference_that_is_none_of_a_call_inside_does_not_count_in_a_second_replay(
    tmp_path: Path, provider: Provider
) -> None:
    """The body may lack what it had when recorded: the first verdict stands, and says what was not exercised."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", STATEFUL)
    recorded = workplace.record("agent.py", STATE="!")
    workplace.write("agent.py", STATEFUL + "\nunused = 1\n")
    replayed = workplace.replay("agent.py", STATE="?")
    assert_same(replayed, recorded.stdout)
    assert replayed.verdict["unexercised"][0]["boundary"] == "tool:research"
    assert "would they ask the same?" in replayed.stderr
    assert workplace.replay("agent.py", options=("--rerun", "tool"), STATE="?").status == 3
