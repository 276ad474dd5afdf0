"""`spanreplay report`, and the reports that `replay` writes: several at once, for every verdict."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from spanreplay.report.json import parse
from spanreplay.report.shape import EXIT_STATUS
from support.provider import Provider
from support.shell import Shell, open_shell

Invoke = Callable[..., Result]
GOLDEN = Path(__file__).parents[1] / "report" / "golden"
STARTS = {
    "text": "✘ diverged",
    "junit": "<?xml ",
    "sarif": "{",
    "github": "::error file=agent.py,line=31,",
    "html": "<!doctype html>",
}


@pytest.mark.parametrize("form", STARTS)
def test_report_writes_each_format_to_output_or_file(spanreplay: Invoke, here: Path, form: str) -> None:
    """Each format goes to standard output, or byte for byte the same to a file."""
    verdict = str(GOLDEN / "changed_call.json")
    shown = spanreplay("report", verdict, "--format", form)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith(STARTS[form])
    written = spanreplay("report", verdict, "--format", form, "-o", "out")
    assert (written.exit_code, written.stdout) == (0, "")
    assert (here / "out").read_text(encoding="utf-8") == shown.stdout


def test_report_reads_standard_input(spanreplay: Invoke) -> None:
    """A verdict can be piped in; text is the default."""
    content = (GOLDEN / "changed_call.json").read_text(encoding="utf-8")
    assert spanreplay("report", "-", input=content).stdout == (GOLDEN / "changed_call.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("missing.json",), 1, "cannot read 'missing.json'"),
        (("torn.json",), 1, "cannot be read: it is not JSON"),
        (("odd.json",), 1, "a divergence has a field of another type"),
        (("torn.json", "--format", "pdf"), 2, "'pdf' is not one of"),
        (("torn.json", "-o", "no/such/file"), 2, "its directory does not exist"),
    ],
    ids=["missing", "torn", "odd", "format", "folder"],
)
def test_report_refuses_in_one_line(
    spanreplay: Invoke, here: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    """Unreadable input and unwritable output give one line and the right status."""
    (here / "torn.json").write_text("{")
    odd = {"schema": "divergence/1", "verdict": "diverged", "divergences": [{"kind": [], "message": "x"}]}
    (here / "odd.json").write_text(json.dumps(odd))
    result = spanreplay("report", *arguments)
    assert result.exit_code == status
    assert message in result.stderr


def test_report_github_appends_to_the_step_summary(
    spanreplay: Invoke, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If GitHub names a step summary, the report is appended to it, and paths start at the checkout's root."""
    summary = here / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here.parent))
    result = spanreplay("report", str(GOLDEN / "changed_call.json"), "--format", "github")
    assert f"file={here.name}/agent.py,line=31" in result.stdout
    assert summary.read_text(encoding="utf-8").startswith("before\n### ❌ spanreplay: diverged\n")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell with one recorded run in its directory; the provider is gone."""
    with Provider() as provider:
        shell = open_shell(tmp_path_factory.mktemp("agent"), provider)
        done = shell.spanreplay("record", "--", "python", "agent.py", "0", "sell 1,000")
        assert done.returncode == 0, done.stderr
    return shell


def _replay(shell: Shell, folder: Path, question: str) -> subprocess.CompletedProcess[str]:
    files = {"json": "v.json", "junit": "v.xml", "sarif": "v.sarif", "html": "v.html"}
    options = [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]
    environ = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_WORKSPACE": str(shell.folder.parent)}
    command = ("--", "python", "agent.py", "0", question)
    return shell.spanreplay("replay", "latest", *options, "--github", *command, **environ)


@pytest.mark.parametrize(("question", "word"), [("sell 1,000", "identical"), ("sell $1,000", "diverged")])
def test_s65_replay_writes_all_reports_at_once(recorded: Shell, tmp_path: Path, question: str, word: str) -> None:
    """One replay writes every report, and standard output is the agent's alone."""
    done = _replay(recorded, tmp_path, question)
    assert done.returncode == EXIT_STATUS[word], done.stderr
    assert "::" not in done.stdout
    verdict = parse((tmp_path / "v.json").read_text())
    assert verdict["verdict"] == word
    assert f'name="verdict" value="{word}"' in (tmp_path / "v.xml").read_text()
    assert json.loads((tmp_path / "v.sarif").read_text())["runs"][0]["properties"]["verdict"] == word
    assert f"</span> {word}</h1>" in (tmp_path / "v.html").read_text()
    assert f"spanreplay: {word}\n" in (tmp_path / "summary.md").read_text()
    start = f"::error file={recorded.folder.name}/agent.py,line=4," if word == "diverged" else "::notice title="
    assert f"\n{start}" in done.stderr


def test_replay_refuses_reports_that_cannot_be_written(recorded: Shell, tmp_path: Path) -> None:
    """A missing folder, or two reports on standard output, is wrong usage, reported before the agent runs."""
    for options in (("--junit", str(tmp_path / "no" / "v.xml")), ("--json", "-", "--sarif", "-")):
        done = recorded.spanreplay("replay", "latest", *options, "--", "python", "agent.py", "0", "sell 1,000")
        assert (done.returncode, done.stdout) == (2, "")


def test_replay_goes_on_without_a_step_summary(recorded: Shell, tmp_path: Path) -> None:
    """A summary that cannot be written is reported, and the verdict stands."""
    command = ("replay", "latest", "--github", "--", "python", "agent.py", "0", "sell 1,000")
    done = recorded.spanreplay(*command, GITHUB_STEP_SUMMARY=os.fspath(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "could not write the step summary" in done.stderr
