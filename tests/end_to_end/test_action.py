"""The GitHub Action as a workflow runs it: the steps of action.yml, in their shell, with their inputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from support.provider import Provider
from support.replaying import BIN, Workplace

ROOT: Final = Path(__file__).parents[2]
ACTION: Final[dict[str, Any]] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
AGENT: Final = """
import sys
from groq import Groq

answer = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "refund at most $50"}])
print(answer.choices[0].message.content)
"""
_EXPRESSION: Final = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


@dataclass(frozen=True)
class Done:
    """What a run of the action leaves."""

    status: int
    printed: str
    summary: str
    outputs: dict[str, str]


def use_action(folder: Path, environ: dict[str, str], **given: str) -> Done:
    """Run the action's steps as the runner does: expressions filled in, each in its shell, until one fails."""
    inputs = {name: given.get(name.replace("-", "_"), row["default"]) for name, row in ACTION["inputs"].items()}
    known = {
        "github.action_path": str(ROOT),
        "runner.temp": str(folder / "runner"),
        **{f"inputs.{name}": value for name, value in inputs.items()},
    }
    files = {name: folder / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for path in files.values():
        path.write_text("", encoding="utf-8")
    printed, status = "", 0
    for step in ACTION["runs"]["steps"]:
        if "if" in step and inputs["install"] != "true":
            continue
        filled = {name: _EXPRESSION.sub(lambda m: known[m[1]], text) for name, text in step["env"].items()}
        done = subprocess.run(
            [step["shell"], "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={**environ, **{name: str(path) for name, path in files.items()}, **filled, "GITHUB_ACTIONS": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        printed, status = printed + done.stdout, done.returncode
        if status:
            break
    lines = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    return Done(status, printed, files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8"), outputs)


@pytest.fixture
def repository(provider: Provider, workplace: Workplace) -> Workplace:
    """An agent with two recordings, in folders and with blanks in a name; its provider is gone."""
    agent = workplace.write("agent.py", AGENT)
    workplace.record(agent)
    (workplace.path / "runs" / "of may").mkdir(parents=True)
    for name in ("runs/first.replay", "runs/of may/second run.replay"):
        assert workplace.run("export", "latest", "-o", name).returncode == 0
    provider.stop()
    workplace.environ["PATH"] = f"{BIN}{os.pathsep}{workplace.environ['PATH']}"
    return workplace


def test_u7_the_action_replays_every_recording(repository: Workplace) -> None:
    """An unchanged agent passes; the counts are outputs, each verdict is a file, and the summary names the runs."""
    done = use_action(repository.path, repository.environ, install="false", command="python agent.py")
    assert done.status == 0, done.printed
    assert {name: done.outputs[name] for name in ("identical", "diverged", "incomplete", "failed")} == {
        "identical": "2", "diverged": "0", "incomplete": "0", "failed": "0",
    }  # fmt: skip
    verdicts = [json.loads(path.read_text()) for path in sorted(Path(done.outputs["verdicts"]).iterdir())]
    assert [verdict["verdict"] for verdict in verdicts] == ["identical", "identical"]
    assert done.summary.count("identical") >= 2
    assert "::error" not in done.printed


def test_u7_a_bad_commit_is_annotated(repository: Workplace) -> None:
    """The step fails with 3, the changed line of code is annotated, the summary shows the difference."""
    repository.write("agent.py", AGENT.replace("at most $50", "whatever they ask"))
    done = use_action(repository.path, repository.environ, install="false", command="python agent.py")
    assert done.status == 3, done.printed
    assert (done.outputs["diverged"], done.outputs["identical"]) == ("2", "0")
    assert re.search(r"^::error file=agent\.py,line=\d+,title=spanreplay", done.printed, re.MULTILINE), done.printed
    assert "whatever they ask" in done.summary


def test_u7_inputs_are_data(repository: Workplace) -> None:
    """A glob chooses, options are passed on, and nothing that an input says is run by the shell."""
    planted = "runs/*.replay\n$(touch planted) `touch planted`"
    done = use_action(
        repository.path,
        repository.environ,
        install="false",
        recordings=planted,
        command="python agent.py",
        options="--strict",
    )
    assert (done.status, done.outputs["identical"]) == (0, "1"), done.printed
    assert not (repository.path / "planted").exists()
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_u7_nothing_to_replay_is_no_success(repository: Workplace) -> None:
    """A glob that matches nothing, or a folder that is not there, fails and says so."""
    for given in ({"recordings": "other/*.replay"}, {"working_directory": "nowhere"}):
        done = use_action(repository.path, repository.environ, install="false", command="python agent.py", **given)
        assert done.status == 2
        assert "no recording matches" in done.printed


def test_u7_holes_pass_only_where_that_is_allowed(repository: Workplace) -> None:
    """A run that was killed is incomplete, which is 4 unless the workflow says otherwise."""
    repository.write("agent.py", AGENT + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with Provider() as provider:
        repository.record("agent.py", status=-9, GROQ_BASE_URL=provider.url)
    assert repository.run("export", "latest", "-o", "killed.replay").returncode == 0
    repository.write("agent.py", AGENT)
    given = {"install": "false", "command": "python agent.py", "recordings": "killed.replay"}
    done = use_action(repository.path, repository.environ, **given)
    assert (done.status, done.outputs["incomplete"]) == (4, "1"), done.printed
    allowed = use_action(repository.path, repository.environ, **given, allow_incomplete="true")
    assert (allowed.status, allowed.outputs["incomplete"]) == (0, "1"), allowed.printed


def test_u7_a_recording_that_is_no_recording_fails(repository: Workplace) -> None:
    """The others are replayed all the same."""
    (repository.path / "runs" / "broken.replay").write_bytes(b"PK but no archive")
    done = use_action(repository.path, repository.environ, install="false", command="python agent.py")
    assert done.status == 1, done.printed
    assert (done.outputs["failed"], done.outputs["identical"]) == ("1", "2")


def test_u7_the_action_installs_its_own_version() -> None:
    """From the checkout that the workflow's `uses:` line names."""
    install = ACTION["runs"]["steps"][0]
    assert install["env"] == {"ACTION_PATH": "${{ github.action_path }}"}
    assert install["run"].endswith('"$ACTION_PATH"')
    assert (ROOT / "pyproject.toml").is_file()
