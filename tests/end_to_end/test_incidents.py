"""Six incidents of ordinary, unmodified agents are recorded completely and replayed without side effects."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from spanreplay.model.call import CallRecord, Recording
from spanreplay.recording.bundle import unpack
from spanreplay.recording.otlp.otlp import iter_spans
from spanreplay.recording.spool import SpoolCatalog
from support.agents import AGENTS, without_instrumentors
from support.provider import Provider
from support.replaying import Workplace

T = TypeVar("T")
INCIDENTS = AGENTS / "incidents"
MODEL = "llm:openai.chat.completions"


@dataclass(frozen=True)
class Incident:
    """One agent: where its damage shows, and its boundaries in order, each with its enclosing boundary."""

    harm: str
    tree: tuple[tuple[str, str], ...]
    errors: int = 0


CASES = {
    "trade": Incident("book.db", ((MODEL, ""), ("tool:get_quote", ""), ("tool:place_order", ""))),
    "refund": Incident(
        "payments.db",
        (
            *((MODEL, ""), ("retriever:Policies", ""), (MODEL, ""), ("tool:get_order", ""), (MODEL, "")),
            *(("tool:issue_refund", ""), ("tool:issue_refund", ""), (MODEL, "")),
        ),
    ),
    "invoice": Incident(
        "ledger.db",
        (
            *((MODEL, ""), ("tool:read_letter", ""), (MODEL, "")),
            *(("tool:pay_invoice", ""), ("tool:find_vendor", "tool:pay_invoice"), (MODEL, "")),
        ),
    ),
    "email": Incident(
        "outbox.jsonl",
        (("tool:write_draft", ""), (MODEL, "tool:write_draft"), (MODEL, ""), ("tool:send_mail", ""), (MODEL, "")),
    ),
    "payout": Incident("bank.db", ((MODEL, ""), ("tool:list_salaries", ""), *[("tool:pay_salary", "")] * 3), errors=1),
    "deletion": Incident(
        "accounts.db",
        ((MODEL, ""), ("tool:find_accounts", ""), (MODEL, ""), ("tool:delete_accounts", ""), (MODEL, "")),
    ),
}


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider that answers equal requests equally, so that runs can be compared."""
    with Provider(is_repeatable=True) as running:
        yield running


def _place(path: Path, provider: Provider, agent: str) -> Workplace:
    """A directory with an agent's code."""
    path.mkdir()
    for name in ("loop.py", f"{agent}_agent.py"):
        shutil.copy(INCIDENTS / name, path / name)
    return Workplace(path, {**provider.environ(), **without_instrumentors("openai")})


def _harm(file: Path) -> list[str]:
    """The damage that an agent did, as text."""
    if file.suffix != ".db":
        return file.read_text(encoding="utf-8").splitlines()
    with closing(sqlite3.connect(file)) as db:
        return list(db.iterdump())


def _with_catalog(workplace: Workplace, ask: Callable[[SpoolCatalog], T]) -> T:
    catalog = SpoolCatalog(workplace.path / ".spanreplay")
    try:
        return ask(catalog)
    finally:
        catalog.close()


def _load(workplace: Workplace, run_id: str) -> Recording:
    return _with_catalog(workplace, lambda catalog: catalog.load(run_id))


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _parents(workplace: Workplace, run_id: str) -> dict[str, str]:
    """The parent of every span of a run, including other instrumentors' spans."""
    _, payloads = unpack(_with_catalog(workplace, lambda catalog: catalog.export(run_id)))
    requests = [ExportTraceServiceRequest.FromString(payload) for payload in payloads]
    spans = [filed.span for request in requests for filed in iter_spans(request)]
    return {span.span_id.hex(): span.parent_span_id.hex() for span in spans}


def _assert_whole(recording: Recording, incident: Incident, parents: dict[str, str]) -> None:
    """Every boundary has its input, output, kind and parent."""
    assert recording.completeness().is_complete, recording.completeness().reasons
    by_span = {call.span_id: call for call in recording.calls}
    by_seq = {call.seq: call for call in recording.calls}
    tree = []
    for call in recording.calls:
        request, response = json.loads(call.request), json.loads(call.response)
        assert request.get("body") or request.get("arguments"), call
        assert response.get("chunks") or {"value", "error"} & set(response), call
        up = call.parent_span_id
        while up not in by_span and up != recording.root.span_id:
            up = parents[up]  # a span of another instrumentor lies between
        above = by_span.get(up)
        assert above is by_seq.get(call.parent)
        tree.append((call.boundary, above.boundary if above is not None else ""))
        assert call.boundary.partition(":")[0] == call.kind
        assert "_agent.py" in call.code or "loop.py" in call.code
    assert tuple(tree) == incident.tree
    assert sum(call.outcome == "error" for call in recording.calls) == incident.errors


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_s1_incident_is_recorded_whole_and_replays_harmless(name: str, provider: Provider, tmp_path: Path) -> None:
    """Recorded and unrecorded runs do the same; the recording has every boundary; the replay changes nothing."""
    incident, script = CASES[name], f"{name}_agent.py"
    off, on = _place(tmp_path / "off", provider, name), _place(tmp_path / "on", provider, name)
    plain = off.record(script, SPANREPLAY_MODE="off")
    recorded = on.record(script)
    assert not (off.path / ".spanreplay").exists()
    assert recorded.stdout == plain.stdout != ""
    assert recorded.stderr == plain.stderr
    assert _harm(on.path / incident.harm) == _harm(off.path / incident.harm) != []
    recording = on.recording()
    _assert_whole(recording, incident, _parents(on, recording.run_id))
    provider.stop()
    before = _hash(on.path / incident.harm)
    replayed = on.replay(script)
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    assert _hash(on.path / incident.harm) == before


# ── the test written after the trade incident ───────────────────────────────────────────────────────
NOTIONAL_MAX = 5_000.0


def _orders(calls: tuple[CallRecord, ...]) -> list[float]:
    """The notional of every order placed."""
    arguments = [json.loads(call.request)["arguments"] for call in calls if call.boundary == "tool:place_order"]
    return [each["quantity"] * each["price"] for each in arguments]


def _assert_capped(recording: Recording) -> None:
    """The test that would have caught it."""
    for notional in _orders(recording.calls):
        assert notional <= NOTIONAL_MAX, f"an order of ${notional:,.0f} where $1,000 were asked for"


@pytest.mark.slow
def test_s51_notional_cap_fails_on_the_bad_code_and_holds_on_the_fix(provider: Provider, tmp_path: Path) -> None:
    """HTTP 200 and a $190,000 order: a cap on the recorded arguments fails; the fix shows one difference and holds."""
    place = _place(tmp_path / "desk", provider, "trade")
    place.record("trade_agent.py")
    asked = len(provider.requests)
    provider.stop()
    bad = place.recording()
    assert [call.outcome for call in bad.calls] == ["ok"] * 3
    with pytest.raises(AssertionError, match=r"an order of \$190,000"):
        _assert_capped(bad)

    replay_of_bad = place.replay("trade_agent.py")
    assert replay_of_bad.verdict["verdict"] == "identical", replay_of_bad.stderr
    with pytest.raises(AssertionError, match=r"an order of \$190,000"):
        _assert_capped(_load(place, replay_of_bad.verdict["replay_run_id"]))

    source = (place.path / "trade_agent.py").read_text()
    place.write("trade_agent.py", source.replace('int(wish["dollars"])', 'int(wish["dollars"] // price)'))
    fixed = place.replay("trade_agent.py", options=["--live", "tool:*"])
    assert fixed.status == 3
    assert fixed.causes() == [("changed_call", "tool:place_order")]
    diff = fixed.verdict["divergences"][0]["diff"]
    assert [(d["path"], d["recorded"], d["now"]) for d in diff] == [("arguments.quantity", 1000, 5)]
    assert fixed.stdout == "filled 5 NVDA at 190.0\ndone True\n"
    _assert_capped(_load(place, fixed.verdict["replay_run_id"]))
    assert fixed.verdict["tokens"]["live"] == 0
    assert len(provider.requests) == asked
