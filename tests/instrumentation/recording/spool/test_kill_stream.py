"""kill -9 in the middle of a model's stream: almost all of what had arrived is in the recording, redacted."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model.call import CallRecord, Outcome
from support.replaying import Workplace
from support.route_server import RouteServer

CHUNKS = 260
SECRET = "sk-svcacct-" + "Zq7Wx9Lm2Kp4Rt6Yb8Nc1Vd3Fg5Hj0Sa" * 2
AGENTS = {
    "httpx": """
import httpx
with httpx.stream("POST", url, json=body, timeout=60) as answer:
    for line in answer.iter_lines():
        see(line)
""",
    "requests": """
import requests
with requests.post(url, json=body, stream=True, timeout=60) as answer:
    for line in answer.iter_lines(chunk_size=None):
        see(line.decode())
""",
    "openai": """
import openai
client = openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key="k", max_retries=0)
for chunk in client.chat.completions.create(**body):
    see("data: " + chunk.choices[0].delta.content)
""",
}
HEAD = """
import os, signal
url = os.environ["URL"] + "/v1/chat/completions"
body = {"model": "gpt-x", "stream": True, "messages": [{"role": "user", "content": "count"}]}
seen = 0
def see(line):
    global seen
    seen += line.startswith("data: ")
    if seen == int(os.environ["KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _pieces() -> Iterator[str]:
    for n in range(CHUNKS):
        if n == 60:
            yield " "
            yield from (SECRET[at : at + 3] for at in range(0, len(SECRET), 3))
        yield f" word{n}"


def _events() -> Iterator[bytes]:
    for piece in _pieces():
        event = {"choices": [{"index": 0, "delta": {"content": piece}}], "model": "gpt-x"}
        yield f"data: {json.dumps(event)}\n\n".encode()
        time.sleep(0.02)  # a model's speed: the first second of a stream is not written


def _stream(handler: Any) -> None:
    handler.send_chunks(_events(), {"Content-Type": "text/event-stream"})


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Workplace]:
    """A directory to record in, where agents use a model that answers slowly."""
    with RouteServer({"/v1/chat/completions": _stream}) as server:
        yield Workplace(tmp_path, {"URL": server.url})


def _kill(there: Workplace, source: str, at: int) -> CallRecord:
    agent = there.write("agent.py", HEAD + source)
    process = there.spawn([str(there.python), str(agent)], KILL_AT=str(at))
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    (call,) = there.recording().calls
    return call


@pytest.mark.parametrize("library", AGENTS)
def test_s48_stream_cut_by_sigkill_is_recorded_nearly_to_its_end(library: str, there: Workplace) -> None:
    """After 200 chunks most of them are recorded, the secret among them is not, and the call is open."""
    call = _kill(there, AGENTS[library], 200)
    assert call.outcome == Outcome.OPEN.value
    response = json.loads(call.response)
    assert response["end"] == "open"
    body = "".join(chunk[1] for chunk in response["chunks"])
    events = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: ")]
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert len(events) >= 80
    assert text.startswith("".join(f" word{n}" for n in range(60)) + " rdx-")
    files = [p.read_bytes() for p in (there.path / ".spanreplay").rglob("*") if p.is_file()]
    assert not any(SECRET[8:20].encode() in content for content in files)
    replayed = there.replay("agent.py", KILL_AT="9999")
    assert (replayed.status, replayed.verdict["divergences"]) == (4, [])


def test_s48_secret_that_has_only_begun_is_held_back(there: Workplace) -> None:
    """If the process is killed while a secret arrives, no part of the secret is in any file."""
    _kill(there, AGENTS["httpx"], 75)
    files = [p.read_bytes() for p in (there.path / ".spanreplay").rglob("*") if p.is_file()]
    assert not any(b"Zq7" in content for content in files)
