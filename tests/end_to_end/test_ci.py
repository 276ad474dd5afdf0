"""CI uses a recorded run: it fetches the run with a generated client and replays it against each commit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.provider import Provider
from support.replaying import BIN, Workplace
from support.repository import check_out, clone, commit
from support.up_server import UpServer, start_up

GOOD = """
import sqlite3
from langchain_core.tools import tool
from groq import Groq

PROMPT = "You refund at most $50 without asking a person."

@tool
def refund(order_id: str, amount: float) -> str:
    '''Pay money back.'''
    with sqlite3.connect("payments.db") as db:
        db.execute("CREATE TABLE IF NOT EXISTS refunds (order_id TEXT, amount REAL)")
        db.execute("INSERT INTO refunds VALUES (?, ?)", (order_id, amount))
    return f"refunded {amount}"

messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": "The cup from A-7 came broken, $12."}]
answer = Groq().chat.completions.create(model="gpt-x", messages=messages, temperature=0.7)
print(answer.choices[0].message.content)
print(refund.invoke({"order_id": "A-7", "amount": 12.0}))
"""
BAD = GOOD.replace("at most $50 without asking a person", "whatever the customer asks for")
FIXED = GOOD.replace("import sqlite3\n", "import sqlite3  # the prompt is as it was; so is what it does\n")

# All that a CI script needs: grpcio and the two generated modules.
GENERATED_CLIENT = """
import json, sys
import grpc
from spanreplay.v1 import replay_pb2, replay_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = replay_pb2_grpc.ReplayStub(channel)
    for answer in stub.ReplayRun(replay_pb2.ReplayRunRequest(run_id=sys.argv[2]), timeout=30):
        kind = answer.WhichOneof("event")
        if kind == "manifest":
            run = answer.manifest
            print(json.dumps([kind, run.run_id, run.app, json.loads(run.manifest)["calls"]]))
        elif kind == "batch":
            print(json.dumps([kind, [[c.kind, c.name, c.outcome] for c in answer.batch.calls]]))
        else:
            print(json.dumps([kind, answer.end.calls]))
"""


@dataclass(frozen=True)
class Released:
    """A service that holds a run, the repository where it was recorded, and its commits."""

    server: UpServer
    run_id: str
    stdout: str
    environ: dict[str, str]
    repository: Path
    commits: dict[str, str]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Released]:
    """The good commit ran in production, which ships to the service; a bad commit and a fix followed."""
    path = tmp_path_factory.mktemp("production")
    with start_up(tmp_path_factory.mktemp("up")) as server:
        with Provider() as provider:
            environ = provider.environ()
            workplace = Workplace(path, environ)
            agent = workplace.write("agent.py", GOOD)
            commits = {"good": commit(path, "good")}
            recorded = workplace.record(agent.name)
            run_id = workplace.recording().run_id
            shipped = subprocess.run(
                [str(BIN / "spanreplay"), "ship", "--endpoint", server.otlp_endpoint],
                cwd=path,
                env=workplace.environ,
                capture_output=True,
                text=True,
                check=False,
            )
            assert shipped.returncode == 0, shipped.stderr
            for name, source in (("bad", BAD), ("fix", FIXED)):
                workplace.write("agent.py", source)
                commits[name] = commit(path, name)
        yield Released(server, run_id, recorded.stdout, environ, path, commits)


@pytest.mark.slow
def test_u3_generated_client_gets_manifest_calls_and_end(released: Released, tmp_path: Path) -> None:
    """With grpcio and the generated modules alone, ReplayRun gives the manifest, the calls and the end."""
    script = tmp_path / "fetch.py"
    script.write_text(GENERATED_CLIENT)
    done = subprocess.run(
        [sys.executable, str(script), released.server.endpoint, released.run_id],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        ["manifest", released.run_id, "agent", 2],
        ["batch", [["llm", "openai.chat.completions", "ok"], ["tool", "refund", "ok"]]],
        ["end", 2],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "status"), [("good", 0), ("bad", 3), ("fix", 0)])
def test_u3_replay_from_the_service_judges_a_commit(name: str, status: int, released: Released, tmp_path: Path) -> None:
    """In a fresh clone with only SPANREPLAY_ENDPOINT set, the bad commit exits 3, the good one and the fix 0."""
    checkout = tmp_path / "checkout"
    clone(released.repository, checkout)
    check_out(checkout, released.commits[name])
    place = Workplace(checkout, {**released.environ, "SPANREPLAY_ENDPOINT": released.server.endpoint})
    replayed = place.replay("agent.py", source=released.run_id)
    assert replayed.status == status, replayed.stderr
    assert not (checkout / "payments.db").exists()
    assert replayed.verdict["sockets_denied"] == []
    if status == 0:
        assert replayed.stdout == released.stdout
        assert replayed.verdict["verdict"] == "identical"
        return
    assert replayed.causes() == [("changed_call", "llm:openai.chat.completions")]
    (diff,) = replayed.verdict["divergences"][0]["diff"]
    assert diff["path"] == "messages[0].content"
    assert "at most $50" in diff["recorded"]
    assert "whatever the customer asks for" in diff["now"]


@pytest.mark.slow
def test_u3_run_is_found_at_the_service_by_a_prefix(released: Released, tmp_path: Path) -> None:
    """CI may name a run by a prefix of its id; an unknown run is an error, not a verdict."""
    place = Workplace(tmp_path, {**released.environ, "SPANREPLAY_ENDPOINT": released.server.endpoint})
    place.write("agent.py", GOOD)
    assert place.replay("agent.py", source=released.run_id[:10]).status == 0
    assert place.replay("agent.py", source="fedcba9876").status == 1
