"""`spanreplay drift` over recordings of a real agent: locally, and at a service that they were shipped to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.provider import Provider
from support.replaying import BIN, Workplace
from support.up_server import start_up

AGENT = """
import os
from groq import Groq
client = Groq()
for number in range(int(os.environ.get("TIMES", "1"))):
    for temperature in (0, 0.9):
        messages = [{"role": "user", "content": f"hello at {temperature}"}]
        answer = client.chat.completions.create(model="gpt-x", temperature=temperature, messages=messages)
"""
LINE = "engine=vllm-0.33.0; dtype=bfloat16; plan=aa"


def drift(workplace: Workplace, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `spanreplay drift` until it ends."""
    return subprocess.run(
        [str(BIN / "spanreplay"), "drift", *options],
        cwd=workplace.path,
        env={**workplace.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass(frozen=True)
class Recorded:
    """Two runs of one agent between which the serving stack changed, and the service that holds them too."""

    workplace: Workplace
    runs: list[str]
    spans: list[str]
    endpoint: str


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Recorded from unmodified code, shipped by `spanreplay ship`."""
    with Provider() as provider, start_up(tmp_path_factory.mktemp("up")) as server:
        workplace = Workplace(tmp_path_factory.mktemp("agent"), provider.environ())
        agent = workplace.write("agent.py", AGENT)
        provider.fingerprint, provider.determinism = "fp_1", LINE
        workplace.record(agent)
        provider.fingerprint, provider.determinism = "fp_2", LINE.replace("33", "34")
        workplace.record(agent)
        recordings = workplace.recordings()
        # Shipping deletes the local recording
        shutil.copytree(workplace.path / ".spanreplay", workplace.path / "kept")
        subprocess.run(
            [str(BIN / "spanreplay"), "ship", "--endpoint", server.otlp_endpoint],
            cwd=workplace.path,
            env=workplace.environ,
            check=True,
        )
        workplace.environ["SPANREPLAY_DIR"] = str(workplace.path / "kept")
        spans = [recording.calls[0].span_id for recording in recordings]
        yield Recorded(workplace, [r.run_id for r in recordings], spans, server.endpoint)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["directory", "service"])
def test_s24_s25_drift_tells_one_event_and_splits_outputs(recorded: Recorded, place: str) -> None:
    """One model_drift with both runs, calls and spans, exit 3; outputs by sampling and by fingerprint."""
    environ = {"SPANREPLAY_ENDPOINT": recorded.endpoint} if place == "service" else {}
    done = drift(recorded.workplace, "--since", "7d", "--json", **environ)
    assert done.returncode == 3, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    (event,) = found["events"]
    assert (event["event"], event["keys"]) == ("model_drift", 2)
    assert event["changed"] == ["fingerprint", "determinism"]
    sides = [event[side] for side in ("before", "after")]
    assert [(s["run_id"], s["call"], s["span_id"]) for s in sides] == [
        (run, 1, span) for run, span in zip(recorded.runs, recorded.spans, strict=True)
    ]
    assert [(s["fingerprint"], s["determinism"]) for s in sides] == [
        ("fp_1", LINE),
        ("fp_2", LINE.replace("33", "34")),
    ]
    causes = {output["temperature"]: (output["outputs"], output["cause"]) for output in found["outputs"]}
    assert causes == {0: (2, "fingerprint"), 0.9: (2, "sampling")}


@pytest.mark.slow
def test_s13_drift_shows_both_stacks_beside_each_other(recorded: Recorded) -> None:
    """The readable report shows the pair, then the fingerprint and determinism line of each."""
    done = drift(recorded.workplace)
    assert done.returncode == 3, done.stderr
    shown = " ".join(done.stdout.split())
    assert "system_fingerprint and x-spanreplay-determinism changed, 2 equal requests" in shown
    for run, fingerprint, line in zip(recorded.runs, ("fp_1", "fp_2"), (LINE, LINE.replace("33", "34")), strict=True):
        assert f"run {run[:13]} call 1" in shown
        assert f"system_fingerprint {fingerprint} x-spanreplay-determinism {line}" in shown
    assert "1 model_drift event; looked at 4 answers to 2 requests in 2 runs" in done.stderr


def test_s13_report_counts_distinct_completions_of_identical_prompts(
    provider: Provider, workplace: Workplace, tmp_path: Path
) -> None:
    """40 identical prompts at temperature zero, each answered differently: 40 outputs, unexplained, and exit 0."""
    provider.fingerprint = "fp_1"
    workplace.record(workplace.write("agent.py", AGENT), TIMES="40")
    done = drift(workplace, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["events"] == []
    greedy = next(output for output in found["outputs"] if output["temperature"] == 0)
    assert (greedy["answers"], greedy["outputs"], greedy["cause"]) == (40, 40, "unexplained")
    assert "answers, 40 outputs, cause: unexplained" in drift(workplace).stdout
