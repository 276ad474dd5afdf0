"""Gradio: each event that an app's queue processes is a separate run, found by its user, and replays alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import Recording
from support.agents import ENVIRONMENTS
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import Server, serve_with
from support.workers import output_of

PYTHON: Final = ENVIRONMENTS["gradio"]
APP: Final = """
import os

import gradio as gr
from openai import OpenAI

client = OpenAI()

def ask(text, asked):
    stream = client.chat.completions.create(
        model="gpt-x", stream=True, messages=[{"role": "user", "content": f"{len(asked)}: {text}"}]
    )
    answer = ""
    for chunk in stream:
        answer += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        yield answer, [*asked, text]

def fail(text):
    raise gr.Error(f"no such order: {text}")

with gr.Blocks() as demo:
    text, answer, asked = gr.Textbox(), gr.Textbox(), gr.State([])
    text.submit(ask, [text, asked], [answer, asked], api_name="ask")
    gr.Button().click(fail, [text], [answer], api_name="fail")

if __name__ == "__main__":
    demo.launch(server_port=int(os.environ["PORT"]), auth=("ann", "secret"), quiet=True)
"""
BROWSER: Final = """
import sys

from gradio_client import Client

client = Client(sys.argv[1], auth=("ann", "secret"), verbose=False)
for text in sys.argv[2:]:
    print(client.predict(text, api_name="/ask"))
try:
    client.predict("41", api_name="/fail")
except Exception as exc:
    print(type(exc).__name__)
"""


@pytest.fixture
def workplace(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with an app and a client that talks to it as a browser does."""
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON}: tools/agents.sh builds it")
    quiet = {"GRADIO_ANALYTICS_ENABLED": "False", "SPANREPLAY_GUARD": "production", "PORT": str(free_port())}
    made = Workplace(tmp_path, {**provider.environ(), **quiet}, PYTHON)
    made.write("app.py", APP)
    made.write("browser.py", BROWSER)
    return made


def record(workplace: Workplace, *texts: str) -> tuple[Server, str]:
    """Serve the app, query it and stop it; return the server, and the text that the browser shows."""
    with serve_with(workplace, int(workplace.environ["PORT"]), "app.py") as server:
        browser = (str(PYTHON), str(workplace.path / "browser.py"), server.url, *texts)
        shown = subprocess.run(
            browser, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=workplace.path
        )
        server.await_ends()
        server.stop()
    return server, shown.stdout


def events_of(server: Server) -> list[Recording]:
    """The runs of the events, oldest first."""
    return [unit for unit in server.units() if unit.calls[0].boundary == "compute:input"]


@pytest.mark.slow
def test_p2_p3_each_event_of_an_app_is_a_run_and_replays_alone(provider: Provider, workplace: Workplace) -> None:
    """The run has the user, the model call and every chunk sent to the browser; a changed prompt is named."""
    server, shown = record(workplace, "three apples", "two pears")
    first, second, failed = events_of(server)
    answers = shown.splitlines()
    assert answers[-1] == "AppError"
    for unit, answer in ((first, answers[0]), (second, answers[1])):
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert (unit.root.app, unit.root.user_id) == ("ask", "ann")
        assert [call.kind for call in unit.calls if call.kind == "llm"] == ["llm"]
        chunks = output_of(unit)["messages"]
        assert len(chunks) > 3
        assert chunks[-1]["output"]["data"][0] == answer
    assert first.root.session_id == second.root.session_id
    assert failed.root.outcome == "error"
    assert "no such order: 41" in json.dumps(output_of(failed))
    provider.stop()
    for unit in (first, failed):
        replayed = workplace.replay("app.py", source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    workplace.write("app.py", APP.replace("{len(asked)}: {text}", "{len(asked)}: {text}!"))
    replayed = workplace.replay("app.py", source=first.run_id)
    assert replayed.verdict["verdict"] == "diverged"
    assert replayed.verdict["divergences"][0]["boundary"] == "llm:openai.chat.completions"


@pytest.mark.slow
def test_p4_state_of_a_session_is_there_after_its_earlier_events(provider: Provider, workplace: Workplace) -> None:
    """The second event of a session needs state from the first: `--warm all` replays that one before it."""
    server, _ = record(workplace, "three apples", "two pears")
    second = events_of(server)[1]
    provider.stop()
    alone = workplace.replay("app.py", source=second.run_id, options=("--warm", "0"))
    assert alone.verdict["verdict"] == "diverged"
    assert "--warm all" in alone.stderr
    warm = workplace.replay("app.py", source=second.run_id, options=("--warm", "all"))
    assert warm.verdict["verdict"] == "identical", warm.stderr


@pytest.mark.slow
def test_n3_a_request_that_streams_results_of_events_is_incomplete(provider: Provider, workplace: Workplace) -> None:
    """Its content comes from other runs; the request that put the event into the queue is whole."""
    server, _ = record(workplace, "three apples")
    requests = [unit for unit in server.units() if unit.calls[0].boundary == "http:request"]
    found = {json.loads(unit.calls[0].response)["value"]["path"]: unit for unit in requests}
    assert found["/gradio_api/queue/join"].completeness().is_complete
    streaming = found["/gradio_api/queue/data"]
    (reason,) = streaming.completeness().reasons
    assert "results of Gradio's events" in reason
    provider.stop()
    replayed = workplace.replay("app.py", source=streaming.run_id)
    of_process = workplace.replay("app.py", source=server.the_process().run_id)
    assert of_process.verdict["verdict"] == "incomplete", of_process.stderr
    assert (replayed.status, replayed.verdict["verdict"]) == (4, "incomplete"), replayed.stderr
