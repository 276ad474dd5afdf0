"""Cassettes that vcrpy itself has recorded, imported, and replayed by the same tests and programs without a server."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spanreplay.activate.imported import LACKS
from support.nested_pytest import OURS
from support.provider import Provider
from support.route_server import Handler, RouteServer
from support.shell import Shell, open_shell

SECRET, COOKIE = "sk-proj-Zq8vT3nR7wXk2mPd9LhJ4bYc6fGs1aUe", "Zq8vT3nR7wXk2mPd9Lh"

AGENT = """
import asyncio, random, time
import openai, requests, httpx

SITE = {site!r}

def ask(prompt):
    with openai.OpenAI(max_retries=0) as client:
        answer = client.chat.completions.create(model="gpt-4o", messages=[{{"role": "user", "content": prompt}}])
    return answer.choices[0].message.content

def stream(prompt):
    with openai.OpenAI(max_retries=0) as client:
        parts = client.chat.completions.create(
            model="gpt-4o", messages=[{{"role": "user", "content": prompt}}], stream=True
        )
        return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)

async def ask_all(prompts):
    async with openai.AsyncOpenAI(max_retries=0) as client:
        return await asyncio.gather(*(
            client.chat.completions.create(model="gpt-4o", messages=[{{"role": "user", "content": p}}])
            for p in prompts
        ))

def site():
    found = [requests.get(SITE + "/packed").json(), requests.get(SITE + "/old").text]
    found.append(requests.post(SITE + "/form", data={{"a": "1"}}).content)
    with httpx.Client() as client:
        found.append(client.get(SITE + "/bytes").content)
        found.append(client.get(SITE + "/missing").status_code)
    return found

def everything():
    random.random(), time.time()
    return [
        ask("one"), stream("two"), site(),
        [each.choices[0].message.content for each in asyncio.run(ask_all(["three", "four"]))],
    ]
"""

TESTS = """
import json, os, pathlib
import pytest, vcr
import agent

SAID = pathlib.Path(__file__).parent / "said.json"

@pytest.mark.skipif("RECORD" not in os.environ, reason="it is there")
def test_recorded_by_vcr():
    name = "test_agent/test_everything." + os.environ["RECORD"]
    with vcr.use_cassette(
        f"cassettes/{name}", serializer=os.environ["RECORD"],
    ):
        SAID.write_text(repr(agent.everything()))

@pytest.mark.replay
def test_everything():
    assert repr(agent.everything()) == SAID.read_text()

@pytest.mark.replay("recordings/test_agent/test_everything.replay")
def test_another_prompt():
    agent.ask("something else")

@pytest.mark.replay("recordings/test_agent/test_everything.replay")
def test_another_address():
    import requests
    requests.get(agent.SITE + "/unknown")
"""

PROGRAM = """\
import agent
print(agent.everything())
"""


UNREAD = """\
import agent, requests
answer = requests.get(agent.SITE + "/packed", stream=True)
print(answer.status_code)
answer.close()
"""
"""Reads no body, which the cassette holds whole."""


def _packed(handler: Handler) -> None:
    body = gzip.compress(json.dumps({"key": SECRET, "name": "Ada"}).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json", "set-cookie": f"sid={COOKIE}"}
    handler.send(body, headers=headers)


ROUTES = {
    "/packed": _packed,
    "/old": lambda handler: handler.send(b"", status=302, headers={"location": "/new"}),
    "/new": lambda handler: handler.send("Grüße".encode(), headers={"content-type": "text/plain; charset=utf-8"}),
    "/form": lambda handler: handler.send(b"got " + handler.body),
    "/bytes": lambda handler: handler.send(bytes(range(256)), headers={"content-type": "image/x-test"}),
    "/missing": lambda handler: handler.send(b"no", status=404),
}


TEXTS = {
    **ROUTES,
    "/packed": lambda handler: handler.send(b'{"name": "Ada"}', headers={"content-type": "application/json"}),
    "/bytes": lambda handler: handler.send(b"letters"),
}
"""The same without bytes, which vcrpy's JSON can't hold."""


def _record(folder: Path, provider: Provider, serializer: str) -> Shell:
    """A shell in a folder with a cassette that vcrpy has recorded of the agent; both servers are stopped then."""
    shell = open_shell(folder, provider)
    with RouteServer(TEXTS if serializer == "json" else ROUTES) as site:
        (folder / "agent.py").write_text(AGENT.format(site=site.url))
        (folder / "test_agent.py").write_text(TESTS)
        (folder / "program.py").write_text(PROGRAM)
        done = _pytest(shell, "-k", "recorded_by_vcr", RECORD=serializer)
        assert done.returncode == 0, done.stdout
    provider.stop()
    return shell


def _pytest(shell: Shell, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *OURS, *arguments]
    environ = {**shell.environ, **environ}
    return subprocess.run(command, cwd=shell.folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("serializer", ["yaml", "json"])
@pytest.mark.sampled(1)
def test_w6_a_test_replays_the_cassette_that_vcrpy_recorded(
    tmp_path: Path, provider: Provider, serializer: str
) -> None:
    """A marked test gets the cassette's answers: streams, concurrent calls, compressed bodies and redirects too."""
    shell = _record(tmp_path, provider, serializer)
    done = shell.spanreplay("import", f"cassettes/test_agent/test_everything.{serializer}")
    assert (done.returncode, done.stdout) == (0, "recordings/test_agent/test_everything.replay\n"), done.stderr
    assert "imported 9 requests of 1 cassette;" in done.stderr

    passed = _pytest(shell, "-k", "everything and not recorded", "--replay-report=reports")
    assert passed.returncode == 0, passed.stdout
    assert "the recording is incomplete, so not all of it was compared: imported from a cassette" in passed.stdout
    [report] = (tmp_path / "reports").iterdir()
    verdict = json.loads(report.read_text())
    assert (verdict["verdict"], verdict["reasons"], verdict["divergences"]) == ("incomplete", [LACKS], [])
    assert (verdict["counts"]["served"], verdict["counts"]["missing"]) == (9, 0)

    missed = _pytest(shell, "-k", "another")
    assert "2 failed" in missed.stdout
    assert "now      'something else'" in missed.stdout
    assert "/unknown" in missed.stdout

    strict = _pytest(shell, "-k", "everything and not recorded", "--replay-strict")
    assert "--replay-strict: the recording is incomplete" in strict.stdout


def test_w6_a_program_replays_a_cassette_and_the_verdict_says_what_it_lacks(tmp_path: Path, provider: Provider) -> None:
    """`spanreplay replay` serves a cassette to a program; its verdict is incomplete, and never identical."""
    shell = _record(tmp_path, provider, "yaml")
    shell.spanreplay("import", "cassettes/test_agent/test_everything.yaml", "-o", "run.replay")
    done = shell.spanreplay("replay", "run.replay", "--", "python", "program.py")
    assert done.returncode == 4, done.stderr
    assert done.stdout == (tmp_path / "said.json").read_text() + "\n"
    assert "incomplete" in done.stderr
    assert LACKS in " ".join(done.stderr.split())
    assert "identical" not in done.stderr

    (tmp_path / "program.py").write_text("import agent; agent.ask('one')")
    fewer = shell.spanreplay("replay", "run.replay", "--", "python", "program.py")
    assert fewer.returncode == 4
    assert "8 of the cassette's 9 requests were not made (calls 2, 3, 4, 6, 7, 8, 9, 10)" in fewer.stderr
    (tmp_path / "program.py").write_text("import agent; agent.ask('another')")
    other = shell.spanreplay("replay", "run.replay", "--", "python", "program.py")
    assert other.returncode == 3
    assert "now      'another'" in other.stderr
    (tmp_path / "program.py").write_text(UNREAD)
    unread = shell.spanreplay("replay", "run.replay", "--", "python", "program.py")
    assert (unread.returncode, unread.stdout) == (4, "200\n"), unread.stderr


def test_w6_secrets_of_a_cassette_are_redacted_while_it_is_imported(tmp_path: Path, provider: Provider) -> None:
    """Keys and cookies, which vcrpy stores in clear, are in no byte of the recording."""
    shell = _record(tmp_path, provider, "yaml")
    cassette = (tmp_path / "cassettes/test_agent/test_everything.yaml").read_text()
    assert COOKIE in cassette
    assert shell.environ["OPENAI_API_KEY"] in cassette
    shell.spanreplay("import", "cassettes/test_agent/test_everything.yaml", "-o", "run.replay")
    shell.spanreplay("import", "run.replay")
    shown = shell.spanreplay("export", "latest", "--jsonl", "-o", "-").stdout
    assert "set-cookie" in shown.lower()
    for secret in (SECRET, COOKIE, shell.environ["OPENAI_API_KEY"]):
        assert secret not in shown


WITH_TOOLS = """\
import sqlite3, subprocess, sys
import spanreplay, requests

@spanreplay.boundary("tool")
def look_up(path):
    with open("notes.txt", "w") as notes:
        notes.write("looked")
    with sqlite3.connect(":memory:") as db:
        [[number]] = db.execute("select 6 * 7").fetchall()
    return requests.get({site!r} + path).text, number, open("notes.txt").read()

print(look_up("/new"))
"""


def test_w6_code_between_the_requests_of_a_cassette_runs_in_the_sandbox(tmp_path: Path, provider: Provider) -> None:
    """Tools and databases, which a cassette doesn't have, run as code; files that they write are the replay's own."""
    shell = _record(tmp_path, provider, "yaml")
    site = re.search(r"SITE = '(.*)'", (tmp_path / "agent.py").read_text())
    assert site is not None
    (tmp_path / "one.json").write_text(json.dumps({"version": 1, "interactions": [{
        "request": {"method": "GET", "uri": f"{site[1]}/new", "headers": {}, "body": None},
        "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": "Ada"}},
    }]}))  # fmt: skip
    (tmp_path / "program.py").write_text(WITH_TOOLS.format(site=site[1]))
    assert shell.spanreplay("import", "one.json").stdout == "one.replay\n"
    done = shell.spanreplay("replay", "one.replay", "--", "python", "program.py")
    assert (done.returncode, done.stdout) == (4, "('Ada', 42, 'looked')\n"), done.stderr
    assert not (tmp_path / "notes.txt").exists()
