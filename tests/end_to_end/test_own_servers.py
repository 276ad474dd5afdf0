"""Agents that serve HTTP themselves: incoming requests and their handling are one run, and all of it replays."""

from __future__ import annotations

import pytest

from support.provider import Provider
from support.replaying import Workplace

APP = """
from groq import AsyncGroq
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def ask(request):
    question = (await request.json())["question"]
    done = await AsyncGroq().chat.completions.create(
        model="gpt-x", messages=[{"role": "user", "content": PROMPT + question}]
    )
    return JSONResponse({"answer": done.choices[0].message.content})

app = Starlette(routes=[Route("/ask", ask, methods=["POST"])])
PROMPT = "Be brief. "
"""

CLIENTS = {
    "httpx-asgi": """
import asyncio, httpx

async def main():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        for n in range(3):
            print((await client.post("/ask", json={"question": f"q{n}"})).json())

asyncio.run(main())
""",
    "test-client": """
from starlette.testclient import TestClient

with TestClient(app) as client:
    for n in range(3):
        print(client.post("/ask", json={"question": f"q{n}"}).json())
""",
    "socket": """
import http.server, json, threading, urllib.request
from groq import Groq

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))["question"]
        done = Groq().chat.completions.create(
            model="gpt-x", messages=[{"role": "user", "content": PROMPT + question}]
        )
        content = json.dumps({"answer": done.choices[0].message.content}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/ask"
for n in range(3):
    print(json.load(urllib.request.urlopen(url, json.dumps({"question": f"q{n}"}).encode())))
server.shutdown()
""",
}


@pytest.fixture
def workplace(workplace: Workplace, provider: Provider) -> Workplace:
    """A workplace whose agents call the local provider."""
    workplace.environ.update(provider.environ())
    return workplace


@pytest.mark.parametrize("client", CLIENTS)
def test_s50_an_agent_that_is_asked_by_its_own_process_replays(
    workplace: Workplace, provider: Provider, client: str
) -> None:
    """The application runs again in the replay, with the provider gone: its model calls are served."""
    agent = workplace.write("agent.py", APP + CLIENTS[client])
    recorded = workplace.record(agent)
    assert [call.kind for call in workplace.recording().calls] == ["llm"] * 3
    provider.stop()
    replayed = workplace.replay(agent)
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.verdict["counts"]["served"] == 3


def test_s28_a_changed_application_is_found(workplace: Workplace, provider: Provider) -> None:
    """A prompt changed inside the application is a changed call, not an answer from the recording."""
    agent = workplace.write("agent.py", APP + CLIENTS["httpx-asgi"])
    workplace.record(agent)
    provider.stop()
    workplace.write("agent.py", APP.replace("Be brief. ", "Be rude. ") + CLIENTS["httpx-asgi"])
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert replayed.causes()[0] == ("changed_call", "llm:openai.chat.completions")
