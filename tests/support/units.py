"""Servers recorded by the tests, and the runs of their requests."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import Recording
from spanreplay.recording.otlp.otlp import decode_attributes
from support.otlp_sink import OtlpSink
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace

COMMAND: Final = ("-m", "uvicorn", "app:app")
ASKING: Final = """
import time, uuid

from groq import AsyncGroq

STARTED = time.time()
client = AsyncGroq()

async def ask(text):
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content
"""
"""The first lines of a test application: a client of its models."""
FLASK: Final = """
import time, uuid

from flask import Flask, request
from groq import Groq

app, client = Flask(__name__), Groq()

def ask(text):
    answer = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content
"""
"""The first lines of a WSGI application."""
CHAT: Final = f"""{ASKING}
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

@asynccontextmanager
async def lifespan(app):
    yield {{"warm": await ask("warm up")}}

app = FastAPI(lifespan=lifespan)

@app.post("/chat")
async def chat(request: Request):
    reply = await ask((await request.json())["text"])
    at = {{"started": STARTED, "now": time.time(), "id": str(uuid.uuid4())}}
    return {{"reply": reply, "warm": request.state.warm, **at}}
"""
"""A complete application, with a lifespan and the path `/chat`."""


def prepare(path: Path, provider: Provider, app: str) -> Workplace:
    """Make a directory with an application that uses the local provider's models."""
    workplace = Workplace(path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("app.py", app)
    return workplace


class Server:
    """A recorded server that is ready, started as a user would."""

    def __init__(self, workplace: Workplace, port: int, process: subprocess.Popen[str]) -> None:
        self.workplace = workplace
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.process = process

    def units(self) -> list[Recording]:
        """Return the runs of its requests, oldest first."""
        return [each for each in self.workplace.recordings() if "unit" in each.root.env]

    def the_process(self) -> Recording:
        """Return the run of the process itself."""
        (found,) = [each for each in self.workplace.recordings() if "unit" not in each.root.env]
        return found

    def await_ends(self) -> None:
        """Wait until all units have ended: a client gets its answer a moment before the server closes the unit."""
        await_true(lambda: all(unit.root.manifest for unit in self.units()))

    def stop(self) -> None:
        """Stop it as a service manager does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=TIMEOUT_S)


@contextmanager
def serve(
    workplace: Workplace, *options: str, command: Sequence[str] = COMMAND, at: str = "--port {port}", **environ: str
) -> Iterator[Server]:
    """Start `app:app` of the workplace, by default under uvicorn; it is killed at the end if still running.

    `at` are the arguments that tell the server its port.
    """
    port = free_port()
    with serve_with(workplace, port, *command, *options, *at.format(port=port).split(), **environ) as server:
        yield server


@contextmanager
def serve_with(workplace: Workplace, port: int, *command: str, **environ: str) -> Iterator[Server]:
    """Start a server with these Python arguments; it is killed at the end if still running."""
    process = workplace.spawn([str(workplace.python), *command], **environ)
    try:
        await_true(lambda: listens(port, process))
        yield Server(workplace, port, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)


def await_true(happened: Callable[[], bool]) -> None:
    """Wait until a condition is true, for a limited time."""
    deadline = time.monotonic() + TIMEOUT_S
    pause = threading.Event()
    while not happened():
        assert time.monotonic() < deadline
        pause.wait(0.02)  # lets servers in the test's own process answer


def listens(port: int, process: subprocess.Popen[str]) -> bool:
    """Whether a server accepts connections; it must still be running."""
    assert process.poll() is None, process.communicate()[1]
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def path_of(unit: Recording) -> str:
    """Return the path of a unit's request."""
    return str(json.loads(unit.calls[0].response)["value"]["path"])


def find_own_number(unit: Recording) -> int:
    """Return the number of a complete unit of `app:app`, from its session; it must contain no other one's question."""
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert unit.root.app == "app:app"
    number = int(unit.root.session_id.removeprefix("session-"))
    texts = [text for call in unit.calls for text in (call.request, call.response)]
    assert {each for text in texts for each in re.findall(r"question-\d+", text)} == {f"question-{number}"}
    return number


def trace_of(unit: Recording) -> int:
    """Return the number of the trace to which a unit's request or message belonged."""
    return int(unit.root.env["unit"]["trace"], 16)


def response_of(unit: Recording) -> dict[str, Any]:
    """Return a unit's response."""
    (found,) = [call for call in unit.calls if call.boundary == "http:response"]
    arguments: dict[str, Any] = json.loads(found.request)["arguments"]
    return arguments


def ended_runs(sink: OtlpSink) -> set[str]:
    """Return the ids of the runs whose manifests were delivered."""
    requests = [ExportTraceServiceRequest.FromString(seen.body) for seen in sink.accepted]
    spans = [span for r in requests for rs in r.resource_spans for scope in rs.scope_spans for span in scope.spans]
    found = [decode_attributes(span.attributes) for span in spans]
    return {str(each["spanreplay.run_id"]) for each in found if "spanreplay.manifest" in each}
