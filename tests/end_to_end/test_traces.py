"""A request that goes through several services: its runs are found by their W3C trace, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spanreplay.recording.bundle import unpack
from spanreplay.recording.catalog import RunQuery
from spanreplay.recording.spool import SpoolCatalog
from spanreplay_collector.store.store import Store
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace
from support.stores import fresh_chdb_url
from support.units import await_true, prepare, serve

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT: Final = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER: Final = "00-" + "0af7651916cd43dd8448eb211c80319c" + "-b7ad6b7169203331-01"
BACK: Final = """
from fastapi import FastAPI
from groq import Groq

app = FastAPI()

@app.get("/{text}")
def answer(text: str):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return {"reply": made.choices[0].message.content}
"""
FRONT: Final = """
import os
import httpx
from fastapi import FastAPI, Request
from opentelemetry import context, propagate

app = FastAPI()

@app.get("/{text}")
async def ask(text: str, request: Request):
    headers = {}
    propagate.inject(headers, propagate.extract(request.headers))
    async with httpx.AsyncClient(base_url=os.environ["BACK"], headers=headers, timeout=60) as client:
        replies = [(await client.get(f"/{text}-{number}")).json()["reply"] for number in (1, 2)]
    return {"replies": replies}
"""


@pytest.fixture
def services(provider: Provider, tmp_path: Path) -> dict[str, Workplace]:
    """Two services, each in its own folder, that record to the same place."""
    found = {}
    for name, source in (("back", BACK), ("front", FRONT)):
        (tmp_path / name).mkdir()
        place = prepare(tmp_path / name, provider, source)
        place.environ |= {"SPANREPLAY_DIR": str(tmp_path / "recordings"), "SPANREPLAY_APP": name}
        found[name] = place
    return found


def run_command(place: Workplace, *arguments: str) -> str:
    """The output of a `spanreplay` command."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), *arguments],
        cwd=place.path, env=place.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def list_trace(place: Workplace, trace: str) -> list[dict[str, Any]]:
    """The JSON of `spanreplay ls --trace --json`."""
    found: list[dict[str, Any]] = json.loads(run_command(place, "ls", "--json", "--trace", trace))
    return found


def test_p6_runs_of_a_trace_are_listed_in_order_over_services(services: dict[str, Workplace]) -> None:
    """`ls --trace` lists the runs in both services that one request went through, and no other request's."""
    back, front = services["back"], services["front"]
    with serve(back) as called, serve(front, BACK=called.url) as caller:
        for text, header in (("before", OTHER), ("hello", PARENT), ("after", "")):
            headers = {"traceparent": header} if header else {}
            httpx.get(f"{caller.url}/{text}", headers=headers, timeout=TIMEOUT_S).raise_for_status()
        caller.stop()
        called.stop()
    found = list_trace(front, TRACE)
    assert [(each["app"], each["status"]) for each in found] == [("front", "ok"), ("back", "ok"), ("back", "ok")]
    asked = [json.loads(run_command(front, "show", each["run_id"], "--json"))["calls"] for each in found]
    assert [calls[0]["response"]["value"]["path"] for calls in asked] == ["/hello", "/hello-1", "/hello-2"]
    assert list_trace(front, PARENT) == found
    assert len(list_trace(front, OTHER)) == 3
    own = found[1]["trace_id"]
    assert own != TRACE
    assert [each["run_id"] for each in list_trace(front, own)] == [found[1]["run_id"]]
    assert f", part of trace {TRACE}" in run_command(front, "show", found[0]["run_id"], "--no-pager")
    with Store.open(fresh_chdb_url()) as store:
        store.migrate()
        catalog = SpoolCatalog(Path(front.environ["SPANREPLAY_DIR"]))
        for summary in catalog.search(RunQuery(limit=100)):
            store.load("acme", unpack(catalog.export(summary.root.run_id))[1], summary.root.run_id)
        catalog.close()
        stored = store.search("acme", RunQuery(trace_id=TRACE))
    assert [summary.root.run_id for summary in reversed(stored)] == [each["run_id"] for each in found]


@pytest.mark.parametrize(
    "header", ["", "hello", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", f"ff-{TRACE}-00f067aa0ba902b7-01"]
)
def test_p6_a_header_that_names_no_trace_is_let_alone(header: str, services: dict[str, Workplace]) -> None:
    """An invalid `traceparent` from a client belongs to no trace; the request is served and recorded."""
    back = services["back"]
    with serve(back) as server:
        headers = {"traceparent": header} if header else {}
        httpx.get(f"{server.url}/hello", headers=headers, timeout=TIMEOUT_S).raise_for_status()
        await_true(lambda: [run.completeness().is_complete for run in _units(back)] == [True])
        server.stop()
    (unit,) = _units(back)
    assert "trace" not in unit.root.env["unit"]


def _units(place: Workplace) -> list[Any]:
    catalog = SpoolCatalog(Path(place.environ["SPANREPLAY_DIR"]))
    try:
        found = [summary.root.run_id for summary in catalog.search(RunQuery(app="back"))]
        loaded = [catalog.load(run_id) for run_id in found]
    finally:
        catalog.close()
    return [each for each in loaded if "unit" in each.root.env]


def test_p6_a_trace_that_is_none_is_refused(tmp_path: Path) -> None:
    """An invalid trace id gives one line that describes the format."""
    done = subprocess.run(
        [str(BIN / "spanreplay"), "ls", "--trace", "u-17"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'u-17' is not a trace id: 32 hexadecimal digits, or a traceparent header" in done.stderr


# ── replayed together ───────────────────────────────────────────────────────────────────────────────
def _record(services: dict[str, Workplace], provider: Provider) -> None:
    """One request answered by both services, which are then stopped, as is their provider."""
    back, front = services["back"], services["front"]
    with serve(back) as called, serve(front, BACK=called.url) as caller:
        headers = {"traceparent": PARENT}
        httpx.get(f"{caller.url}/hello", headers=headers, timeout=TIMEOUT_S).raise_for_status()
        called.await_ends()
        caller.stop()
        called.stop()
    provider.stop()


def _replay_trace(services: dict[str, Workplace], *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, report and standard error of `spanreplay trace`, run outside both services' folders."""
    place = services["front"]
    folder = place.path.parent
    told = [f"--service={name}={sys.executable} -m uvicorn app:app" for name in services]
    told += [f"--in={name}={name}" for name in services]
    done = subprocess.run(
        [str(BIN / "spanreplay"), "trace", TRACE, *(options or (*told, "--json", "report.json"))],
        cwd=folder, env=place.environ, capture_output=True, text=True, timeout=10 * TIMEOUT_S,
    )  # fmt: skip
    report = folder / "report.json"
    return done.returncode, json.loads(report.read_text()) if report.exists() else {}, done.stderr


def test_p4_p6_all_runs_of_a_trace_replay_from_one_command(services: dict[str, Workplace], provider: Provider) -> None:
    """The called services replay first; the caller then replays with the answer that a changed service gives now."""
    _record(services, provider)
    status, report, stderr = _replay_trace(services)
    assert status == 0, stderr
    assert report["verdict"] == "identical"
    runs = report["runs"]
    front = runs[2]["verdict"]["run_id"]
    assert [each["verdict"]["app"] for each in runs] == ["back", "back", "front"]
    assert [each["caller"] for each in runs] == [{"run_id": front, "call": 2}, {"run_id": front, "call": 3}, None]
    changed = BACK.replace(
        '"reply": made.choices[0].message.content', '"reply": made.choices[0].message.content.upper()'
    )
    services["back"].write("app.py", changed)
    status, report, stderr = _replay_trace(services)
    assert status == 3, stderr
    runs = report["runs"]
    assert [each["verdict"]["divergences"][0]["boundary"] for each in runs[:2]] == ["http:response"] * 2
    called = {number: runs[number - 2]["verdict"]["run_id"] for number in (2, 3)}
    assert runs[2]["given"] == [{"call": at, "run_id": run_id, "changed": ["body"]} for at, run_id in called.items()]
    first, *_, last = runs[2]["verdict"]["divergences"]
    assert first["cause"].startswith("set by the plan")
    assert last["boundary"] == "http:response"
    assert "OF THIS MODEL: " in json.dumps(last["diff"])


def test_p4_a_caller_has_the_recorded_answer_of_a_service_that_gives_none(
    services: dict[str, Workplace], provider: Provider
) -> None:
    """A changed call ends a service's replay before it answers: the report says so, and the other service continues."""
    _record(services, provider)
    services["back"].write("app.py", BACK.replace('"content": text', '"content": text + "!"'))
    status, report, stderr = _replay_trace(services)
    assert status == 3, stderr
    assert [each["verdict"]["verdict"] for each in report["runs"]] == ["diverged", "diverged", "identical"]
    assert "call 2 of front gets its recorded answer" in stderr


def test_p4_a_called_service_whose_own_calls_do_not_fit_is_named(
    services: dict[str, Workplace], provider: Provider
) -> None:
    """A changed incoming request makes the service ask its model something else: that call diverges, with a reason."""
    _record(services, provider)
    services["front"].write("app.py", FRONT.replace('f"/{text}-{number}"', 'f"/{text}-{number * number}"'))
    status, report, stderr = _replay_trace(services)
    assert status == 3, stderr
    first, second, front = report["runs"]
    assert [each["asked"] for each in report["runs"]] == [[], ["path"], []]
    assert (first["verdict"]["verdict"], front["given"]) == ("identical", [])
    found, *_ = second["verdict"]["divergences"]
    assert (found["kind"], found["boundary"]) == ("changed_call", "llm:openai.chat.completions")
    assert "the request of call 3 of front has changed: path" in [each["evidence"] for each in found["causes"]]
    assert "call 3 of front gets its recorded answer: there is no new one" in stderr
    assert front["verdict"]["divergences"][0]["boundary"].startswith("http:GET ")


def test_p4_a_trace_says_what_it_needs(services: dict[str, Workplace], provider: Provider) -> None:
    """Without a command for each application nothing is started: commands in a recording are never run."""
    _record(services, provider)
    status, _, stderr = _replay_trace(services, f"--service=back={sys.executable} -m uvicorn app:app")
    assert status == 2
    assert "say how it is started: --service front=CMD" in stderr
    status, _, stderr = _replay_trace(services, "--service=shop=python app.py")
    assert status == 2
    assert "the trace has no run of 'shop'" in stderr
    done = subprocess.run(
        [str(BIN / "spanreplay"), "trace", "0" * 31 + "1", "--service=front=python app.py"],
        cwd=services["front"].path, env=services["front"].environ, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"no runs of trace {'0' * 31}1 here" in done.stderr
