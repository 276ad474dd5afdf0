"""Streamlit: requests and the websocket session of a browser's tab replay alone, beside threads that never end."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import Recording
from support.agents import ENVIRONMENTS, has_distribution
from support.ports import free_port
from support.provider import Provider
from support.replaying import TIMEOUT_S, Replayed, Workplace
from support.units import Server, path_of, serve_with

PYTHON: Final = ENVIRONMENTS["gradio"]
APP: Final = """
import uuid

import streamlit as st
from openai import OpenAI

client = OpenAI()

def ask(text):
    answer = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content

if "greeting" not in st.session_state:
    st.session_state.greeting = ask("hello")
st.text(st.session_state.greeting)
st.text(uuid.uuid4().hex)
if st.button("Ask"):
    st.text(ask("more"))
"""
BROWSER: Final = """
import asyncio, sys, urllib.request

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

port = sys.argv[1]

async def run_script(tab, *clicked):
    asked = BackMsg()
    asked.rerun_script.query_string = ""
    for button in clicked:
        widget = asked.rerun_script.widget_states.widgets.add()
        widget.id, widget.trigger_value = button, True
    await tab.send(asked.SerializeToString())
    buttons = []
    while True:
        message = ForwardMsg()
        message.ParseFromString(await tab.recv())
        if message.WhichOneof("type") == "script_finished":
            return buttons
        element = message.delta.new_element
        if element.HasField("text"):
            print(element.text.body)
        if element.HasField("button"):
            buttons.append(element.button.id)

async def main():
    async with websockets.connect(f"ws://127.0.0.1:{port}/_stcore/stream", subprotocols=["streamlit"]) as tab:
        (button,) = await run_script(tab)
        await run_script(tab, button)

urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
asyncio.run(main())
"""
"""A browser's tab: the page, the first load of the app, a click; prints the texts that are shown."""


@pytest.fixture
def workplace(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with an app and a client that talks to it as a browser does."""
    if not PYTHON.exists() or not has_distribution(PYTHON, "streamlit"):
        pytest.skip(f"no {PYTHON} with streamlit: tools/agents.sh builds it")
    made = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"}, PYTHON)
    made.write("app.py", APP)
    made.write("browser.py", BROWSER)
    return made


def command(port: int) -> tuple[str, ...]:
    """The arguments of the server's command."""
    options = {"port": port, "headless": "true", "address": "127.0.0.1"}
    told = [text for name, value in options.items() for text in (f"--server.{name}", str(value))]
    return ("run", "app.py", *told, "--browser.gatherUsageStats", "false")


def record(workplace: Workplace, port: int) -> tuple[Server, list[str]]:
    """Serve the app, use it in a tab and stop it; return the server, and the texts that the tab shows."""
    with serve_with(workplace, port, "-m", "streamlit", *command(port)) as server:
        browser = (str(PYTHON), str(workplace.path / "browser.py"), str(port))
        shown = subprocess.run(browser, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        server.await_ends()
        server.stop()
    return server, shown.stdout.splitlines()


def replay(workplace: Workplace, unit: Recording, port: int) -> Replayed:
    """Replay a unit with the command that was recorded."""
    return workplace.replay("-m", "streamlit", *command(port), source=unit.run_id)


@pytest.mark.slow
def test_p2_p3_a_session_of_an_app_replays_beside_threads_that_never_end(
    provider: Provider, workplace: Workplace
) -> None:
    """The page and the session, with a model call at load and one of a click, end without provider and browser."""
    port = free_port()
    server, shown = record(workplace, port)
    units = {path_of(unit): unit for unit in server.units()}
    page, session = units["/"], units["/_stcore/stream"]
    asked = [call for call in session.calls if call.kind == "llm"]
    assert len(asked) == 2
    assert shown[0] in asked[0].response
    assert shown[-1] in asked[1].response
    provider.stop()
    for unit in (page, session):
        replayed = replay(workplace, unit, port)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    workplace.write("app.py", APP.replace("more", "much more"))
    replayed = replay(workplace, session, port)
    assert replayed.verdict["verdict"] == "diverged", replayed.stderr
    assert replayed.verdict["divergences"][0]["boundary"] == "llm:openai.chat.completions"
