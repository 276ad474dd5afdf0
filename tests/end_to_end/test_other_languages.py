"""An agent in TypeScript, without any code of ours: recorded over OTLP, judged, and replayed from the service."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf import json_format
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

import spanreplay.v1
from spanreplay.cli.app import app
from spanreplay.model.call import Recording
from spanreplay.recording.conformance.request_key import canonical_request, request_key
from spanreplay.recording.otlp.otlp import build_recording
from spanreplay.recording.otlp.otlp_json import read_request
from spanreplay.replayer.index import RecordingIndex
from spanreplay.v1 import replay_pb2 as pb
from spanreplay.v1 import replay_pb2_grpc
from support.node import MODULES, SCRIPTS, run_node
from support.up_server import UpServer, start_up

PROTO = str(Path(spanreplay.v1.__file__).with_name("replay.proto"))


def _load_cases() -> dict[str, Any]:
    result = CliRunner().invoke(app, ["conformance", "--cases"], prog_name="spanreplay")
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


CASES = _load_cases()
WIRE = [{name: case[name] for name in ("messages", "error") if name in case} for case in CASES["wire"]]
REPLAYS = [{name: case[name] for name in ("answers", "missing", "moved")} for case in CASES["replays"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpServer]:
    """A collector, a store and the replay service, as users start them."""
    with start_up(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def invoke(server: UpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """A command of ours that finds its runs at the service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPANREPLAY_ENDPOINT", server.endpoint)
    return lambda *words: CliRunner().invoke(app, list(words), prog_name="spanreplay")


@contextmanager
def _provider() -> Iterator[tuple[str, list[str]]]:
    """A model and a tool whose answers nobody can guess; yields its address and the answers that it gave."""
    given: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            # Bytes that a client which parses and writes JSON again would not reproduce
            answer = f'{{ "b":1.0,"path": "{self.path}", "secret-free":"🙂 {secrets.token_hex(4)}" }}'
            given.append(answer)
            body = answer.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", given
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def _record(server: UpServer, folder: Path) -> tuple[str, str, str]:
    """Record the agent; return its run, its output and the address of its provider, which is stopped."""
    with _provider() as (address, given):
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.otlp_endpoint, "PROVIDER": address}
        done = run_node("agent.js", "record", cwd=folder, environ=environ)
        assert done.stdout == "".join(f"{answer}\n" for answer in given)
        assert len(given) == 2
    return done.stderr.strip(), done.stdout, address


def test_n18_sdk_of_the_example_is_typescript(tmp_path: Path) -> None:
    """The recorder and replayer of these tests pass TypeScript's strict check, and would not with a wrong type."""
    compiler = str(MODULES / "typescript" / "bin" / "tsc")
    run_node(compiler, "-p", str(SCRIPTS), cwd=tmp_path)
    wrong = tmp_path / "wrong.ts"
    wrong.write_text("const seq: number = 'one';\nexport { seq };\n", encoding="utf-8")
    refused = run_node(compiler, "--noEmit", "--strict", str(wrong), cwd=tmp_path, is_checked=False)
    assert (refused.returncode, "TS2322" in refused.stdout) == (2, True)


def test_n18_u8_agent_in_typescript_is_recorded_judged_and_replayed(
    server: UpServer, invoke: Callable[..., Result], tmp_path: Path
) -> None:
    """Its run passes every rule, and with its provider stopped it answers the recorded bytes."""
    run_id, output, address = _record(server, tmp_path)
    judged = invoke("conformance", run_id, "--json")
    assert judged.exit_code == 0, judged.stdout
    (run,) = json.loads(judged.stdout)["runs"]
    assert (run["run_id"], run["calls"], run["is_replayable"]) == (run_id, 2, True)
    replayed = run_node(
        "agent.js", "replay", run_id, PROTO, server.endpoint, cwd=tmp_path, environ={"PROVIDER": address}
    )
    assert replayed.stdout == output
    assert json.loads(replayed.stderr) == {"verdict": "identical", "divergence": None, "missing": [], "moved": []}


def test_n18_u8_changed_request_of_typescript_is_named(server: UpServer, tmp_path: Path) -> None:
    """With another prompt the replay gets no answer and says which call differs; the provider is not asked."""
    run_id, _, _ = _record(server, tmp_path)
    with _provider() as (address, given):
        environ = {"PROVIDER": address, "PROMPT": "Which order is early?"}
        replayed = run_node(
            *("agent.js", "replay", run_id, PROTO, server.endpoint), cwd=tmp_path, environ=environ, is_checked=False
        )
    assert (replayed.returncode, replayed.stdout, given) == (3, "", [])
    report = json.loads(replayed.stderr)
    assert (report["verdict"], report["missing"]) == ("diverged", [2])
    assert (report["divergence"]["kind"], report["divergence"]["call"]) == ("changed_call", 1)
    assert "Which order is late?" in report["divergence"]["message"]
    assert "Which order is early?" in report["divergence"]["message"]


def test_u8_run_of_typescript_is_shown_exported_and_compared(
    server: UpServer, invoke: Callable[..., Result], tmp_path: Path
) -> None:
    """The commands that read runs read those of another language, and its file conforms, too."""
    runs = [_record(server, tmp_path)[0] for _ in range(2)]
    listed = {run["run_id"]: run for run in json.loads(invoke("ls", "--json").stdout)}
    assert [(listed[run]["app"], listed[run]["calls"], listed[run]["status"]) for run in runs] == [
        ("node-agent", 2, "ok")
    ] * 2
    shown = invoke("show", runs[0])
    assert shown.exit_code == 0
    assert "refund" in shown.stdout
    assert invoke("export", runs[0], "-o", "run.replay").exit_code == 0
    assert invoke("conformance", "run.replay").exit_code == 0
    compared = invoke("diff", *runs)
    assert compared.exit_code == 3, compared.output
    assert "chat" in compared.stdout


@pytest.mark.parametrize("command", ["replay", "fuzz", "mutate", "fork"])
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "service"])
def test_n18_run_of_another_language_is_not_started_here(
    command: str, is_file: bool, server: UpServer, invoke: Callable[..., Result], tmp_path: Path
) -> None:
    """A command that can only replay Python refuses such a run, and starts nothing: it would run live."""
    server.export(_export().SerializeToString())
    source = CASES["replays"][0]["run_id"]
    if is_file:
        assert invoke("export", source, "-o", "run.replay").exit_code == 0
    options = ["--at", "2"] if command == "fork" else []
    result = invoke(command, "run.replay" if is_file else source, *options, "--", "touch", str(tmp_path / "started"))
    assert result.exit_code == 1
    assert f"run {source} has calls whose keys are of 'request/1'" in result.stderr
    assert "docs/other-languages.md" in result.stderr
    assert not (tmp_path / "started").exists()


def test_n18_run_of_another_language_is_not_replayed_by_a_block(server: UpServer, tmp_path: Path) -> None:
    """`spanreplay.replay` refuses it too, instead of calling the program diverged."""
    server.export(_export().SerializeToString())
    source = CASES["replays"][0]["run_id"]
    program = f"import spanreplay\nwith spanreplay.replay({source!r}):\n    print('started')\n"
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "SPANREPLAY_ENDPOINT": server.endpoint}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "has calls whose keys are of 'request/1'" in done.stderr
    assert done.stdout == ""


def test_n18_node_client_plays_every_case(server: UpServer, tmp_path: Path) -> None:
    """A client made of replay.proto alone gets the stated keys, messages, errors and answers."""
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(CASES), encoding="utf-8")
    done = run_node("play.js", str(cases), PROTO, server.endpoint, server.otlp_endpoint, cwd=tmp_path)
    played = json.loads(done.stdout)
    assert played["keys"] == [case["key"] for case in CASES["keys"]]
    for wire in played["wire"]:
        if "error" in wire:
            code = next(each for each in grpc.StatusCode if each.value[0] == wire["error"]["code"])
            wire["error"] = _describe_error(code, base64.b64decode(wire["error"]["details"]))
    assert played["wire"] == WIRE
    assert played["replays"] == REPLAYS


def test_n18_python_client_gets_the_stated_messages(server: UpServer) -> None:
    """The service answers each case with exactly the messages, or the error, that the suite states."""
    server.export(_export().SerializeToString())
    found: list[dict[str, Any]] = []
    with grpc.insecure_channel(server.endpoint) as channel:
        stubs = {"Replay": replay_pb2_grpc.ReplayStub(channel), "Runs": replay_pb2_grpc.RunsStub(channel)}
        for case in CASES["wire"]:
            service, method = case["method"].split("/")
            request = json_format.ParseDict(case["request"], getattr(pb, f"{method}Request")())
            try:
                answer = getattr(stubs[service], method)(request)
                messages = list(answer) if method == "ReplayRun" else [answer]
            except grpc.RpcError as exc:
                call: Any = exc
                details = dict(call.trailing_metadata())["grpc-status-details-bin"]
                found.append({"error": _describe_error(call.code(), details)})
            else:
                as_json = [json_format.MessageToDict(each, preserving_proto_field_name=True) for each in messages]
                found.append({"messages": as_json})
    assert found == WIRE


def test_n18_keys_of_the_cases_are_those_of_their_keyspec() -> None:
    """Our own implementation of request/1 makes the keys that others are tested with."""
    made = []
    for case in CASES["keys"]:
        canonical = canonical_request(case["kind"], case["boundary"], case["request"])
        assert canonical is not None
        made.append(request_key(canonical))
    assert made == [case["key"] for case in CASES["keys"]]


@pytest.mark.parametrize("case", CASES["replays"], ids=lambda case: case["name"])
def test_n18_replayer_resolves_as_the_cases_state(case: dict[str, Any]) -> None:
    """The index of our own replays finds the recorded call, or the divergence, that others are tested with."""
    recording = build_recording([_export()], case["run_id"])
    played = _play(recording, case["calls"])
    assert played == {name: case[name] for name in ("answers", "missing", "moved")}


def _export() -> Any:
    return read_request(json.loads(json.dumps(CASES["export"])))


def _describe_error(code: grpc.StatusCode, details: bytes) -> dict[str, str]:
    info = ErrorInfo()
    assert Status.FromString(details).details[0].Unpack(info)
    return {"code": code.name, "domain": info.domain, "reason": info.reason}


def _play(recording: Recording, calls: list[dict[str, str]]) -> dict[str, Any]:
    """Resolve calls as a replay does, by the same index."""
    index = RecordingIndex(recording)
    answers: list[dict[str, Any]] = []
    moved = []
    counts: dict[tuple[str, str], int] = {}
    for call in calls:
        lane, boundary = call["lane"], f"{call['kind']}:{call['name']}"
        slot = (lane, boundary, counts.get((lane, boundary), 0))
        counts[(lane, boundary)] = slot[2] + 1
        canonical = canonical_request(call["kind"], call["name"], call["request"])
        assert canonical is not None
        key = request_key(canonical)
        found = index.find_exact(slot, key, call.get("call_id", ""))
        elsewhere = None if found else index.find_moved(slot, key)
        if elsewhere is not None and elsewhere.rival is not None:
            answers.append({"divergence": "ambiguous", "call": elsewhere.call.number})
            continue
        if elsewhere is not None:
            found = elsewhere.call
            moved.append(found.number)
        if found is not None:
            index.take(found)
            answers.append({"call": found.number, "outcome": found.outcome, "response": found.response})
            continue
        changed = index.find_in_slot(slot)
        if changed is not None:
            index.take(changed)
        kind = "extra_call" if changed is None else "changed_call"
        answers.append({"divergence": kind, "call": None if changed is None else changed.number})
    missing = [call.number for call in recording.calls if not index.is_used(call)]
    return {"answers": answers, "missing": missing, "moved": moved}
