"""An ordinary LlamaIndex agent (0.11 and 0.14): tools, a retriever over an index in memory, workflows.

usage: python llamaindex_agent.py [MODE ...]      modes: see MODES; "agent" when none is named
The tools write to the SQLite file named by AGENT_DB (default: notes.db).
"""

import asyncio
import os
import random
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass

from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.tools import FunctionTool, RetrieverTool
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI

try:
    from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ToolCallResult
except ImportError:
    AgentWorkflow = None

DB = os.environ.get("AGENT_DB", "notes.db")
BASE = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
Settings.llm = OpenAI(model="gpt-4o", temperature=0.7, api_base=BASE)
Settings.embed_model = OpenAIEmbedding(api_base=BASE)


@dataclass
class Forecast:
    city: str
    degrees: int


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


def get_forecast(city: str) -> Forecast:
    """Forecast for a city."""
    return Forecast(city, random.randint(-20, 40))


def break_down(reason: str) -> str:
    """A tool that fails."""
    raise ValueError(f"broke down: {reason}, code {random.randint(100, 999)}")


async def count_up(ctx: Context, by: int) -> str:
    """Count in the state of the workflow."""
    state = await ctx.store.get("state", default={})
    count = state.get("count", 0) + by + random.randint(0, 10**6)
    await ctx.store.set("state", {**state, "count": count})
    write_note(f"count {count}")
    return "counted"


TOOLS = [
    FunctionTool.from_defaults(fn=add_note),
    FunctionTool.from_defaults(async_fn=add_note_async),
    FunctionTool.from_defaults(fn=get_forecast),
    FunctionTool.from_defaults(fn=break_down),
]


def make_index():
    texts = ["Granite is hard.", "Basalt is dark.", "Chalk is soft.", "Marble is cold."]
    return VectorStoreIndex.from_documents([Document(text=text, id_=text[:4]) for text in texts])


def show(*parts):
    print(*parts, flush=True)


def order(name, args):
    return f"use tool {name} with {args}"


def ask(*turns):
    return " then ".join(" and ".join(turn) for turn in turns)


def show_result(mode, output):
    show(mode, output.tool_name, output.raw_input, repr(output.raw_output), output.is_error)


ORDERS = ask(
    [
        order("add_note", '{"text": "milk"}'),
        order("add_note_async", '{"text": "milk"}'),
        order("add_note_async", '{"text": "milk"}'),
        order("get_forecast", '{"city": "Paris"}'),
    ],
    [order("break_down", '{"reason": "rust"}'), order("find_stone", '{"input": "hard"}')],
)


def make_tools():
    stones = make_index().as_retriever(similarity_top_k=2)
    return [*TOOLS, RetrieverTool.from_defaults(stones, name="find_stone", description="Find a stone.")]


async def run_workflow(agent, question, mode):
    handler = agent.run(question)
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult):
            show(mode, "result", event.tool_name, event.tool_kwargs, repr(event.tool_output.content))
        else:
            show(mode, type(event).__name__)
    return await handler


def agent():
    if AgentWorkflow is None:
        from llama_index.core.agent import FunctionCallingAgent

        old = FunctionCallingAgent.from_tools(make_tools(), llm=Settings.llm, allow_parallel_tool_calls=True)
        answer = old.chat(ORDERS)
        for source in answer.sources:
            show_result("agent", source)
        show("agent", answer.response)
        return
    single = FunctionAgent(tools=make_tools(), llm=Settings.llm, system_prompt="Keep notes.")
    result = asyncio.run(run_workflow(single, ORDERS, "agent"))
    show("agent", result)


def predict():
    """One call of the model that picks tools; no agent around it."""
    answer = Settings.llm.predict_and_call(
        TOOLS,
        order("add_note", '{"text": "bread"}') + " and " + order("get_forecast", '{"city": "Rome"}'),
        allow_parallel_tool_calls=True,
    )
    for source in answer.sources:
        show_result("predict", source)


def state():
    """A tool that changes the state of the workflow, which the next turn reads."""
    if AgentWorkflow is None:
        show("state: no such agents in this version")
        return
    tools = [FunctionTool.from_defaults(async_fn=count_up)]
    counting = FunctionAgent(tools=tools, llm=Settings.llm, initial_state={"count": 0})

    async def run():
        ctx = Context(counting)
        result = await counting.run(ask([order("count_up", '{"by": 2}')], [order("count_up", '{"by": 3}')]), ctx=ctx)
        show("state", result, (await ctx.store.get("state"))["count"])

    asyncio.run(run())


def hand_over():
    if AgentWorkflow is None:
        show("hand_over: no such agents in this version")
        return
    clerk = FunctionAgent(
        name="clerk", description="Greets.", tools=[TOOLS[2]], llm=Settings.llm, can_handoff_to=["writer"]
    )
    writer = FunctionAgent(name="writer", description="Writes.", tools=TOOLS[:2], llm=Settings.llm)
    team = AgentWorkflow(agents=[clerk, writer], root_agent="clerk")
    # The second turn is the clerk's, who has no such tool
    note = order("add_note", '{"text": "eggs"}')
    question = ask([order("handoff", '{"to_agent": "writer", "reason": "to write"}')], [note], [note, note])
    show("hand_over", asyncio.run(run_workflow(team, question, "hand_over")))


def retrieve():
    index = make_index()
    retriever = index.as_retriever(similarity_top_k=3)
    for found in retriever.retrieve("hard stones"):
        show("retrieve", found.node.ref_doc_id, found.get_content(), found.score, type(found.node).__name__)
    for found in asyncio.run(retriever.aretrieve("soft stones")):
        show("retrieve", found.node.node_id, found.get_content(), found.score)
    answer = index.as_query_engine(similarity_top_k=2).query("Which stone is dark?")
    show("retrieve", answer.response, [n.score for n in answer.source_nodes])


class Asked(Event):
    row: int


class Drawn(Event):
    row: int
    text: str


class FanOut(Workflow):
    asks_model = True

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> Asked | None:
        for row in range(ev.rows):
            ctx.send_event(Asked(row=row))

    @step(num_workers=4)
    async def answer(self, ctx: Context, ev: Asked) -> Drawn:
        note = await TOOLS[1].acall(text="the same")
        answer = (await Settings.llm.acomplete("Have an idea.")).text if self.asks_model else ""
        drawn = Drawn(row=ev.row, text=f"{note.content} {answer}")
        ctx.write_event_to_stream(drawn)
        return drawn

    @step
    async def gather(self, ctx: Context, ev: Drawn) -> StopEvent | None:
        drawn = ctx.collect_events(ev, [Drawn] * 8)
        return StopEvent(result=[(d.row, d.text) for d in drawn]) if drawn else None


async def run_fan_out(mode, asks_model=True):
    fan_out = FanOut(timeout=100)
    fan_out.asks_model = asks_model
    handler = fan_out.run(rows=8)
    async for event in handler.stream_events():
        show(mode, type(event).__name__, getattr(event, "row", ""), getattr(event, "text", ""))
    for row, text in await handler:
        show(mode, row, text)


def workflow():
    asyncio.run(run_fan_out("workflow"))


def workflows():
    """The same workflow, ROUNDS times."""
    for number in range(int(os.environ.get("ROUNDS", "50"))):
        asyncio.run(run_fan_out(f"workflows {number}", asks_model=False))


MODES = {
    "agent": agent,
    "predict": predict,
    "state": state,
    "hand_over": hand_over,
    "retrieve": retrieve,
    "workflow": workflow,
    "workflows": workflows,
}

if __name__ == "__main__":
    show("llamaindex", sys.argv[1:])
    for mode in sys.argv[1:] or ["agent"]:
        MODES[mode]()
    show("done")
