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


def test_p12_a_changed_prompt_of_a_model_that_a_tool_asks_is_said_not_to_be_exercised(
    tmp_path: Path, provider: Provider
) -> None:
    """The verdict counts what was compared, names the tool, and `--live` compares what it asks."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", AGENT)
    recorded = workplace.record("agent.py")
    same = workplace.replay("agent.py")
    assert_same(same, recorded.stdout)
    assert "identical: 3 calls, all as recorded, and 1 inside them that was not made again" in same.stderr
    assert "not exercised" not in same.stderr
    within = workplace.replay("agent.py", options=("--live", "tool:research"))
    assert within.verdict["verdict"] == "identical", within.stderr

    workplace.write("agent.py", AGENT.replace("Be kind", "Be rude"))
    changed = workplace.replay("agent.py")
    assert changed.verdict["unexercised"] == [
        {"boundary": "tool:research", "calls": 1, "inside": ["llm:openai.chat.completions"]}
    ]
    assert "not exercised: what tool:research asks llm:openai.chat.completions" in changed.stderr
    found = workplace.replay("agent.py", options=("--live", "tool:research"))
    assert found.causes()[0] == ("changed_call", "llm:openai.chat.completions")
