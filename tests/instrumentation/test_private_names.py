"""A name that Python or a library no longer has disables one group of patches, and nothing else."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from typing import Any

import pytest

from spanreplay.cli.diagnose import FAIL, read_report
from support import private_names

TIMEOUT_S = 300
LOSABLE = {
    "spanreplay.seams.machine.processes.processes": {"tool:subprocess.echo"},
    "spanreplay.seams.machine.files.files": {"tool:lookup"},
    "spanreplay.seams.machine.databases.database": {
        "tool:sqlite3.commit",
        "tool:sqlite3.connect",
        "tool:sqlite3.execute",
    },
    "spanreplay.seams.transport.urllib": {"http:GET"},
}
"""Module of ours → the program's calls that are lost without it; without any other module none are lost."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of a recorded program with each name missing; the first is that with none missing."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SPANREPLAY_", "PYTEST_"))}
    command = [sys.executable, private_names.__file__, str(tmp_path_factory.mktemp("names"))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _boundaries(outcome: dict[str, Any]) -> set[str]:
    return {re.sub(r" 127\..*", "", name) for name in outcome["boundaries"]}


def test_n1_each_lack_leaves_the_agent_and_the_other_groups_alone(outcomes: list[dict[str, Any]]) -> None:
    """The program works as without us, and all calls but those of the affected group are recorded."""
    whole, *lacking = outcomes
    assert (whole["reasons"], whole["lines"], whole["failed"]) == ([], [], [])
    assert whole["said"] == whole["bare"]
    assert "concurrent.futures._base._yield_finished_futures" in {each["name"] for each in lacking}
    assert len({each["by"] for each in lacking}) > 15
    assert {f"{each['by']} {each['name']}": each["error"] for each in lacking if "error" in each} == {}
    for each in lacking:
        assert each["said"] == whole["said"], each
        assert _boundaries(whole) - _boundaries(each) <= LOSABLE.get(each["by"], set()), each
        assert sum(name == "tool:tool" for name in each["boundaries"]) == 8, each


def test_n1_each_lack_is_a_named_hole_and_a_line_of_the_doctor(outcomes: list[dict[str, Any]]) -> None:
    """Run, log and doctor name the group, the missing name, and the version of its library."""
    versions = {"python": f"Python {platform.python_version()}"}
    for each in outcomes[1:]:
        if not each["failures"]:  # looked up with a fallback
            assert (each["by"], each["reasons"], each["lines"]) == ("", [], []), each
            continue
        last = each["name"].rpartition(".")[2]
        report = {"run_id": "1", "seams": each["failed"], "failures": {}}
        findings = [finding for finding in read_report(report) if finding.level == FAIL]
        assert len(findings) == len(each["failed"]) == len(each["failures"]) > 0, each
        for row, found in zip(each["failed"], findings, strict=True):
            version = versions.get(row["library"], f"{row['library']} {row['version']}")
            assert last in row["reason"], each
            assert any(row["seam"] in said and version in said and last in said for said in each["reasons"]), each
            (line,) = [said for said in each["lines"] if said.startswith(row["seam"])]
            assert f"{version} is not as expected" in line, each
            assert last in line, each
            assert (row["seam"] in found.subject, last in found.message) == (True, True), each


def test_n1_lack_of_what_calls_use_later_is_seen_at_the_start(outcomes: list[dict[str, Any]]) -> None:
    """Names that are used in the agent's own calls are looked for at the start, so that no call of the agent fails."""
    named = {each["name"]: [row["seam"] for row in each["failed"]] for each in outcomes}
    assert named["Handle._context"] == ["steps of event loops"]
    assert named["Future._state"] == ["lanes of pools", "waits of threads"]
    assert named["ThreadPoolExecutor._threads"] == ["workers of pools"]
    assert named["SynchronousMultiSpanProcessor._span_processors"] == ["exporters that the environment names"]
    assert named["opentelemetry.context._SUPPRESS_INSTRUMENTATION_KEY"] == []
