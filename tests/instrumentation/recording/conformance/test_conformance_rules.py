"""The rules for spans of other languages: each one is broken by one change, and named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from spanreplay.cli.app import app
from spanreplay.cli.contract.conformance import load_cases
from spanreplay.recording.conformance.exported import gather_runs
from spanreplay.recording.conformance.finding import NAMES
from spanreplay.recording.conformance.rules import FINDINGS_MAX, RULES, judge
from spanreplay.recording.otlp.otlp import decode_attributes, encode_value
from spanreplay.recording.otlp.otlp_json import read_request, write_request

RUN = load_cases()["replays"][0]["run_id"]
OTHER = load_cases()["replays"][-1]["run_id"]
CHAT, REFUND, ROOT = 0, 1, 2
Change = Callable[[list[Span]], None]


def _request() -> ExportTraceServiceRequest:
    return read_request(json.loads(json.dumps(load_cases()["export"])))


def _spans(request: ExportTraceServiceRequest, run_id: str = RUN) -> list[Span]:
    spans = request.resource_spans[0].scope_spans[0].spans
    return [span for span in spans if decode_attributes(span.attributes)["spanreplay.run_id"] == run_id]


def _judge(change: Change, run_id: str = RUN) -> dict[str, set[str]]:
    """Change the spans of a run; return the broken rules, each with the attributes that its findings name."""
    request = _request()
    change(_spans(request, run_id))
    found: dict[str, set[str]] = {}
    for run in gather_runs([request]):
        for each in judge(run):
            if not each.is_kept:
                found.setdefault(each.rule.name, set()).update(finding.attribute for finding in each.findings)
    return found


def put(place: int, name: str, value: Any) -> Change:
    """Set one attribute of one span."""

    def change(spans: list[Span]) -> None:
        drop(place, name)(spans)
        spans[place].attributes.add(key=f"spanreplay.{name}", value=encode_value(value))

    return change


def drop(place: int, name: str) -> Change:
    """Remove one attribute of one span."""

    def change(spans: list[Span]) -> None:
        kept = [pair for pair in spans[place].attributes if pair.key != f"spanreplay.{name}"]
        del spans[place].attributes[:]
        spans[place].attributes.extend(kept)

    return change


def field(place: int, name: str, value: Any) -> Change:
    """Set one field of one span."""
    return lambda spans: setattr(spans[place], name, value)


def both(*changes: Change) -> Change:
    """Make several changes."""

    def change(spans: list[Span]) -> None:
        for each in changes:
            each(spans)

    return change


def remove(place: int) -> Change:
    """Export one span less: as an open one without anything of ours."""

    def change(spans: list[Span]) -> None:
        del spans[place].attributes[:]

    return change


SEAL = json.dumps({"calls": 2, "root": "0" * 64, "leaves": 2, "leaf_version": 2})
KEY = "spanreplay.key"
BROKEN: dict[str, tuple[Change, dict[str, set[str]]]] = {
    "schema: none": (drop(CHAT, "schema"), {"schema": {"spanreplay.schema"}}),
    "schema: newer": (put(CHAT, "schema", "2"), {"schema": {"spanreplay.schema"}}),
    "schema: a number": (put(ROOT, "schema", 1), {"schema": {"spanreplay.schema"}, "types": {"spanreplay.schema"}}),
    "run: none": (drop(CHAT, "run_id"), {"run": {"spanreplay.run_id"}}),
    "run: capital letters": (put(CHAT, "run_id", RUN.upper()), {"run": {"spanreplay.run_id"}}),
    "run: a random UUID": (put(CHAT, "run_id", RUN[:12] + "4" + RUN[13:]), {"run": {"spanreplay.run_id"}}),
    "names: misspelt": (put(CHAT, "responce", "{}"), {"names": {"spanreplay.responce"}}),
    "types: seq as text": (
        put(CHAT, "seq", "1"),
        {"types": {"spanreplay.seq"}, "clock": {"spanreplay.seq"}},
    ),
    "types: index as a float": (put(CHAT, "index", 0.0), {"types": {"spanreplay.index"}}),
    "types: a request that is no text": (
        put(CHAT, "request", {"a": 1}),
        {"types": {"spanreplay.request"}},
    ),
    "whole: attributes dropped": (field(CHAT, "dropped_attributes_count", 3), {"whole": {""}}),
    "whole: one id twice": (field(CHAT, "span_id", b"\0\0\0\1\0\0\0\2"), {"whole": {""}}),
    "whole: no id": (field(CHAT, "span_id", b""), {"whole": {""}}),
    "whole: not ended": (field(CHAT, "end_time_unix_nano", 0), {"whole": {""}}),
    "trace: another one": (field(CHAT, "trace_id", b"\7" * 16), {"trace": {""}}),
    "root: none": (remove(ROOT), {"root": {"spanreplay.kind"}}),
    "root: no app": (drop(ROOT, "app"), {"root": {"spanreplay.app"}}),
    "root: another seq": (put(ROOT, "seq", 9), {"root": {"spanreplay.seq"}}),
    "root: open": (put(ROOT, "outcome", "open"), {"root": {"spanreplay.outcome"}}),
    "manifest: none": (drop(ROOT, "manifest"), {"manifest": {"spanreplay.manifest"}}),
    "manifest: no count": (put(ROOT, "manifest", '{"lanes":{}}'), {"manifest": {"spanreplay.manifest"}}),
    "manifest: a call is not here": (remove(REFUND), {"manifest": {"spanreplay.manifest"}}),
    "manifest: a call too many": (put(ROOT, "manifest", '{"calls":1}'), {"manifest": {"spanreplay.manifest"}}),
    "complete: calls dropped": (
        put(ROOT, "manifest", '{"calls":2,"dropped":4}'),
        {"complete": {"spanreplay.manifest"}},
    ),
    "complete: holes": (
        put(ROOT, "manifest", '{"calls":2,"holes":["read /dev/random"]}'),
        {"complete": {"spanreplay.manifest"}},
    ),
    "kind: unknown": (put(REFUND, "kind", "function"), {"kind": {"spanreplay.kind"}, "key": {KEY}}),
    "kind: none": (drop(REFUND, "kind"), {"kind": {"spanreplay.kind"}, "key": {KEY}}),
    "name: none": (drop(REFUND, "name"), {"name": {"spanreplay.name"}, "key": {KEY}}),
    "effect: unknown": (put(REFUND, "effect", "delete"), {"effect": {"spanreplay.effect"}}),
    "effect: none": (drop(REFUND, "effect"), {"effect": {"spanreplay.effect"}}),
    "outcome: unknown": (put(REFUND, "outcome", "success"), {"outcome": {"spanreplay.outcome"}}),
    "outcome: open": (put(REFUND, "outcome", "open"), {"outcome": {"spanreplay.outcome"}}),
    "clock: no start": (drop(REFUND, "seq"), {"clock": {"spanreplay.seq"}}),
    "clock: from 0": (put(CHAT, "seq", 0), {"clock": {"spanreplay.seq"}}),
    "clock: no end": (drop(REFUND, "end_seq"), {"clock": {"spanreplay.end_seq"}}),
    "clock: ends before it starts": (put(REFUND, "end_seq", 1), {"clock": {"spanreplay.end_seq"}}),
    "clock: a value twice": (put(CHAT, "end_seq", 3), {"clock": {"spanreplay.seq"}}),
    "clock: joint with itself": (put(REFUND, "joint", 4), {"clock": {"spanreplay.joint"}}),
    "place: no lane": (drop(CHAT, "lane"), {"place": {"spanreplay.lane"}}),
    "place: index from 1": (put(CHAT, "index", 1), {"place": {"spanreplay.index"}}),
    "place: no index": (drop(CHAT, "index"), {"place": {"spanreplay.index"}}),
    "parent: itself": (put(REFUND, "parent", 3), {"parent": {"spanreplay.parent"}}),
    "parent: an end": (put(REFUND, "parent", 2), {"parent": {"spanreplay.parent"}}),
    "payload: no request": (drop(CHAT, "request"), {"payload": {"spanreplay.request"}}),
    "payload: a request that is not JSON": (put(CHAT, "request", "hello"), {"payload": {"spanreplay.request"}}),
    "payload: no response": (drop(CHAT, "response"), {"payload": {"spanreplay.response"}}),
    "payload: a response that is not JSON": (put(CHAT, "response", "{'a':1}"), {"payload": {"spanreplay.response"}}),
    "objects: meta is a list": (put(CHAT, "meta", "[]"), {"objects": {"spanreplay.meta"}}),
    "objects: env is not JSON": (put(ROOT, "env", "linux"), {"objects": {"spanreplay.env"}}),
    "objects: manifest is not JSON": (put(ROOT, "manifest", "2 calls"), {"objects": {"spanreplay.manifest"}}),
    "objects: clocks of texts": (put(CHAT, "clocks", '["2"]'), {"objects": {"spanreplay.clocks"}}),
    "objects: reads is an object": (put(CHAT, "reads", "{}"), {"objects": {"spanreplay.reads"}}),
    "key: none": (drop(CHAT, "key"), {"key": {KEY}}),
    "key: too short": (put(CHAT, "key", "abc"), {"key": {KEY}}),
    "key: of another request": (put(CHAT, "key", "0" * 64), {"key": {KEY}}),
    "key: the request has changed": (put(CHAT, "request", '{"model":"large"}'), {"key": {KEY}}),
    "key: no keyspec": (drop(CHAT, "keyspec"), {"key": {"spanreplay.keyspec"}}),
    "key: a keyspec without number": (put(CHAT, "keyspec", "request"), {"key": {"spanreplay.keyspec"}}),
    "seal: another root hash": (put(ROOT, "manifest", SEAL), {"seal": {"spanreplay.manifest"}}),
    "secrets: in a response": (
        put(CHAT, "response", json.dumps({"note": "use sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vX7zA9cE1gI3kM5oQ7s"})),
        {"secrets": {"spanreplay.response"}},
    ),
}


def test_n18_spans_of_the_cases_keep_every_rule() -> None:
    """Both runs that the cases hold conform: they are what an SDK may be compared with."""
    assert _judge(lambda spans: None) == {}


@pytest.mark.parametrize("name", BROKEN)
def test_n18_broken_rule_is_named(name: str) -> None:
    """One change breaks the rule that it is meant to break, names the attribute, and breaks no unrelated one."""
    change, expected = BROKEN[name]
    assert _judge(change) == expected


def test_n18_every_rule_is_broken_by_a_test() -> None:
    """No rule is there that nothing breaks, and each states what to do."""
    assert {name.partition(":")[0] for name in BROKEN} == {rule.name for rule in RULES}
    assert all(rule.promise and rule.fix for rule in RULES)


@pytest.mark.parametrize("run_id", [RUN, OTHER])
def test_n18_missing_attribute_is_found_on_every_span(run_id: str) -> None:
    """Without any one attribute a span is refused, unless the contract leaves it to the SDK."""
    optional = {"parent", "meta", "call_id", "env", "name of the root"}
    for place, span in enumerate(_spans(_request(), run_id)):
        attributes = decode_attributes(span.attributes)
        is_root = attributes["spanreplay.kind"] == "run"
        for full in attributes:
            name = full.removeprefix("spanreplay.")
            if name in optional or (is_root and name == "name") or (name == "response" and attributes[full] == ""):
                continue
            if name == "response" and attributes["spanreplay.outcome"] != "ok":
                continue
            found = _judge(drop(place, name), run_id)
            assert full in set().union(*found.values()), (place, full, found)


ODD: tuple[Any, ...] = (
    [],
    ["a"],
    {"a": 1},
    b"\xff",
    1.5,
    float("nan"),
    True,
    -(2**63),
    "",
    "\0",
    '{"a":1}',
    "[]",
    "[[]]",
    "1",
)


@pytest.mark.parametrize("place", [CHAT, REFUND, ROOT], ids=["chat", "refund", "root"])
@pytest.mark.parametrize("name", sorted(name for name in NAMES if name.startswith("spanreplay.")))
def test_n18_value_of_any_type_is_judged(place: int, name: str) -> None:
    """Whatever a stranger's SDK puts into an attribute, the suite names what is wrong, and never fails itself."""
    short = name.removeprefix("spanreplay.")
    for value in ODD:
        found = _judge(put(place, short, value))
        if isinstance(value, (list, dict, bytes)):
            assert name in found["types"], value


def test_n18_equal_requests_with_other_keys_are_found() -> None:
    """A keyspec of one's own is free to leave fields out, and still gives equal requests one key."""

    def own(spans: list[Span]) -> None:
        for place, key in ((3, "a"), (4, "b")):
            put(place, "keyspec", "acme/1")(spans)
            put(place, "key", key * 64)(spans)

    assert _judge(own, OTHER) == {"key": {KEY}}
    assert _judge(both(own, put(4, "key", "a" * 64)), OTHER) == {}


def test_n18_span_exported_at_its_start_and_at_its_end_counts_once() -> None:
    """A call that was also exported when it started, which a crash would leave behind, is one call."""
    request = _request()
    spans = request.resource_spans[0].scope_spans[0].spans
    ended = _spans(request)[REFUND]
    start = spans.add()
    start.CopyFrom(ended)
    put(0, "outcome", "open")([start])
    drop(0, "response")([start])
    drop(0, "end_seq")([start])
    assert all(each.is_kept for run in gather_runs([request]) for each in judge(run))


def test_n18_page_describes_every_rule_and_attribute() -> None:
    """Whoever writes an SDK finds each rule and each attribute of the contract on the page."""
    page = (Path(__file__).resolve().parents[4] / "docs" / "other-languages.md").read_text(encoding="utf-8")
    assert [name for name in (*NAMES, *(rule.name for rule in RULES)) if f"`{name}`" not in page] == []
    assert f"1 of {len(RULES)} rules" in page


def test_n18_findings_have_a_limit() -> None:
    """A rule that is broken everywhere lists some places and counts the others."""
    request = _request()
    spans = request.resource_spans[0].scope_spans[0].spans
    template = _spans(request)[CHAT]
    for number in range(50):
        extra = spans.add()
        extra.CopyFrom(template)
        extra.span_id = (1000 + number).to_bytes(8, "big")
        drop(0, "effect")([extra])
    judged = {each.rule.name: each for run in gather_runs([request]) for each in judge(run) if run.run_id == RUN}
    assert (len(judged["effect"].findings), judged["effect"].more) == (FINDINGS_MAX, 50 - FINDINGS_MAX)


# ── The command ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, list(words), prog_name="spanreplay")


@pytest.mark.parametrize("form", ["json", "lines", "protobuf"])
def test_n18_u8_every_form_of_an_export_is_judged(form: str, invoke: Callable[..., Result]) -> None:
    """OTLP/JSON as one document or one a line (here with a request sent again) and protobuf give one result."""
    request = _request()
    put(REFUND, "effect", "delete")(_spans(request))
    text = json.dumps(write_request(request))
    content = request.SerializeToString() if form == "protobuf" else text.encode()
    Path("spans.json").write_bytes(content + b"\n" + content if form == "lines" else content)
    result = invoke("conformance", "spans.json", "--json")
    assert result.exit_code == 3
    runs = {run["run_id"]: run for run in json.loads(result.stdout)["runs"]}
    assert (runs[RUN]["is_replayable"], runs[OTHER]["is_replayable"]) == (False, True)
    broken = {rule["rule"]: rule for rule in runs[RUN]["rules"] if not rule["is_kept"]}
    assert set(broken) == {"effect"}
    assert broken["effect"]["findings"][0] == {
        "where": "span 0000000100000002 (tool:refund)",
        "attribute": "spanreplay.effect",
        "what": "'delete'",
    }
    assert broken["effect"]["fix"] == "use pure, read, write or irreversible"


def test_n18_broken_rules_are_told_in_words(invoke: Callable[..., Result]) -> None:
    """The text names the rule, the span, what is there and what to do; runs that conform are said to."""
    request = _request()
    put(REFUND, "effect", "delete")(_spans(request))
    Path("spans.pb").write_bytes(request.SerializeToString())
    result = invoke("conformance", "spans.pb")
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        f"failed  run {RUN}, 2 calls: 1 of {len(RULES)} rules are broken",
        "  effect: the effect of each call on the world is known",
        "    span 0000000100000002 (tool:refund): spanreplay.effect 'delete'",
        "    fix: use pure, read, write or irreversible",
        f"passed  run {OTHER}, 6 calls: all {len(RULES)} rules are kept",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x0a\xff", "is not OTLP"),
        (b'{"data": []}', "is not OTLP"),
        (b"[" * 100_000, "is not OTLP"),
        (b"", "has no span with an attribute spanreplay.*"),
    ],
    ids=["no protobuf", "other JSON", "deep JSON", "nothing"],
)
def test_n18_file_that_holds_no_spans_is_an_error(content: bytes, message: str, invoke: Callable[..., Result]) -> None:
    """What cannot be judged is an error that names the file, never a pass."""
    Path("spans.bin").write_bytes(content)
    result = invoke("conformance", "spans.bin")
    assert result.exit_code == 1
    assert "spans.bin" in result.stderr
    assert message in result.stderr


def test_n18_wrong_usage_of_the_suite_is_refused(invoke: Callable[..., Result]) -> None:
    """No run, a run beside --cases, and a file that is not there each get an answer."""
    assert invoke("conformance").exit_code == 2
    assert invoke("conformance", "--cases", "latest").exit_code == 2
    missing = invoke("conformance", "none.json")
    assert missing.exit_code == 1
    assert "no such file: none.json" in missing.stderr


def test_n18_our_own_recordings_keep_every_rule(tmp_path: Path, invoke: Callable[..., Result]) -> None:
    """What Python records keeps the rules that others are asked to keep: tasks, threads, errors, cancelled calls."""
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    main = [sys.executable, "-c", "from spanreplay.cli import main; main()", "record", "--", sys.executable, "agent.py"]
    subprocess.run(main, cwd=tmp_path, check=True, capture_output=True)
    result = invoke("conformance", "latest", "--json")
    assert result.exit_code == 0, result.stdout
    (run,) = json.loads(result.stdout)["runs"]
    assert run["calls"] >= 21


AGENT = """
import asyncio, http.server, random, threading, time
import httpx
from spanreplay import boundary

@boundary("tool")
def add(a, b):
    return a + b

@boundary("compute")
def inner(n):
    return n * 2

@boundary("tool")
async def slow(n):
    await asyncio.sleep(0.001 * n)
    return {"n": inner(n)}

@boundary("tool")
def bad():
    raise ValueError("x")

@boundary("tool")
async def forever():
    await asyncio.sleep(1000)

async def main():
    task = asyncio.create_task(forever())
    print(await asyncio.gather(*(slow(n) for n in range(5))))
    task.cancel()

add(1, 2)
add(1, 2)
try:
    bad()
except ValueError:
    pass
asyncio.run(main())
threads = [threading.Thread(target=add, args=(n, 1)) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(time.time(), random.random())

class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for _ in range(5):
            self.wfile.write(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\\n\\n')
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\\n\\n")

    def log_message(self, *arguments):
        pass

served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=served.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{served.server_port}/v1/chat/completions"

async def ask(client, text):
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    async with client.stream("POST", url, json=body, headers={"authorization": "Bearer sk-secret-key"}) as answer:
        return [line async for line in answer.aiter_lines()]

async def ask_all():
    async with httpx.AsyncClient() as client:
        await asyncio.gather(*(ask(client, f"mail {n} to ada.l@customer.org") for n in range(4)))

asyncio.run(ask_all())
"""
