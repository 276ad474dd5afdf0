"""A replay with a live model: what its answer proves, and what its server reports about itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.provider import Provider
from support.replaying import BIN, Replayed, Workplace

AGENT = """
from groq import Groq
client = Groq()
answer = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hello"}])
print(answer.choices[0].message.content)
"""
LABEL = "fresh generation, not evidence"
NOTE = f"{LABEL}: live answers don't show what happened in the recorded run"
LINE = "kernels=1; engine=vllm-0.33.0; plan=aa; dtype=bfloat16; device=NVIDIA-H100-80GB-HBM3; model=0011223344556677"


@pytest.fixture
def agent(workplace: Workplace) -> Path:
    """An agent that calls a model once."""
    return workplace.write("agent.py", AGENT)


def formats(path: Path) -> list[str]:
    """Options that write every report format."""
    files = ["--html", str(path / "v.html"), "--junit", str(path / "v.xml"), "--sarif", str(path / "v.sarif")]
    return [*files, "--github"]


def read_reports(path: Path, replayed: Replayed) -> dict[str, str]:
    """Each report of a replay with those options, by format; the step summary is deleted afterwards."""
    files = {name: path / f"v.{name}" for name in ("html", "xml", "sarif")}
    files["summary"] = path / "summary.md"
    reports = {name: file.read_text(encoding="utf-8").replace("&#x27;", "'") for name, file in files.items()}
    files["summary"].unlink()
    commands = [line for line in replayed.stderr.splitlines() if line.startswith("::")]
    rest = [line for line in replayed.stderr.splitlines() if not line.startswith("::")]
    return {**reports, "annotations": "\n".join(commands), "text": "\n".join(rest)}


@pytest.mark.parametrize("is_same", [True, False], ids=["identical", "diverged"])
def test_s14_every_report_of_a_live_model_says_what_its_answer_is_worth(
    is_same: bool, agent: Path, provider: Provider, workplace: Workplace, tmp_path: Path
) -> None:
    """Every format labels a live answer, same or different; no format does if all answers are served."""
    environ = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    provider.is_repeatable = is_same
    workplace.record(agent)
    live = workplace.replay(agent, options=["--live", "llm:*", *formats(tmp_path)], **environ)
    assert live.status == (0 if is_same else 3), live.stderr
    assert live.verdict["live_note"] == NOTE
    assert [name for name, report in read_reports(tmp_path, live).items() if NOTE not in report] == []
    served = workplace.replay(agent, options=formats(tmp_path), **environ)
    assert served.status == 0, served.stderr
    assert "live_note" not in served.verdict
    assert [name for name, report in read_reports(tmp_path, served).items() if LABEL in report] == []


def test_s14_docs_say_what_a_live_answer_is_worth() -> None:
    """The page about plans contains the same sentence."""
    page = Path(__file__).resolve().parents[2] / "docs" / "plans.md"
    assert NOTE in " ".join(page.read_text(encoding="utf-8").split())


def test_s13_what_two_servers_state_stands_beside_each_other(
    agent: Path, provider: Provider, workplace: Workplace, tmp_path: Path
) -> None:
    """If a live answer differs, each report shows model, system_fingerprint and determinism line, then and now."""
    provider.fingerprint, provider.determinism = "fp_1", LINE
    workplace.record(agent)
    provider.fingerprint, provider.determinism = "fp_2", LINE.replace("0.33.0", "0.34.0").replace("bfloat", "float")
    live = workplace.replay(agent, options=["--live", "llm:*", *formats(tmp_path)])
    assert live.status == 3, live.stderr
    assert live.verdict["divergences"][0]["serving"] == [
        {"name": "model", "recorded": "gpt-x-2026-10-01", "now": "gpt-x-2026-10-01"},
        {"name": "system_fingerprint", "recorded": "fp_1", "now": "fp_2"},
        {"name": "x-spanreplay-determinism", "recorded": LINE, "now": provider.determinism},
    ]
    lines = [
        "model: gpt-x-2026-10-01, both times",
        "system_fingerprint: recorded fp_1, now fp_2",
        "x-spanreplay-determinism: recorded engine=vllm-0.33.0; dtype=bfloat16, now engine=vllm-0.34.0; dtype=float16",
    ]
    html, junit = ((tmp_path / f"v.{ending}").read_text(encoding="utf-8") for ending in ("html", "xml"))
    for line in lines:
        for report in (live.stderr, html, junit):
            assert line in report


def test_s13_engine_version_dtype_and_flag_are_recorded(agent: Path, provider: Provider, workplace: Workplace) -> None:
    """Each is recorded with the call as the server stated it, beside `system_fingerprint`."""
    provider.fingerprint, provider.determinism = "fp_1", LINE
    workplace.record(agent)
    shown = subprocess.run(
        [str(BIN / "spanreplay"), "show", "latest", "--json"],
        cwd=workplace.path,
        env=workplace.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    (call,) = json.loads(shown.stdout)["calls"]
    stated = {k: call["meta"].get(k) for k in ("engine", "engine_version", "dtype", "batch_invariant", "fingerprint")}
    assert stated == {
        "engine": "vllm",
        "engine_version": "0.33.0",
        "dtype": "bfloat16",
        "batch_invariant": True,
        "fingerprint": "fp_1",
    }
