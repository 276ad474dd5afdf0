"""An ordinary AutoGen agent: parallel tools, a team with a hand-off, an agent as a tool.

usage: python autogen_agent.py [MODE ...]      modes: see MODES; "run" when none is named
The tools write to the SQLite file named by AGENT_DB (default: notes.db).
"""

import asyncio
import os
import random
import sqlite3
import sys
from contextlib import closing

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

DB = os.environ.get("AGENT_DB", "notes.db")
INFO = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)


def make_model():
    return OpenAIChatCompletionClient(model="gpt-x", base_url=os.environ.get("OPENAI_BASE_URL"), model_info=INFO)


def write_note(text):
    with closing(sqlite3.connect(DB, timeout=30)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
        row = db.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid
    return f"note {row} ({text}) saved, receipt {random.randint(10**6, 10**7)}"


def add_note(text: str) -> str:
    """Write a note."""
    return write_note(text)


async def add_note_async(text: str) -> str:
    """Write a note from a coroutine."""
    await asyncio.sleep(random.random() / 100)
    return await asyncio.to_thread(write_note, text)


def break_down(reason: str) -> str:
    """A tool that fails."""
    raise ValueError(f"broke down: {reason}, code {random.randint(100, 999)}")


TOOLS = [add_note, add_note_async, break_down]


def show(*parts):
    print(*parts, flush=True)


def order(name, args):
    return f"use tool {name} with {args}"


SAME = order("add_note_async", '{"text": "the same"}')
PARALLEL = " and ".join([SAME, SAME, order("add_note", '{"text": "milk"}'), order("break_down", '{"reason": "rust"}')])


async def show_stream(mode, stream):
    async for message in stream:
        if hasattr(message, "messages"):
            show(mode, "result", len(message.messages), message.stop_reason)
        else:
            show(mode, message.source, type(message).__name__, message.to_text(), message.models_usage)


def make_agent(name="clerk", **options):
    return AssistantAgent(name, model_client=make_model(), tools=TOOLS, reflect_on_tool_use=True, **options)


def run():
    asyncio.run(show_stream("run", make_agent().run_stream(task=PARALLEL)))


def tokens():
    agent = make_agent(model_client_stream=True)
    asyncio.run(show_stream("tokens", agent.run_stream(task=order("add_note", '{"text": "bread"}'))))


def team():
    first, second = make_agent("first"), make_agent("second")
    chat = RoundRobinGroupChat([first, second], termination_condition=MaxMessageTermination(5))
    asyncio.run(show_stream("team", chat.run_stream(task=PARALLEL)))


def swarm():
    clerk = AssistantAgent("clerk", model_client=make_model(), handoffs=["writer"])
    writer = make_agent("writer")
    chat = Swarm([clerk, writer], termination_condition=TextMentionTermination("Answer") | MaxMessageTermination(8))
    # The second turn is the clerk's, who has no such tool
    task = " then ".join([order("transfer_to_writer", "{}"), SAME, order("add_note", '{"text": "eggs"}')])
    asyncio.run(show_stream("swarm", chat.run_stream(task=task)))


def as_tool():
    poet = AssistantAgent("poet", model_client=make_model(), tools=TOOLS[:1], description="Writes poems.")
    clerk = AssistantAgent("clerk", model_client=make_model(), tools=[AgentTool(poet)])
    inner = order("add_note", '{\\"text\\": \\"rose\\"}')
    asyncio.run(show_stream("as_tool", clerk.run_stream(task=order("poet", '{"task": "' + inner + '"}'))))


MODES = {"run": run, "tokens": tokens, "team": team, "swarm": swarm, "as_tool": as_tool}

if __name__ == "__main__":
    show("autogen", sys.argv[1:])
    for mode in sys.argv[1:] or ["run"]:
        MODES[mode]()
    show("done")
