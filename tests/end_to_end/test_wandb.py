"""Weights & Biases beside an agent: the program it starts works as without us, and a replay needs none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from support.agents import ENVIRONMENTS
from support.provider import Provider
from support.replaying import Workplace, assert_same

AGENT: Final = """
import os, wandb
from openai import OpenAI

if os.environ["MODE_OF_RUN"] == "online":
    wandb.setup()
    print(wandb.login())
run = wandb.init(project="p", mode=os.environ["MODE_OF_RUN"], config={"model": "gpt-x"})
client = OpenAI()

def ask(text):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content

def count(text):
    return len(text)

answer = ask("one")
run.log({"length": count(answer)})
print(ask(f"shorten {answer}"))
print(run.id, run.name, run.project, run.entity, run.config["model"], wandb.run is run)
if not run.offline:
    print(run.url)
    run.name = "mine"
    print(run.name)
run.summary["calls"] = 2
run.finish()
"""


class _Server(ThreadingHTTPServer):
    """A server that answers what the SDK asks when a run starts, and keeps what it is asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        """Answer a query, or take in a report."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        answer: dict[str, Any] = {}
        place = self.path.split("/")[1]
        if place == "graphql":
            query = json.loads(body)
            place += " " + query["operationName"]
            answer = {"data": _answer(query.get("variables", {}).get("name"))}
        self.server.asked.add(place)
        told = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def do_GET(self) -> None:
        """Do the same."""
        self.do_POST()

    def do_PUT(self) -> None:
        """Do the same."""
        self.do_POST()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- named so in the base class
        """Print nothing."""


def _answer(run_id: str | None) -> dict[str, Any]:
    project = {"id": "P", "name": "p", "entity": {"id": "E", "name": "team"}}
    run = {"id": "R", "name": run_id, "displayName": "fluffy-cloud-1", "config": "{}", "historyLineCount": 0}
    user = {"id": "V", "username": "me", "entity": "team", "flags": "{}", "teams": {"edges": []}}
    return {
        "viewer": user,
        "serverInfo": {"cliVersionInfo": {"max_cli_version": "99.0.0"}, "features": []},
        "upsertBucket": {"bucket": {**run, "project": project}, "inserted": True},
        "model": {"bucket": None},
        "createRunFiles": {"runID": "R", "uploadHeaders": [], "files": []},
        "entity": {"organization": None},
    }


@pytest.fixture
def server() -> Iterator[_Server]:
    """The server of Weights & Biases that the agent reports to."""
    with _Server() as running:
        serving = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        serving.start()
        yield running
        running.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.sampled(1)
def test_n4_wandb_reports_as_without_us_and_a_replay_starts_nothing(
    mode: str, provider: Provider, server: _Server, tmp_path: Path
) -> None:
    """Its server gets what it gets without us; a replay says the recorded id, name and URL, and sends nothing."""
    python = ENVIRONMENTS["logfire"]
    if not python.exists():
        pytest.skip(f"no {python}: `make matrix` builds it")
    own = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40, "MODE_OF_RUN": mode}
    workplace = Workplace(tmp_path, {**provider.environ(), **own}, python)
    agent = workplace.write("agent.py", AGENT)
    workplace.run_plain(agent)
    plain = set(server.asked)
    assert ("graphql UpsertBucket" in plain) == (mode == "online")
    server.asked.clear()
    recorded = workplace.record(agent)
    assert server.asked == plain
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert [call.kind for call in recording.calls] == ["llm"] * 2
    server.asked.clear()
    provider.stop()
    kept = sorted(tmp_path.glob("wandb/*"))
    assert_same(workplace.replay(agent), recorded.stdout)
    workplace.write("agent.py", AGENT.replace("shorten", "translate"))
    assert workplace.replay(agent).causes() == [("changed_call", "llm:openai.chat.completions")]
    assert server.asked == set()
    assert sorted(tmp_path.glob("wandb/*")) == kept
