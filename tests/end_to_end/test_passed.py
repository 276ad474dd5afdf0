"""What a tool passes on while it works: progress and the words of models that it asks, through queues of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.agents import ENVIRONMENTS
from support.graphs import ASKING, BUILDER, IMPORTS
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import COMMAND, prepare, serve

GRAPH: Final = f'''
import asyncio, sys

from langchain_core.callbacks import adispatch_custom_event
from langgraph.config import get_stream_writer
{IMPORTS}
HOW, MODE = sys.argv[1:]
clerk = ChatOpenAI(model="gpt-x")


@tool
def find(order_id: str) -> str:
    """Find an order."""
    get_stream_writer()({{"progress": "looking"}})
    said = clerk.invoke("what is order " + order_id).content
    get_stream_writer()({{"progress": "found"}})
    return str(said)


@tool
async def find_async(order_id: str) -> str:
    """Find an order."""
    get_stream_writer()({{"progress": "looking"}})
    said = (await clerk.ainvoke("what is order " + order_id)).content
    await adispatch_custom_event("half", {{"of": order_id}})
    get_stream_writer()({{"progress": "found"}})
    return str(said)


TOOLS = [find_async if HOW == "async" else find]
{ASKING}
graph = builder.compile()
asked = {{"messages": [("user", f'use tool {{TOOLS[0].name}} with {{{{"order_id": "7"}}}}')]}}


def show(mode, each):
    print(mode, each if mode == "custom" else (each[0].content, each[1]["langgraph_node"]))


async def main():
    if MODE == "events":
        async for each in graph.astream_events(asked, version="v2"):
            chunk = each["data"].get("chunk")
            said = each["data"] if "custom" in each["event"] else getattr(chunk, "content", "")
            print(each["event"], each["name"], said)
        return
    async for mode, each in graph.astream(asked, stream_mode=["custom", "messages"]):
        show(mode, each)


if HOW == "async":
    asyncio.run(main())
else:
    for mode, each in graph.stream(asked, stream_mode=["custom", "messages"]):
        show(mode, each)
'''


@pytest.mark.slow
@pytest.mark.parametrize(("how", "mode"), [("async", "stream"), ("sync", "stream"), ("async", "events")])
def test_u1_s50_what_a_tool_of_langgraph_streams_is_streamed_again(
    provider: Provider, tmp_path: Path, how: str, mode: str
) -> None:
    """A writer's values, custom events and the words of a model that the tool asks: its body does not run, or does."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", GRAPH)
    recorded = workplace.record("agent.py", how, mode)
    assert ("on_custom_event half" if mode == "events" else "found") in recorded.stdout
    provider.stop()
    for options in ((), ("--rerun", "tool")):
        replayed = workplace.replay("agent.py", how, mode, options=options)
        assert (replayed.verdict["verdict"], replayed.stdout) == ("identical", recorded.stdout), replayed.stderr


TOOLS: Final = """
import asyncio, json, queue, sys, threading, time

import spanreplay

class Progress(asyncio.Queue):
    pass

@spanreplay.boundary("tool")
async def work(name, progress_of):
    progress = PROGRESS[progress_of]
    for n in range(3):
        await asyncio.sleep(0.002 * len(name))
        await progress.put({"from": name, "step": n})
    last = None if name == "a" else (name, "soon")  # None, as an end is often marked
    if progress.maxsize:
        await progress.put(last)
    else:
        asyncio.get_running_loop().call_soon_threadsafe(progress.put_nowait, last)
    return f"{name} is done"

@spanreplay.boundary("tool")
def work_in_thread(name, into):
    slot = SLOTS.get()
    for n in range(3):
        THREADED.put({"from": name, "step": n})
    SLOTS.put(slot)
    return f"{name} is done"

PROGRESS, THREADED, SLOTS = {}, queue.Queue(), queue.Queue()
SLOTS.put("a slot")

async def main():
    PROGRESS["wide"], PROGRESS["narrow"] = Progress(), Progress(maxsize=1)
    for which in PROGRESS:
        tasks = [asyncio.create_task(work(name, which)) for name in ("a", "bb", "c")]
        for _ in range(12):
            print(which, await PROGRESS[which].get())
        print(await asyncio.gather(*tasks), PROGRESS[which].qsize())
    done = await asyncio.to_thread(work_in_thread, "thread", "queue")
    while not THREADED.empty():
        print(THREADED.get())
    print(done, SLOTS.qsize())

LOOP = sys.argv[1]
if LOOP == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_s68_s50_items_of_tools_at_work_come_in_the_recorded_order(tmp_path: Path, loop: str) -> None:
    """Three tools at once, a queue with room and one without, an item that the loop puts, and a thread's queue."""
    workplace = Workplace(tmp_path)
    workplace.write("agent.py", TOOLS)
    recorded = workplace.record("agent.py", loop)
    assert recorded.stdout.count("'step': 2") == 7
    assert_same(workplace.replay("agent.py", loop), recorded.stdout)


SECRET: Final = "sk-proj-Zx81mQ7vTnR4bYcK2LwP9sD0"
CUT: Final = f"""
import asyncio
import spanreplay

@spanreplay.boundary("tool")
async def tell(into):
    for piece in ("the key is {SECRET[:11]}", "{SECRET[11:]}", ", keep it"):
        QUEUE.put_nowait({{"text": piece}})
    QUEUE.put_nowait(open)  # no value: it can't be recorded

async def main():
    global QUEUE
    QUEUE = asyncio.Queue()
    await tell("queue")
    print("".join([(await QUEUE.get())["text"] for _ in range(3)]))

asyncio.run(main())
"""


def test_r1_s50_a_secret_in_pieces_that_a_tool_passes_on_is_redacted(tmp_path: Path) -> None:
    """No piece is at rest in clear; a replay with the key gives the agent what it had."""
    workplace = Workplace(tmp_path)
    workplace.write("agent.py", CUT)
    recorded = workplace.record("agent.py")
    assert SECRET[11:] in recorded.stdout
    (call,) = [call for call in workplace.recording().calls if call.name == "tell"]
    assert len(call.meta["printed"]) == 3
    assert SECRET[:11] not in json.dumps(call.meta)
    assert SECRET[11:] not in json.dumps(call.meta)
    for file in (tmp_path / ".spanreplay").rglob("*"):
        assert not file.is_file() or SECRET[11:].encode() not in file.read_bytes(), file
    assert_same(workplace.replay("agent.py"), recorded.stdout)


SERVED: Final = """
import asyncio, json
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
import spanreplay

app = FastAPI()
ALL, OF_REQUEST = asyncio.Queue(), {}

@spanreplay.boundary("tool")
async def look_up(order):
    progress = OF_REQUEST[order]
    for n in range(3):
        progress.put_nowait({"order": order, "step": n})
        ALL.put_nowait(order)
        await asyncio.sleep(0.001)
    return f"{order} found"

@app.get("/{order}")
async def answer(order: str):
    progress = OF_REQUEST[order] = asyncio.Queue()

    async def parts():
        working = asyncio.create_task(look_up(order))
        for _ in range(3):
            yield json.dumps(await progress.get()) + "\\n"
        yield await working + str([ALL.get_nowait() == order for _ in range(3)])

    return StreamingResponse(parts())
"""


def test_p4_s50_what_a_tool_passes_on_in_a_request_comes_again(tmp_path: Path, provider: Provider) -> None:
    """The queue of a request, and one that all requests share, are the recorded ones in each replay alone."""
    workplace = prepare(tmp_path, provider, SERVED)
    with serve(workplace) as server:
        for order in ("1", "2"):
            httpx.get(f"{server.url}/{order}", timeout=TIMEOUT_S).raise_for_status()
        server.await_ends()
        server.stop()
    for unit in server.units():
        replayed = workplace.replay(*COMMAND, source=unit.run_id, options=("--warm", "0"))
        assert replayed.verdict["verdict"] == "identical", replayed.stderr


TELLING: Final = """
import asyncio

from fastapi import FastAPI

import spanreplay

app = FastAPI()
QUEUES = {}

@spanreplay.boundary("tool")
async def tell(to):
    QUEUES[to].put_nowait("hello")
    return "told"

@app.get("/{name}/{to}")
async def talk(name: str, to: str):
    own = QUEUES[name] = asyncio.Queue()
    return [await tell(to), own.qsize()]
"""


def test_p4_s50_what_goes_to_another_request_does_not_come_to_this_one(tmp_path: Path, provider: Provider) -> None:
    """The queues of two requests have the same place in their runs."""
    workplace = prepare(tmp_path, provider, TELLING)
    with serve(workplace) as server:
        answers = [httpx.get(f"{server.url}/{path}", timeout=TIMEOUT_S).json() for path in ("ann/ann", "bob/ann")]
        server.await_ends()
        server.stop()
    assert answers == [["told", 1], ["told", 0]]
    for unit in server.units():
        replayed = workplace.replay(*COMMAND, source=unit.run_id, options=("--warm", "0"))
        assert replayed.verdict["verdict"] == "identical", replayed.stderr


INDEX: Final = '''
import asyncio, os, random

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context, Event
from llama_index.llms.openai import OpenAI


class Progress(Event):
    said: str


async def book(ctx: Context, seat: str) -> str:
    """Book a seat."""
    ctx.write_event_to_stream(Progress(said="booking " + seat))
    await asyncio.sleep(0.01)
    await ctx.store.set("seat", f"{seat}-{random.randint(10**6, 10**7)}")
    ctx.write_event_to_stream(Progress(said="booked"))
    return "booked"


async def main():
    agent = FunctionAgent(tools=[book], llm=OpenAI(model="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"]))
    ctx = Context(agent)
    handler = agent.run('use tool book with {"seat": "4a"}', ctx=ctx)
    async for each in handler.stream_events():
        if isinstance(each, Progress):
            print(each.said)
    print(await handler, await ctx.store.get("seat"))


asyncio.run(main())
'''


@pytest.mark.slow
def test_u1_s8_events_that_a_tool_of_llamaindex_writes_last_come_after_it(provider: Provider, tmp_path: Path) -> None:
    """The workflow puts the last event into its stream in a task of its own, when the tool has returned."""
    workplace = Workplace(tmp_path, provider.environ(), ENVIRONMENTS["openai2"])
    workplace.write("agent.py", INDEX)
    recorded = workplace.record("agent.py")
    assert recorded.stdout.startswith("booking 4a\nbooked\n")
    assert "late" in workplace.recording().root.manifest
    provider.stop()
    assert_same(workplace.replay("agent.py"), recorded.stdout)


MEMORY: Final = f'''
import asyncio, random, sys
from typing import Annotated

from langchain_core.callbacks import UsageMetadataCallbackHandler
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
{IMPORTS}
clerk = ChatOpenAI(model="gpt-x")


@tool
async def book(seat: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Book a seat."""
    await store.aput(("seats",), seat, {{"number": random.randint(10**6, 10**7)}})
    return str((await clerk.ainvoke("confirm " + seat)).content)


@tool
def book_in_thread(seat: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Book a seat."""
    store.put(("seats",), seat, {{"number": random.randint(10**6, 10**7)}})
    return str(clerk.invoke("confirm " + seat).content)


TOOLS = [{{"async": book, "sync": book_in_thread}}[sys.argv[1]]]
model = ChatOpenAI(model="gpt-x").bind_tools(TOOLS)


async def ask(state: MessagesState, *, store: BaseStore):
    seats = [each.value for each in await store.asearch(("seats",))]
    return {{"messages": [await model.ainvoke([("system", f"seats: {{seats}}"), *state["messages"]])]}}

{BUILDER}
graph = builder.compile(store=InMemoryStore())


async def main():
    usage = UsageMetadataCallbackHandler()
    asked = {{"messages": [("user", f'use tool {{TOOLS[0].name}} with {{{{"seat": "7"}}}}')]}}
    done = await graph.ainvoke(asked, config={{"callbacks": [usage]}})
    print(done["messages"][-1].content)
    print([(name, counts["total_tokens"]) for name, counts in usage.usage_metadata.items()])


asyncio.run(main())
'''


@pytest.mark.slow
@pytest.mark.parametrize("how", ["async", "sync"])
def test_u1_s50_what_a_tool_of_langgraph_keeps_and_counts_is_there_again(
    provider: Provider, tmp_path: Path, how: str
) -> None:
    """A store in memory that the next prompt reads, and a handler that counts the tokens of models that tools ask."""
    workplace = Workplace(tmp_path, provider.environ())
    workplace.write("agent.py", MEMORY)
    recorded = workplace.record("agent.py", how)
    provider.stop()
    assert_same(workplace.replay("agent.py", how), recorded.stdout)
