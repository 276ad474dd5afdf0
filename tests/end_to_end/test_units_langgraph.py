"""LangGraph's server: each graph run is part of the request that waits for it, or a separate run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spanreplay.model.call import Recording
from support.agents import ENVIRONMENTS
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.sampling import IS_WHOLE
from support.seeding import fixed_seed
from support.units import Server, await_true, path_of, serve_with
from support.workers import output_of

PYTHON: Final = ENVIRONMENTS["langgraph-server"]
RELOADING: Final = ("-m", "langgraph_cli", "dev", "--no-browser", "--port")
COMMAND: Final = ("-m", "langgraph_cli", "dev", "--no-reload", "--no-browser", "--port")
AGENT: Final = '''
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def get_order(order_id: str) -> str:
    """An order of a customer."""
    return f"order {order_id}: 3 apples"


model = ChatOpenAI(model="gpt-x").bind_tools([get_order])


async def ask(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_node("tools", ToolNode([get_order]))
builder.add_edge(START, "ask")
builder.add_conditional_edges("ask", tools_condition)
builder.add_edge("tools", "ask")
graph = builder.compile()
'''
AUTH: Final = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(headers: dict):
    return {"identity": "ann", "permissions": ["read"]}
"""


@pytest.fixture
def workplace(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a graph and the other files of the server's template."""
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON}: tools/agents.sh builds it")
    quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_NO_VERSION_CHECK": "true", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    quiet |= fixed_seed()  # the metadata of streamed messages is in the order of a set
    made = Workplace(tmp_path, {**provider.environ(), **quiet, "SPANREPLAY_GUARD": "production"}, PYTHON)
    made.write("agent.py", AGENT)
    made.write("auth.py", AUTH)
    settings = {"dependencies": ["."], "graphs": {"shop": "./agent.py:graph"}, "auth": {"path": "./auth.py:auth"}}
    made.write("langgraph.json", json.dumps(settings))
    return made


@pytest.fixture
def server(workplace: Workplace) -> Iterator[Server]:
    """The server, started as by a user."""
    port = free_port()
    with serve_with(workplace, port, *COMMAND, str(port)) as started:
        yield started


def post(server: Server, path: str, text: str = "", **more: Any) -> httpx.Response:
    """Send a request to the server, with a message for its graph if there is one."""
    body = {"assistant_id": "shop", "input": {"messages": [{"role": "user", "content": text}]}, **more} if text else {}
    return httpx.post(f"{server.url}{path}", json=body, timeout=TIMEOUT_S).raise_for_status()


def of_path(units: list[Recording], path: str) -> Recording:
    """The unit of the one request with this path."""
    (found,) = [unit for unit in units if unit.calls[0].boundary == "http:request" and path_of(unit) == path]
    return found


def models_of(unit: Recording) -> list[str]:
    """The last question in each model call."""
    asked = [json.loads(call.request) for call in unit.calls if call.kind == "llm"]
    return [str(each["body"]["messages"][-1]["content"]) for each in asked]


@pytest.mark.slow
def test_p3_p4_each_run_of_a_langgraph_server_is_a_run_and_replays_alone(provider: Provider, server: Server) -> None:
    """Waited-for, streamed and background runs are each a whole run, identical without the provider."""
    workplace = server.workplace
    waited = post(server, "/runs/wait", "wait for me").json()["messages"][-1]["content"]
    streamed = post(server, "/runs/stream", "stream to me", stream_mode=["values", "messages-tuple"]).text
    thread = post(server, "/threads").json()["thread_id"]
    post(server, f"/threads/{thread}/runs", 'use tool get_order with {"order_id": "7"}')
    await_true(lambda: any(unit.root.app == "shop" and unit.root.manifest for unit in server.units()))
    second = post(server, f"/threads/{thread}/runs", "and then?").json()["run_id"]
    await_true(lambda: sum(unit.root.app == "shop" and bool(unit.root.manifest) for unit in server.units()) == 2)
    third = post(server, f"/threads/{thread}/runs/wait", "and at last?").json()["messages"]
    values = httpx.get(f"{server.url}/threads/{thread}/state", timeout=TIMEOUT_S).raise_for_status().json()["values"]
    server.await_ends()
    server.stop()
    provider.stop()
    units = server.units()
    assert {reason for unit in units for reason in unit.completeness().reasons} == set()
    assert server.the_process().completeness().reasons == ()
    assert [models_of(of_path(units, path)) for path in ("/runs/wait", "/runs/stream", "/threads")] == [
        ["wait for me"],
        ["stream to me"],
        [],
    ]
    first_job, second_job = [unit for unit in units if unit.root.app == "shop"]
    assert [call.name for call in first_job.calls if call.kind == "tool"] == ["get_order"]
    assert len(models_of(first_job)) == 2
    assert models_of(second_job) == ["and then?"]
    assert second in second_job.calls[0].response
    assert output_of(second_job)["status"] == "success"
    assert waited in of_path(units, "/runs/wait").calls[-1].request
    assert "event: messages" in streamed
    assert values["messages"] == third
    assert len(third) == 8
    of_graph = [of_path(units, "/runs/wait"), of_path(units, "/runs/stream"), first_job]
    for unit in units if IS_WHOLE else of_graph:
        replayed = workplace.replay(*COMMAND, str(server.port), source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    warm = workplace.replay(*COMMAND, str(server.port), source=second_job.run_id, options=("--warm", "all"))
    assert warm.verdict["verdict"] == "identical", warm.stderr
    assert first_job.run_id in [unit["run_id"] for unit in warm.verdict["warm_up"]["units"] if not unit["why"]]


@pytest.mark.slow
def test_p4_a_changed_graph_of_a_langgraph_server_is_named(provider: Provider, workplace: Workplace) -> None:
    """A changed question is one cause, in a request and in a queued run; with the reloader, as by default."""
    port = free_port()
    with serve_with(workplace, port, *RELOADING, str(port)) as server:
        post(server, "/runs/wait", "hello")
        post(server, "/runs", "hello again")
        await_true(lambda: any(unit.root.app == "shop" and unit.root.manifest for unit in server.units()))
        server.await_ends()
        server.stop()
    provider.stop()
    units = server.units()
    same = workplace.replay(*RELOADING, str(port), source=of_path(units, "/runs/wait").run_id)
    assert same.verdict["verdict"] == "identical", same.stderr
    workplace.write("agent.py", AGENT.replace('state["messages"])]', '[("system", "be kind"), *state["messages"]])]'))
    (job,) = [unit for unit in units if unit.root.app == "shop"]
    for unit in (of_path(units, "/runs/wait"), job):
        replayed = workplace.replay(*RELOADING, str(port), source=unit.run_id)
        assert replayed.causes()[:1] == [("changed_call", "llm:openai.chat.completions")], replayed.stderr
