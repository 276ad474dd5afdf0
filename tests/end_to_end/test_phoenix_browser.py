"""The whole path with the real Phoenix in the real Chromium: record, ship, view, replay, see the verdict."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import AGENTS, without_instrumentors
from support.browser import find_chromium, open_page
from support.provider import Provider
from support.replaying import BIN, Workplace
from support.up_server import UpServer, start_up

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.phoenix]
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpServer]:
    """One `spanreplay up` with Phoenix for all tests in this module."""
    server = start_up(tmp_path_factory.mktemp("up"), phoenix=True)
    yield server
    server.stop()


@pytest.fixture
def shipped(provider: Provider, workplace: Workplace, up: UpServer) -> Workplace:
    """A directory whose agents ship to the collector and replay from the service."""
    workplace.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = up.otlp_endpoint
    workplace.environ["SPANREPLAY_ENDPOINT"] = up.endpoint
    return workplace


def cli(workplace: Workplace, *args: str) -> str:
    """Run a spanreplay command that must succeed; return its standard output."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), *args],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for_annotation(up: UpServer, project: str, name: str) -> dict[str, object]:
    """The first annotation with that name in a Phoenix project; wait until it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            url = f"{up.phoenix_url}/v1/projects/{project}/spans"
            with urllib.request.urlopen(url, timeout=30) as answer:
                ids = [s["context"]["span_id"] for s in json.load(answer)["data"]]
            query = "&".join(f"span_ids={i}" for i in ids)
            url = f"{up.phoenix_url}/v1/projects/{project}/span_annotations?{query}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                for annotation in json.load(answer)["data"]:
                    if annotation["name"] == name:
                        return dict(annotation)
        except OSError:
            pass
        time.sleep(0.5)  # polling with a deadline: Phoenix ingests annotations asynchronously
    raise AssertionError(f"no {name} in {project}")


def test_u2_deep_link_shows_messages_and_verdict(shipped: Workplace, up: UpServer, provider: Provider) -> None:
    """The deep link of `show` opens the LLM span with its messages; the replay's verdict is on the run's root span."""
    # Without other instrumentors, the messages can only come from our own span
    shipped.environ.update(without_instrumentors())
    recorded = shipped.record(AGENTS / "openai_agent.py", "tools")
    provider.stop()
    run = next(r for r in json.loads(cli(shipped, "ls", "--json")) if r["app"] == "openai_agent")
    replayed = shipped.replay(AGENTS / "openai_agent.py", "tools", source=run["run_id"])
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    annotation = wait_for_annotation(up, "openai_agent", "replay.verdict")
    assert annotation["result"]["label"] == "identical"  # type: ignore[index]  # JSON
    shown = json.loads(cli(shipped, "show", run["run_id"], "--json"))
    call = next(c for c in shown["calls"] if c["kind"] == "llm" and c["seq"] > 1)
    picture = shipped.path / "phoenix.png"
    with open_page(shipped.path / "profile") as page:
        page.goto(call["phoenix"], wait_until="domcontentloaded", timeout=60_000)
        page.get_by_text("You are terse.").first.wait_for(timeout=60_000)
        page.locator("text=Tool Result >> visible=true").first.wait_for(timeout=60_000)
        page.screenshot(path=str(picture))
        page.goto(shown["run"]["phoenix"], wait_until="domcontentloaded", timeout=60_000)
        page.locator("text=identical >> visible=true").first.wait_for(timeout=60_000)
        page.screenshot(path=str(shipped.path / "verdict.png"))
    assert picture.stat().st_size > 20_000


def test_u2_run_is_one_trace_with_llm_and_tool_spans(shipped: Workplace, up: UpServer) -> None:
    """A recorded run is one Phoenix trace: a root, LLM spans with messages, TOOL spans, tokens counted once."""
    shipped.record(AGENTS / "langgraph_agent.py", "parallel", SPANREPLAY_APP="one-trace")
    deadline = time.monotonic() + DEADLINE_S
    spans: list[dict[str, object]] = []
    while time.monotonic() < deadline and not any(s["span_kind"] == "AGENT" for s in spans):
        try:
            url = f"{up.phoenix_url}/v1/projects/one-trace/spans?limit=1000"
            with urllib.request.urlopen(url, timeout=30) as answer:
                spans = json.load(answer)["data"]
        except OSError:
            time.sleep(0.5)  # the project appears with its first span
    assert len({s["context"]["trace_id"] for s in spans}) == 1  # type: ignore[index]  # JSON
    kinds = [s["span_kind"] for s in spans]
    assert kinds.count("AGENT") == 1
    assert "LLM" in kinds
    assert kinds.count("TOOL") >= 5
    llm = [s["attributes"] for s in spans if s["span_kind"] == "LLM"]
    assert all("llm.input_messages.0.message.content" in a for a in llm)  # type: ignore[operator]  # JSON


RETRIEVING = """
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

class Handbook(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return [Document("The desk opens at nine."), Document("It closes at five.")]

print([found.page_content for found in Handbook().invoke("opening hours?")])
"""


def test_u2_retriever_span_shows_its_question_and_its_documents(shipped: Workplace, up: UpServer) -> None:
    """The deep link of a retriever's call opens a RETRIEVER span with the query and each document's text."""
    shipped.environ.update(without_instrumentors())
    shipped.record(shipped.write("retrieving.py", RETRIEVING))
    run = next(r for r in json.loads(cli(shipped, "ls", "--json")) if r["app"] == "retrieving")
    (call,) = json.loads(cli(shipped, "show", run["run_id"], "--json"))["calls"]
    assert call["kind"] == "retriever"
    deadline = time.monotonic() + DEADLINE_S
    kinds: list[object] = []
    while "RETRIEVER" not in kinds and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{up.phoenix_url}/v1/projects/retrieving/spans", timeout=30) as answer:
                kinds = [span["span_kind"] for span in json.load(answer)["data"]]
        except OSError:
            time.sleep(0.5)  # the project appears with its first span
    with open_page(shipped.path / "profile") as page:
        page.goto(call["phoenix"], wait_until="domcontentloaded", timeout=60_000)
        for text in ("opening hours?", "The desk opens at nine.", "It closes at five."):
            page.locator(f"text={text} >> visible=true").first.wait_for(timeout=60_000)


def test_every_stored_file_is_free_of_the_api_key(shipped: Workplace, up: UpServer, provider: Provider) -> None:
    """No file of the agent's directory, the collector, the store or Phoenix contains the agent's API key."""
    key = "sk-proj-Qw3Er4Ty5Ui6Op7As8Df9Gh0Jk1Lz2Xc3Vb4Nm5"
    shipped.record(AGENTS / "openai_agent.py", "create", "tools", OPENAI_API_KEY=key, SPANREPLAY_APP="keyed")
    assert any(r["app"] == "keyed" for r in json.loads(cli(shipped, "ls", "--json")))
    folders: list[Path] = [shipped.path / ".spanreplay", up.data_dir]
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file()]
    assert len(files) > 10
    assert [str(p) for p in files if key.encode() in p.read_bytes()] == []


def test_c9_an_erased_run_is_shown_no_more(shipped: Workplace, up: UpServer) -> None:
    """Neither its calls nor its root span are in Phoenix afterwards."""
    shipped.record(AGENTS / "openai_agent.py", "tools", SPANREPLAY_APP="erased")
    url = f"{up.phoenix_url}/v1/projects/erased/spans"
    run_id = next(r["run_id"] for r in json.loads(cli(shipped, "ls", "--json")) if r["app"] == "erased")
    calls = json.loads(cli(shipped, "show", run_id, "--json"))["calls"]
    deadline = time.monotonic() + DEADLINE_S
    shown: list[object] = []
    while len(shown) <= len(calls) and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                shown = json.load(answer)["data"]
        except OSError:
            time.sleep(0.5)  # the project appears with its first span
    assert len(shown) > len(calls)
    assert cli(shipped, "erase", run_id, "--yes").split() == [run_id]
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert json.load(answer)["data"] == []


if not find_chromium():
    pytestmark.append(pytest.mark.skip(reason="no Chromium: apt-get install chromium"))
