"""Runs are found by the user and the session that the agent's telemetry, framework or requests name."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from spanreplay.recording.bundle import unpack
from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.spool import SpoolCatalog
from spanreplay_collector.store.store import Store
from support.replaying import BIN, Workplace
from support.stores import fresh_chdb_url

CALL: Final = """
import openai
def ask(**more):
    asked = [{"role": "user", "content": "hello"}]
    openai.OpenAI().chat.completions.create(model="gpt-4o", messages=asked, **more)
"""
SOURCES: Final = {
    "openinference": """
from openinference.instrumentation import using_session, using_user
with using_user("u-42"), using_session("s-7"):
    ask()
""",
    "baggage": """
from opentelemetry import baggage, context
carried = baggage.set_baggage("session.id", "s-7", baggage.set_baggage("enduser.id", "u-42"))
token = context.attach(carried)
ask()
""",
    "current-span": """
from opentelemetry import trace
with trace.get_tracer("app").start_as_current_span("request", attributes={"user.id": "u-42", "session.id": "s-7"}):
    ask()
""",
    "span-that-ended": """
from opentelemetry import trace
ask()
with trace.get_tracer("app").start_as_current_span("request") as span:
    span.set_attribute("enduser.id", "u-42")
    span.set_attribute("session.id", "s-7")
""",
    "openai": """
ask(user="u-42", metadata={"session_id": "s-7"})
""",
    "openai-safety-identifier": """
ask(safety_identifier="u-42", metadata={"session_id": "s-7"})
""",
    "anthropic": """
import anthropic
anthropic.Anthropic().messages.create(
    model="claude-sonnet-4-5", max_tokens=100, messages=[{"role": "user", "content": "hello"}],
    metadata={"user_id": "u-42"}, extra_body={"metadata": {"user_id": "u-42", "session_id": "s-7"}},
)
""",
    "langgraph": """
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
agent = create_react_agent(ChatOpenAI(model="gpt-4o"), tools=[], checkpointer=InMemorySaver())
told = {"configurable": {"thread_id": "s-7"}, "metadata": {"user_id": "u-42"}}
agent.invoke({"messages": [("user", "hello")]}, told)
""",
}


def listed(place: Workplace, *options: str, **environ: str) -> list[dict[str, object]]:
    """The output of `spanreplay ls --json`."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), "ls", "--json", *options],
        cwd=place.path, env={**place.environ, **environ}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.sampled(4)
def test_s19_a_run_is_found_by_the_user_that_it_works_for(workplace: Workplace, source: str) -> None:
    """`ls --user` and `--session` find the run; an explicit setting wins."""
    workplace.write("agent.py", CALL + source)
    workplace.record("agent.py")
    (found,) = listed(workplace, "--user", "u-42")
    assert (found["user_id"], found["session_id"]) == ("u-42", "s-7")
    assert listed(workplace, "--session", "s-7") == [found]
    assert listed(workplace, "--user", "u-43") == []
    workplace.record("agent.py", SPANREPLAY_USER_ID="desk", SPANREPLAY_SESSION_ID="night")
    assert [each["session_id"] for each in listed(workplace, "--user", "desk")] == ["night"]


@pytest.mark.parametrize("name", ["openinference", "span-that-ended"])
def test_s19_a_store_finds_the_run_by_its_user(workplace: Workplace, name: str) -> None:
    """A store that received the run finds it, even if the user became known after the first record was written."""
    workplace.write("agent.py", CALL + SOURCES[name])
    workplace.record("agent.py")
    catalog = SpoolCatalog(workplace.path / ".spanreplay")
    try:
        _, payloads = unpack(catalog.export(workplace.recording().run_id))
    finally:
        catalog.close()
    with Store.open(fresh_chdb_url()) as store:
        store.migrate()
        store.load("acme", payloads, "token")
        assert [s.root.session_id for s in store.search("acme", RunQuery(user_id="u-42"))] == ["s-7"]
        assert store.search("acme", RunQuery(user_id="u-43")) == []


SEVERAL: Final = """
from openinference.instrumentation import using_user
for user in ("u-1", "u-2", "u-3", "u-2"):
    with using_user(user):
        ask(user="hash-of-" + user)
"""


def test_s19_the_first_user_stays_and_others_are_counted(workplace: Workplace, tmp_path: Path) -> None:
    """A run of several users belongs to the first one, and `show` says that there were more."""
    workplace.write("agent.py", CALL + SEVERAL)
    workplace.record("agent.py")
    root = workplace.recording().root
    assert root.user_id == "u-1"
    assert root.manifest["others"] == {"user": 2}
    assert len(listed(workplace, "--user", "u-1")) == 1
    assert listed(workplace, "--user", "u-2") == []
    shown = subprocess.run(
        [str(BIN / "spanreplay"), "show", "latest"],
        cwd=tmp_path, env=workplace.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "user u-1 and 2 more" in shown.stdout


def test_s19_a_users_address_is_redacted_and_found(workplace: Workplace) -> None:
    """An e-mail address is a token in the recording, and still finds its runs."""
    workplace.write("agent.py", CALL + "ask(user='ada.lovelace@example.org')\n")
    workplace.record("agent.py")
    assert workplace.recording().root.user_id.startswith("rdx-")
    assert len(listed(workplace, "--user", "ada.lovelace@example.org")) == 1
    files = [file for file in (workplace.path / ".spanreplay").rglob("*") if file.is_file()]
    assert not [file for file in files if b"ada.lovelace@example.org" in file.read_bytes()]
