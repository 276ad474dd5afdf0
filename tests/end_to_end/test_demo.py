"""`make demo`: the whole story, with real commands, a real store and a real replay service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO_TIMEOUT_S = 600


@pytest.mark.slow
def test_u4_demo_records_replays_and_proves_the_fix(tmp_path: Path) -> None:
    """The demo ends with status 0, which means that it checked and kept every promise."""
    done = subprocess.run(
        [sys.executable, "-m", "spanreplay_service.demo", "--no-phoenix", "--dir", str(tmp_path / "demo")],
        text=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=DEMO_TIMEOUT_S,
        check=False,
        env={**os.environ, "PATH": os.defpath},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for promise in (
        "the verdict is identical",
        "5 calls served from the recording, 0 live, 0 sockets, 0 tokens paid",
        "the bug happens again, on demand",
        "one cause: place_order now answers differently",
        "one consequence: what the customer reads; every other call is the same",
    ):
        assert f"✓ {promise}" in done.stdout
    verdict = json.loads((tmp_path / "demo" / "verdict.json").read_text())
    assert [d["boundary"] for d in verdict["divergences"]] == ["tool:place_order", "process:stdout"]
    _assert_second_half(done.stdout.partition("What happened")[2], tmp_path / "demo" / "service")
    _replay_without_server(done.stdout, "without server: ")


def _assert_second_half(told: str, folder: Path) -> None:
    """One request among 20 concurrent ones is found by user and time, replays alone, and proves the fix."""
    for promise in (
        "20 answers were streamed at the same time",
        "one order of all of them went wrong",
        "one run of this customer, complete",
        "it is one of 20 runs: a run for each request, all complete, with as many calls each",
        "the recorded response is what the customer has read",
        "the verdict is identical",
        "8 calls served from the recording, 0 live, 0 sockets, 0 tokens paid",
        "one cause: place_order now answers differently",
        "one consequence: what the customer reads; every other call is the same",
    ):
        assert f"✓ {promise}" in told
    (bad,) = re.findall(r"(u-\d+)  order .*= \$189,996\.00", told)
    assert len(re.findall(r"u-\d+  order .*= \$1,198\.56", told)) == 19
    assert re.search(rf"\$ spanreplay ls --user {bad} --around \d\d:\d\d\n", told)
    assert "$ opentelemetry-instrument python -m uvicorn trading_service:app" in told
    verdict = json.loads((folder / "verdict.json").read_text())
    assert [d["boundary"] for d in verdict["divergences"]] == ["tool:place_order", "http:response"]
    _replay_without_server(told, "one request: ")


def _replay_without_server(told: str, label: str) -> None:
    """The commands that the demo prints at its end work in a bare shell and without any server."""
    typed = [told.partition(each)[2].splitlines()[0] for each in ("in your shell: ", label)]
    again = subprocess.run(
        ["sh", "-c", "; ".join(typed)],
        text=True,
        capture_output=True,
        env={"HOME": str(Path.home()), "PATH": os.defpath},
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert again.returncode == 0, again.stderr


def test_demo_says_what_is_in_the_way(tmp_path: Path) -> None:
    """A folder with other files ends the demo with status 1 and the reason."""
    (tmp_path / "thesis.txt").write_text("years of work")
    done = subprocess.run(
        [sys.executable, "-m", "spanreplay_service.demo", "--dir", str(tmp_path)],
        text=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "is not empty and not a demo's" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
