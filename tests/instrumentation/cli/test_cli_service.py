"""The command line with a replay service: every command uses it when SPANREPLAY_ENDPOINT is set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model.call import RootRecord
from spanreplay_service.server import ServerSettings
from support.memory_store import MemoryStore
from support.provider import Provider
from support.service import serve
from support.shell import Shell, open_shell

PHOENIX = "http://127.0.0.1:6006"
COMMAND = ("--", "python", "agent.py", "0", "sell 1,000")


@dataclass
class Board:
    """Accepts verdicts as Phoenix would."""

    reported: list[tuple[str, str, str]] = field(default_factory=list)

    def forget(self, trace_ids: Sequence[str]) -> bool:
        """Remember which traces were removed."""
        self.forgotten = list(trace_ids)
        return True

    def report(self, *, root: RootRecord, replay_run_id: str, verdict: str, report: dict[str, Any]) -> str:
        """Remember a verdict."""
        assert report["verdict"] == verdict
        self.reported.append((root.run_id, replay_run_id, verdict))
        return f"{PHOENIX}/redirects/spans/{root.span_id}"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Board, str]]:
    """A shell with a service that holds one run; the provider and the local recording are gone."""
    folder = tmp_path_factory.mktemp("team")
    with Provider() as provider:
        shell = open_shell(folder, provider)
        assert shell.spanreplay("record", *COMMAND).returncode == 0
        assert shell.spanreplay("export", "latest", "-o", "run.replay").returncode == 0
    board = Board()
    with serve(MemoryStore(), ServerSettings(port=0, phoenix_url=PHOENIX), sink=board) as server:
        remote = Shell(folder, {**shell.environ, "SPANREPLAY_ENDPOINT": server.address, "SPANREPLAY_DIR": "elsewhere"})
        imported = remote.spanreplay("import", "run.replay")
        assert imported.returncode == 0, imported.stderr
        yield remote, board, imported.stdout.strip()


def test_u2_show_prints_deep_links_where_the_service_has_phoenix(team: tuple[Shell, Board, str]) -> None:
    """The tree prints the link of the run's page, a call that of its own."""
    shell, _, run_id = team
    assert [run["run_id"] for run in shell.runs()] == [run_id]
    shown = json.loads(shell.spanreplay("show", run_id[:13], "--json").stdout)
    root, call = shown["run"], shown["calls"][0]
    assert root["phoenix"] == f"{PHOENIX}/redirects/spans/{root['span_id']}"
    assert call["phoenix"] == f"{PHOENIX}/redirects/spans/{call['span_id']}"
    assert f"Phoenix {root['phoenix']}" in shell.spanreplay("show", run_id).stdout
    assert call["phoenix"] in shell.spanreplay("show", run_id, "--call", str(call["call"])).stdout


def test_u3_replay_against_a_service_is_identical_and_reported(team: tuple[Shell, Board, str]) -> None:
    """The run comes from the service, the verdict goes back to it, and its page is printed."""
    shell, board, run_id = team
    board.reported.clear()
    done = shell.spanreplay("replay", run_id, *COMMAND)
    assert done.returncode == 0, done.stderr
    assert [(r, v) for r, _, v in board.reported] == [(run_id, "identical")]
    assert f"Phoenix   {PHOENIX}/redirects/spans/" in done.stderr


def test_u3_replay_against_a_service_tells_a_bad_commit(team: tuple[Shell, Board, str], tmp_path: Path) -> None:
    """Changed code ends with 3, and the verdict is reported to the service."""
    shell, board, run_id = team
    board.reported.clear()
    done = shell.spanreplay("replay", run_id[:16], *COMMAND[:-1], "sell 1,000 shares")
    assert done.returncode == 3, done.stderr
    assert [(r, v) for r, _, v in board.reported] == [(run_id, "diverged")]
