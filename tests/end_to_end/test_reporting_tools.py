"""Tools that report about an agent to a server of the user's own: they report as without us, and a replay is silent."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from support.agents import ENVIRONMENTS
from support.otlp_sink import serve
from support.provider import Provider
from support.replaying import Workplace

AGENT: Final = """
import os, time, uuid
import posthog
from posthog.ai.openai import OpenAI

tool = posthog.Posthog("phc_1", host=os.environ["THEIRS"])
client = OpenAI(posthog_client=tool)

def ask(text):
    messages = [{"role": "user", "content": text}]
    made = client.chat.completions.create(model="gpt-x", messages=messages, posthog_distinct_id="u-1")
    return made.choices[0].message.content

print(ask(ask("one")), time.time(), uuid.uuid4())
tool.capture("done", distinct_id="u-1")
tool.shutdown()
"""
VARIABLES: Final = """
import os, subprocess, sys
names = ["OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER"]
print([os.environ.get(name) for name in names])
code = f"import os; print([os.environ.get(name) for name in {names!r}])"
print(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout)
"""


def test_n4_a_tool_that_reports_to_a_server_of_ones_own_reports_as_without_us(
    provider: Provider, tmp_path: Path
) -> None:
    """Its address is in no setting; the reports hold its own times and ids, and are in no run."""
    with serve() as sink:
        workplace = Workplace(tmp_path, {**provider.environ(), "THEIRS": sink.endpoint}, ENVIRONMENTS["logfire"])
        workplace.write("agent.py", AGENT)
        workplace.record("agent.py", SPANREPLAY_MODE="off")
        plain = [seen.path for seen in sink.seen]
        workplace.record("agent.py", status=0)
        assert [seen.path for seen in sink.seen] == [*plain, *plain]
        events = [event["event"] for seen in sink.seen for event in json.loads(seen.body)["batch"]]
        assert events == ["$ai_generation", "$ai_generation", "done"] * 2
        provider.stop()
        recording = workplace.recording()
        assert not [call for call in recording.calls if sink.endpoint in call.request]
        replayed = workplace.replay("agent.py")
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"
        assert len(sink.seen) == 2 * len(plain)


@pytest.mark.parametrize("named", [{}, {"OTEL_TRACES_EXPORTER": "console", "OTEL_LOGS_EXPORTER": ""}])
def test_n4_variables_of_exporters_are_the_users(named: dict[str, str], tmp_path: Path) -> None:
    """Other tools read them too: `none` would switch ddtrace off."""
    workplace = Workplace(tmp_path, named, Path(sys.executable))
    workplace.write("agent.py", VARIABLES)
    command = [sys.executable, "agent.py"]
    plain = subprocess.run(command, env=workplace.environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    assert "none" not in plain.stdout
    recorded = workplace.run("record", "--", *command)
    assert (recorded.returncode, recorded.stdout) == (0, plain.stdout), recorded.stderr


HOOKS: Final = """
import functools, urllib.request
import httpx, requests

def _wrap(owner, name):
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    def measured(*args, **kwargs):
        return wrapped(*args, **kwargs)

    setattr(owner, name, measured)

for owner, name in ((urllib.request.OpenerDirector, "open"), (requests.Session, "send"), (httpx.Client, "send")):
    _wrap(owner, name)

async_send = httpx.AsyncClient.send

@functools.wraps(async_send)
async def measured_send(*args, send=async_send, **kwargs):
    return await send(*args, **kwargs)

httpx.AsyncClient.send = measured_send
"""
WRAPPED: Final = """
import newrelic
import asyncio, json, os, threading, urllib.request
from concurrent.futures import ThreadPoolExecutor
import httpx, requests

url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
body = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}

def begin_with(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()

def by_urllib():
    headers = {"content-type": "application/json"}
    return begin_with(urllib.request.urlopen, urllib.request.Request(url, json.dumps(body).encode(), headers)).status

def by_requests():
    with requests.Session() as session:
        return begin_with(session.send, session.prepare_request(requests.Request("POST", url, json=body))).status_code

def by_httpx():
    with httpx.Client() as client:
        return begin_with(client.send, client.build_request("POST", url, json=body)).status_code

async def in_a_task():
    async with httpx.AsyncClient() as client:
        asked = client.build_request("POST", url, json=body)
        return (await asyncio.create_task(client.send(asked))).status_code

print(by_urllib(), by_requests(), by_httpx(), asyncio.run(in_a_task()))
"""


def test_s27_n4_what_a_thread_or_task_begins_with_is_the_agents_though_a_tool_wraps_it(
    provider: Provider, tmp_path: Path
) -> None:
    """A tool measures the transports' functions: its frame is the first of the agent's request, but not its sender."""
    tool = tmp_path / "site-packages" / "newrelic"
    tool.mkdir(parents=True)
    (tool / "__init__.py").write_text(HOOKS)
    workplace = Workplace(tmp_path, {**provider.environ(), "PYTHONPATH": str(tool.parent)})
    agent = workplace.write("agent.py", WRAPPED)
    assert workplace.record(agent).stdout == "200 200 200 200\n"
    assert len(provider.requests) == 4
    provider.stop()
    assert [call.kind for call in workplace.recording().calls] == ["llm"] * 4
    replayed = workplace.replay(agent)
    assert replayed.status == 0, replayed.stderr
    assert replayed.verdict["counts"]["exact"] == 4


ASKING: Final = """
import json, threading, urllib.request

def begin(url):
    def ask(path, data=None):
        return json.load(urllib.request.urlopen(urllib.request.Request(url + path, data)))

    def publish():
        project = ask("/project", b"{}")["id"]
        limit = ask("/version")["limit"]
        ask("/logs", json.dumps([project, limit]).encode())

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    return thread
"""
ASKED: Final = """
import os, urllib.request
import braintrust
from openai import OpenAI

urllib.request.urlopen(os.environ["THEIRS"] + "/mine").read()
thread = braintrust.begin(os.environ["THEIRS"])
messages = [{"role": "user", "content": "hi"}]
print(OpenAI().chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
thread.join()
"""


def test_n4_what_a_tool_asks_for_its_reports_may_be_missing_in_a_replay(provider: Provider, tmp_path: Path) -> None:
    """Its reports get no true answer there, so it fails before it asks; the agent's calls are compared."""
    tool = tmp_path / "site-packages" / "braintrust"
    tool.mkdir(parents=True)
    (tool / "__init__.py").write_text(ASKING)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._answer({"id": "p-1"})

        def do_GET(self) -> None:
            self._answer({"limit": 10})

        def _answer(self, value: object) -> None:
            seen.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    seen: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        workplace = Workplace(tmp_path, {**provider.environ(), "THEIRS": url, "PYTHONPATH": str(tool.parent)})
        agent = workplace.write("agent.py", ASKED)
        workplace.record(agent, status=0)
        assert seen == ["GET /mine", "POST /project", "GET /version", "POST /logs"]
        provider.stop()
        assert sorted(call.kind for call in workplace.recording().calls) == ["http", "http", "llm"]
        replayed = workplace.replay(agent)
        assert (replayed.status, len(seen)) == (0, 4), replayed.stderr
        assert "identical: 2 calls, all as recorded" in replayed.stderr
        assert replayed.verdict["counts"]["not_asked"] == 1
        assert "whether reporting tools ask for what they asked for by themselves" in replayed.stderr
        workplace.write("agent.py", ASKED.replace('"hi"', '"ho"'))
        assert workplace.replay(agent).causes() == [("changed_call", "llm:openai.chat.completions")]
        workplace.write("agent.py", ASKED.replace("urllib.request.urlopen", "print; str").replace(".read()", ""))
        own = f"http:GET {url.removeprefix('http://')}"
        assert workplace.replay(agent).causes()[0] == ("missing_call", own)  # what the agent asks is expected
        server.shutdown()


SENDER: Final = """
import os, queue, threading, time
import httpx, tenacity

count = int(os.environ["SENDERS"])
tasks, client, together = queue.Queue(), httpx.Client(), threading.Barrier(count)

@tenacity.retry(stop=tenacity.stop_after_attempt(3))
def send(url, number):
    client.post(f"{url}/batch", json={"number": number, "at": time.time()})

def work():
    is_first = True
    while True:
        url, number = tasks.get()
        if is_first:
            together.wait()
        is_first = False
        send(url, number)
        tasks.task_done()

for _ in range(count):
    threading.Thread(target=work, daemon=True).start()

def flush():
    while tasks.unfinished_tasks:
        time.sleep(0.01)
"""
REPORTING: Final = """
import os, time, uuid
import newrelic
from groq import Groq

client = Groq()

def ask(text):
    newrelic.tasks.put((os.environ["THEIRS"], text))
    made = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    newrelic.tasks.put((os.environ["THEIRS"], made.id))
    return made.choices[0].message.content

answer = ask(ask("hi"))
newrelic.flush()
print(ask(answer), time.time(), uuid.uuid4())
newrelic.flush()
"""


def test_n2_n4_threads_of_a_tool_that_share_its_reports_keep_no_order(provider: Provider, tmp_path: Path) -> None:
    """How many there are, which sends what and what a retry helper measures is nobody's: a replay waits for none."""
    tool = tmp_path / "site-packages" / "newrelic"
    tool.mkdir(parents=True)
    (tool / "__init__.py").write_text(SENDER)
    with serve() as sink:
        environ = {**provider.environ(), "THEIRS": sink.endpoint, "PYTHONPATH": str(tool.parent)}
        workplace = Workplace(tmp_path, environ)
        agent = workplace.write("agent.py", REPORTING)
        workplace.record(agent, SENDERS="4")
        assert [seen.path for seen in sink.seen] == ["/batch"] * 6
        provider.stop()
        assert [call.kind for call in workplace.recording().calls if call.kind != "tool"] == ["llm"] * 3
        replayed = workplace.replay(agent, SENDERS="2")
        assert replayed.status == 0, replayed.stderr
        assert len(sink.seen) == 6
