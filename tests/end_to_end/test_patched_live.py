"""A patched call that goes live sends the changed request, whatever the library, or sends nothing."""

from __future__ import annotations

from typing import Any

import pytest

from support.grpc_server import GrpcServer
from support.provider import Provider
from support.realtime_server import RealtimeServer
from support.replaying import Replayed, Workplace

HEAD = """
import asyncio, json, os
body = {"model": "gpt-x", "messages": [{"role": "user", "content": "the recorded question"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-test-local-provider"}
"""
LIBRARIES = {
    "requests": "import requests\nprint(requests.post(url, json=body, headers=headers).json())",
    "requests_prepared": """
import requests
with requests.Session() as session:
    request = requests.Request("POST", url, data=iter([json.dumps(body).encode()]), headers=headers)
    print(session.send(session.prepare_request(request)).json())
""",
    "urllib3": """
import urllib3
data = json.dumps(body).encode()
pool = urllib3.PoolManager()
print(pool.request("POST", url, body=data, headers={**headers, "Content-Length": str(len(data))}).json())
print(pool.request("POST", url, body=data[:-1] + b" }", headers=headers).json())
""",
    "urllib": """
import urllib.request
request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
print(json.load(urllib.request.urlopen(request)))
""",
    "aiohttp": """
import aiohttp
async def main():
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        print(await answer.json())
asyncio.run(main())
""",
    "httpx": "import httpx\nprint(httpx.post(url, json=body, headers=headers).json())",
}
PATCH = ("--set", 'llm[1].messages[0].content = "a far longer question that the plan asks"', "--on-change", "live")


def patched(workplace: Workplace, *options: str, **environ: str) -> Replayed:
    """Replay the agent under a plan that patches a request and lets it go live."""
    return workplace.replay("agent.py", options=options or PATCH, **environ)


def asked(provider: Provider) -> list[Any]:
    """The request bodies that the provider received."""
    return [body for _, body in provider.requests]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.sampled(3)
def test_s64_patched_request_goes_out_changed(library: str, provider: Provider, workplace: Workplace) -> None:
    """The provider gets only the plan's text; the verdict reports a change made by the plan."""
    workplace.write("agent.py", HEAD + LIBRARIES[library] + "\n")
    workplace.record("agent.py")
    provider.requests.clear()
    done = patched(workplace)
    contents = [body["messages"][0]["content"] for body in asked(provider)]
    assert contents == ["a far longer question that the plan asks"], done.stderr
    (first, *_) = done.verdict["divergences"]
    assert (first["kind"], first["cause"].partition(":")[0]) == ("changed_call", "set by the plan")
    assert done.verdict["counts"]["live"] == 1


BEDROCK = """
import os
import boto3, botocore
from botocore.config import Config
unsigned = Config(signature_version=botocore.UNSIGNED) if os.environ.get("UNSIGNED") else None
client = boto3.client("bedrock-runtime", config=unsigned)
messages = [{"role": "user", "content": [{"text": "the recorded question"}]}]
print(client.converse(modelId="m", messages=messages)["output"]["message"]["content"])
"""
BEDROCK_PATCH = ("--set", 'llm[1].messages[0].content[0].text = "a far longer question"', "--on-change", "live")


def test_s64_patched_request_of_botocore_goes_out_unsigned(provider: Provider, workplace: Workplace) -> None:
    """If the client signs nothing, botocore sends the plan's text."""
    workplace.write("agent.py", BEDROCK)
    workplace.record("agent.py", UNSIGNED="1")
    provider.requests.clear()
    done = patched(workplace, *BEDROCK_PATCH, UNSIGNED="1")
    (body,) = asked(provider)
    assert body["messages"][0]["content"] == [{"text": "a far longer question"}], done.stderr


def test_s64_patched_request_that_is_signed_is_refused(provider: Provider, workplace: Workplace) -> None:
    """A signature covers the recorded body: the replay says so in one line, and sends nothing."""
    workplace.write("agent.py", BEDROCK)
    workplace.record("agent.py")
    provider.requests.clear()
    done = patched(workplace, *BEDROCK_PATCH)
    assert asked(provider) == []
    assert done.status == 1
    assert "this request is signed, so its body can't be changed on its way: set its response" in done.stderr


TOOLS = {
    "langchain": """
from langchain_core.tools import tool
@tool
def price(item: str, count: int = 1) -> str:
    "What so many cost."
    open("bodies", "a").write(f"{item} {count}")
    return f"{item}: {7 * count}"
print(price.invoke({"item": "pen", "count": 2}))
""",
    "langchain_async": """
import asyncio
from langchain_core.tools import BaseTool
class Price(BaseTool):
    name: str = "price"
    description: str = "What so many cost."
    def _run(self, item: str, count: int = 1) -> str:
        raise NotImplementedError
    async def _arun(self, item: str, count: int = 1) -> str:
        open("bodies", "a").write(f"{item} {count}")
        return f"{item}: {7 * count}"
print(asyncio.run(Price().ainvoke({"item": "pen", "count": 2})))
""",
}


@pytest.mark.parametrize("framework", TOOLS)
def test_s64_patched_tool_runs_with_other_arguments(framework: str, workplace: Workplace) -> None:
    """A framework's tool is called with the plan's arguments."""
    workplace.write("agent.py", TOOLS[framework])
    workplace.record("agent.py")
    (workplace.path / "bodies").unlink()
    done = patched(workplace, "--set", "tool:price[1].count = 5", "--live", "tool:price[1]")
    assert done.stdout.strip() == "pen: 35", done.stderr
    assert (workplace.path / "bodies").read_text() == "pen 5"
    assert [d["kind"] for d in done.verdict["divergences"]][:2] == ["changed_call", "output_changed"]


GRPC = """
import json, os
import grpc
encode = lambda message: json.dumps(message).encode()
ask = grpc.insecure_channel(os.environ["TARGET"]).unary_unary("/test.Oracle/Ask", encode, json.loads)
print(ask({"text": "hello"}))
"""
SOCKET = """
import json, os
from websockets.sync.client import connect
with connect(os.environ["SOCKET"]) as socket:
    print(socket.recv())
"""


def test_s64_patched_grpc_is_refused(workplace: Workplace) -> None:
    """gRPC sends bytes that a plan can't address: one line says so, and the server is not called."""
    workplace.write("agent.py", GRPC)
    with GrpcServer() as server:
        workplace.record("agent.py", TARGET=server.target)
        done = patched(workplace, "--set", 'http:grpc*[1].value = "x"', "--on-change", "live", TARGET=server.target)
    assert (done.status, done.stdout) == (1, "")
    assert "the request of http:grpc test.Oracle/Ask can't be changed by a plan: set its response" in done.stderr


def test_s64_patched_websocket_is_refused(workplace: Workplace) -> None:
    """The messages of a websocket can't be patched in transit, and one line says so."""
    workplace.write("agent.py", SOCKET)
    with RealtimeServer() as server:
        workplace.record("agent.py", SOCKET=server.url.replace("http", "ws", 1) + "/realtime?model=gpt-x")
        done = patched(workplace, "--set", '*:*[1].value = "x"', "--on-change", "live")
    assert (done.status, done.stdout) == (2, "")
    assert "the request of this call has no fields that can be set" in done.stderr
