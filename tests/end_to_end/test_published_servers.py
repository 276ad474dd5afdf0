"""MCP reference servers from PyPI: each served tool call is a run that replays alone."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from support.agents import ENVIRONMENTS
from support.replaying import TIMEOUT_S, Workplace
from support.workers import units_of

PYTHON: Final = ENVIRONMENTS["mcp-servers"]
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="tools/agents.sh makes .venvs/mcp-servers")

Calls = tuple[tuple[str, dict[str, Any]], ...]


def _serve(place: Workplace, command: list[str], calls: Calls) -> list[str]:
    """Call a recorded server and return its answers, one text per call."""
    script = str(PYTHON.parent / "opentelemetry-instrument")
    server = StdioServerParameters(
        command=script, args=[str(PYTHON), *command], cwd=place.path, env=dict(place.environ)
    )

    async def use() -> list[str]:
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            return [str((await session.call_tool(name, given)).content) for name, given in calls]

    return asyncio.run(asyncio.wait_for(use(), TIMEOUT_S))


def test_p10_a_published_server_of_the_time_tells_the_recorded_time(tmp_path: Path) -> None:
    """With mcp-server-time, the clock is recorded, and the answers are compared."""
    place = Workplace(tmp_path, {"HOME": str(tmp_path)}, PYTHON)
    command = [str(PYTHON.parent / "mcp-server-time"), "--local-timezone", "UTC"]
    zones: Calls = tuple(("get_current_time", {"timezone": zone}) for zone in ("Europe/Berlin", "Asia/Tokyo"))
    answers = _serve(place, command, zones)
    units = units_of(place)
    assert len(units) == len(answers) == len(zones)
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*command, source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr


def test_p10_a_published_server_of_git_changes_nothing_in_a_replay(tmp_path: Path) -> None:
    """With mcp-server-git, a replay neither stages nor commits, and calls are identical after a reset."""
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*arguments: str) -> str:
        own = ("-c", "user.name=ann", "-c", "user.email=ann@example.com")
        done = subprocess.run(["git", *own, *arguments], cwd=repository, check=True, capture_output=True, text=True)
        return done.stdout

    git("init", "-q")
    (repository / "first.txt").write_text("first\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (repository / "second.txt").write_text("second\n")
    place = Workplace(tmp_path, {"HOME": str(tmp_path)}, PYTHON)
    command = [str(PYTHON.parent / "mcp-server-git"), "--repository", str(repository)]
    where = {"repo_path": str(repository)}
    added = ("git_add", {**where, "files": ["second.txt"]})
    commits: Calls = (("git_commit", {**where, "message": "second"}), ("git_log", where))
    answers = _serve(place, command, (("git_status", where), added, ("git_diff_staged", where), *commits))
    assert "Untracked files" in answers[0]
    assert "second" in answers[-1]
    assert git("log", "--format=%s") == "second\nfirst\n"
    units = units_of(place)
    assert [unit.root.app for unit in units] == ["git_status", "git_add", "git_diff_staged", "git_commit", "git_log"]
    git("reset", "-q", "HEAD~1")
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*command, source=unit.run_id)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert git("diff", "--cached", "--name-only") == ""
    assert git("log", "--format=%s") == "first\n"
