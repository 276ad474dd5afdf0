"""An ordinary Haystack agent: tools, a pipeline with a retriever, an agent.

usage: python haystack_agent.py [MODE ...]      modes: see MODES; "agent" when none is named
The tools write to the SQLite file named by AGENT_DB (default: notes.db).
"""

import asyncio
import os
import random
import sqlite3
import sys
from contextlib import closing

from haystack import Document, Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tools import create_tool_from_function, tool

DB = os.environ.get("AGENT_DB", "notes.db")
BASE = os.environ.get("OPENAI_BASE_URL")


def write_note(text):
    with closing(sqlite3.connect(DB, timeout=30)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
        row = db.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid
    return f"note {row} ({text}) saved, receipt {random.randint(10**6, 10**7)}"


@tool
def add_note(text: str) -> str:
    """Write a note."""
    return write_note(text)


def break_down(reason: str) -> str:
    """A tool that fails."""
    raise ValueError(f"broke down: {reason}, code {random.randint(100, 999)}")


TOOLS = [add_note, create_tool_from_function(break_down)]


def show(*parts):
    print(*parts, flush=True)


def order(name, args):
    return f"use tool {name} with {args}"


def make_agent():
    model = OpenAIChatGenerator(model="gpt-x", api_base_url=BASE)
    return Agent(chat_generator=model, tools=TOOLS, system_prompt="Keep notes.")


SAME = order("add_note", '{"text": "the same"}')
PARALLEL = " and ".join([SAME, SAME, SAME, order("break_down", '{"reason": "rust"}')])


def show_messages(mode, messages):
    for message in messages:
        show(mode, message.role.value, repr(message.text))
        for call in message.tool_calls:
            show(mode, "  call", call.id, call.tool_name, call.arguments)
        for result in message.tool_call_results:
            show(mode, "  result", result.result, result.error)


def agent():
    result = make_agent().run(messages=[ChatMessage.from_user(f"{PARALLEL} then {SAME}")])
    show_messages("agent", result["messages"])


def agent_async():
    async def run():
        return await make_agent().run_async(messages=[ChatMessage.from_user(PARALLEL)])

    show_messages("agent_async", asyncio.run(run())["messages"])


def pipeline():
    store = InMemoryDocumentStore()
    texts = ["Granite is hard.", "Basalt is dark.", "Chalk is soft."]
    embedder = OpenAIDocumentEmbedder(api_base_url=BASE, progress_bar=False)
    store.write_documents(embedder.run([Document(content=text) for text in texts])["documents"])
    prompt = [ChatMessage.from_user("{% for d in documents %}{{ d.content }} {% endfor %} {{ question }}")]
    flow = Pipeline()
    flow.add_component("embedder", OpenAITextEmbedder(api_base_url=BASE))
    flow.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=2))
    flow.add_component("prompt", ChatPromptBuilder(template=prompt, required_variables="*"))
    flow.add_component("model", OpenAIChatGenerator(model="gpt-x", api_base_url=BASE))
    flow.connect("embedder.embedding", "retriever.query_embedding")
    flow.connect("retriever.documents", "prompt.documents")
    flow.connect("prompt.prompt", "model.messages")
    question = "Which stone is dark?"
    result = flow.run({"embedder": {"text": question}, "prompt": {"question": question}}, {"retriever"})
    for document in result["retriever"]["documents"]:
        show("pipeline", document.content, document.score)
    show_messages("pipeline", result["model"]["replies"])


MODES = {"agent": agent, "agent_async": agent_async, "pipeline": pipeline}

if __name__ == "__main__":
    show("haystack", sys.argv[1:])
    for mode in sys.argv[1:] or ["agent"]:
        MODES[mode]()
    show("done")
