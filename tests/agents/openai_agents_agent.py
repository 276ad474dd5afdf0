"""An ordinary agent of openai-agents: parallel function tools, a hand-off, an agent as a tool, a stream.

usage: python openai_agents_agent.py [MODE ...]      modes: see MODES; "run" when none is named
The tools write to the SQLite file named by AGENT_DB (default: notes.db).
"""

import asyncio
import os
import random
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, field

from openai import AsyncOpenAI

from agents import Agent, RunContextWrapper, Runner, function_tool, set_default_openai_client

DB = os.environ.get("AGENT_DB", "notes.db")


@dataclass
class Desk:
    notes: list = field(default_factory=list)


def write_note(text):
    with closing(sqlite3.connect(DB, timeout=30)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
        row = db.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid
    return f"note {row} ({text}) saved, receipt {random.randint(10**6, 10**7)}"


@function_tool
def add_note(text: str) -> str:
    """Write a note."""
    return write_note(text)


@function_tool
async def add_note_async(text: str) -> str:
    """Write a note from a coroutine."""
    await asyncio.sleep(random.random() / 100)
    return await asyncio.to_thread(write_note, text)


@function_tool
async def keep_note(desk: RunContextWrapper[Desk], text: str) -> str:
    """Write a note, and keep it on the desk."""
    desk.context.notes.append(write_note(text))
    return f"kept, {len(desk.context.notes)} on the desk"


@function_tool
def break_down(reason: str) -> str:
    """A tool that fails."""
    raise ValueError(f"broke down: {reason}, code {random.randint(100, 999)}")


def count_notes(desk: RunContextWrapper[Desk], agent: Agent) -> str:
    return f"Keep notes. There are {len(desk.context.notes)} on the desk: {desk.context.notes}"


writer = Agent(name="writer", instructions=count_notes, tools=[add_note, add_note_async, keep_note, break_down])
poet = Agent(name="poet", instructions="Write a poem.", tools=[add_note])
clerk = Agent(
    name="clerk",
    instructions="Greet.",
    handoffs=[writer],
    tools=[poet.as_tool("ask_poet", "Ask for a poem.")],
)


def show(*parts):
    print(*parts, flush=True)


def order(name, args):
    return f"use tool {name} with {args}"


def ask(*turns):
    return " then ".join(" and ".join(turn) for turn in turns)


def show_result(mode, result, desk=None):
    for item in result.new_items:
        raw = item.raw_item if isinstance(item.raw_item, dict) else item.raw_item.model_dump(exclude_unset=True)
        show(mode, item.agent.name, item.type, raw)
    show(mode, result.last_agent.name, result.final_output, desk)
    usage = result.context_wrapper.usage
    show(mode, usage.requests, usage.input_tokens, usage.output_tokens)


SAME = order("add_note_async", '{"text": "the same"}')
PARALLEL = ask(
    [SAME, SAME, SAME, order("add_note", '{"text": "milk"}'), order("break_down", '{"reason": "rust"}')],
    [order("keep_note", '{"text": "eggs"}'), order("add_note", '{"text": "bread"}')],
)


def run():
    desk = Desk()
    show_result("run", asyncio.run(Runner.run(writer, PARALLEL, context=desk)), desk)


def run_sync():
    desk = Desk()
    question = ask([order("add_note", '{"text": "bread"}')])
    asyncio.set_event_loop(asyncio.new_event_loop())
    show_result("run_sync", Runner.run_sync(writer, question, context=desk), desk)


async def read_stream():
    desk = Desk()
    result = Runner.run_streamed(writer, PARALLEL, context=desk)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            show("stream", event.data.type, getattr(event.data, "delta", ""))
        else:
            show("stream", event.type, getattr(event, "name", ""))
    show_result("stream", result, desk)


def stream():
    asyncio.run(read_stream())


def hand_off():
    desk = Desk()
    # The second turn is the clerk's, who has no such tool
    kept = order("keep_note", '{"text": "salt"}')
    question = ask([order("transfer_to_writer", "{}")], [SAME], [SAME, kept])
    show_result("hand_off", asyncio.run(Runner.run(clerk, question, context=desk)), desk)


def as_tool():
    inner = order("add_note", '{\\"text\\": \\"rose\\"}')
    question = order("ask_poet", '{"input": "' + inner + '"}')
    show_result("as_tool", asyncio.run(Runner.run(clerk, question, context=Desk())))


MODES = {"run": run, "run_sync": run_sync, "stream": stream, "hand_off": hand_off, "as_tool": as_tool}

if __name__ == "__main__":
    show("openai-agents", sys.argv[1:])
    for mode in sys.argv[1:] or ["run"]:
        set_default_openai_client(AsyncOpenAI(), use_for_tracing=False)  # connections belong to one event loop
        MODES[mode]()
    show("done")
