"""`spanreplay record`, `replay` and `doctor` with a real agent and SDK, and a provider that stops after recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import jsonschema
import pytest

from spanreplay import report as report_package
from spanreplay.cli import replay
from spanreplay.cli.replay import Source, limit_idle
from spanreplay.cli.terminal import say
from spanreplay.model.errors import SpanreplayError
from spanreplay.replayer.resolve.plan import build_plan
from support.provider import Provider
from support.runs import make_recording, make_run_id
from support.shell import AGENT, ALL_INSTRUMENTORS, Shell, open_shell


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, str]:
    """A shell with one recorded run in its directory, and the run's output; the provider is stopped."""
    with Provider() as provider:
        shell = open_shell(tmp_path_factory.mktemp("agent"), provider)
        words = ("record", "--", "python", "agent.py", "0", "sell 1,000", "report")
        done = shell.spanreplay(*words, **ALL_INSTRUMENTORS)
        assert done.returncode == 0, done.stderr
        assert "recorded 2 calls in run " in done.stderr
    return shell, done.stdout


def test_u1_record_leaves_output_and_exit_status_alone(recorded: tuple[Shell, str]) -> None:
    """The agent's output is unchanged, and the run is listed with its calls."""
    shell, printed = recorded
    assert [line.partition(" -> ")[0] for line in printed.splitlines()] == ["sell 1,000", "report"]
    [run] = shell.runs()
    assert (run["status"], run["llm_calls"]) == ("ok", 2)


def test_s62_replay_is_identical_without_a_provider(recorded: tuple[Shell, str], tmp_path: Path) -> None:
    """With the provider gone the run replays byte for byte: by id, from a file, in an empty directory."""
    shell, printed = recorded
    verdict_file = tmp_path / "verdict.json"
    command = ("--", "python", "agent.py", "0", "sell 1,000", "report")
    done = shell.spanreplay("replay", "latest", "--json", str(verdict_file), *command, **ALL_INSTRUMENTORS)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    assert "\n✔ identical: 2 calls, all as recorded; standard output and exit status too\n" in "\n" + done.stderr
    assert "done\n" in done.stderr
    verdict = json.loads(verdict_file.read_text())
    schema = json.loads(Path(*report_package.__path__, "divergence-1.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(verdict)
    assert verdict["verdict"] == "identical"
    assert verdict["exit"] == {"recorded": 0, "now": 0}

    shell.spanreplay("export", "latest", "-o", str(tmp_path / "x.replay"))
    (tmp_path / "agent.py").write_text(AGENT)
    elsewhere = Shell(tmp_path, {**shell.environ, "HOME": str(tmp_path)})
    moved = elsewhere.spanreplay("replay", "x.replay", *command)
    assert (moved.returncode, moved.stdout) == (0, printed), moved.stderr


def test_s28_replay_of_changed_code_names_the_one_call(recorded: tuple[Shell, str]) -> None:
    """Another prompt is reported as one changed call, with both texts and the line of code; nothing goes live."""
    shell, _ = recorded
    done = shell.spanreplay("replay", "latest", "--", "python", "agent.py", "0", "sell $1,000", "report")
    assert done.returncode == 3
    assert "✘ diverged at call 1 (llm:openai.chat.completions)" in done.stderr
    assert "recorded 'sell 1,000'" in done.stderr
    assert "now      'sell $1,000'" in done.stderr
    assert "agent.py:4" in done.stderr


def test_s28_replay_serves_a_changed_call_when_asked_to(recorded: tuple[Shell, str]) -> None:
    """--on-change serve goes on with the recorded answer, and still reports the difference."""
    shell, printed = recorded
    command = ("replay", "latest", "--on-change", "serve", "--json", "-", "--", "python", "agent.py", "0")
    done = shell.spanreplay(*command, "sell $1,000", "report")
    assert done.returncode == 3
    assert printed.splitlines()[1] in done.stderr.splitlines()
    assert json.loads(done.stdout)["counts"]["served"] == 2


def test_replay_with_another_exit_status_is_diverged(recorded: tuple[Shell, str]) -> None:
    """Equal calls and equal output with another exit status are not identical."""
    shell, printed = recorded
    done = shell.spanreplay("replay", "latest", "--", "python", "agent.py", "5", "sell 1,000", "report")
    assert (done.returncode, done.stdout) == (3, printed)
    assert "the exit status was 0, now 5" in done.stderr


def test_replay_that_has_no_verdict_is_an_error(recorded: tuple[Shell, str]) -> None:
    """An agent that never started under the replay ends with 1 and a clear line, whatever its own exit status."""
    shell, _ = recorded
    for command in (["true"], ["sh", "-c", "kill -9 $$"]):
        done = shell.spanreplay("replay", "latest", "--", *command)
        assert done.returncode == 1
        assert "error: no verdict: the agent " in done.stderr


def test_replay_does_not_depend_on_what_switches_telemetry_off(recorded: tuple[Shell, str]) -> None:
    """Settings that keep OpenTelemetry from loading cannot make a replay go live."""
    shell, printed = recorded
    hostile = {
        "OTEL_SDK_DISABLED": "true",
        "OTEL_TRACES_EXPORTER": "no-such-exporter",
        "OTEL_TRACES_SAMPLER": "always_off",
    }
    command = ("replay", "latest", "--", "python", "agent.py", "0", "sell 1,000", "report")
    done = shell.spanreplay(*command, **hostile)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("replay",), 2, "Missing argument"),
        (("replay", "agent.py"), 2, "Missing argument"),
        (("replay", "latest", "--on-change", "guess", "--", "true"), 2, "'guess' is not one of"),
        (("replay", "0192f3a4", "--", "true"), 1, "error: "),
        (("replay", "latest", "--", "no-such-program"), 1, "no such command"),
        (("replay", "latest", "--", "python", "-I", "agent.py"), 1, "would not load spanreplay"),
        (("replay", "latest", "--stub", " ", "--", "true"), 1, "an empty pattern"),
    ],
    ids=["nothing", "file alone", "bad choice", "unknown run", "unknown program", "isolated", "empty pattern"],
)
def test_replay_wrong_usage_and_errors_end_before_the_agent_runs(
    recorded: tuple[Shell, str], arguments: tuple[str, ...], status: int, message: str
) -> None:
    """A run that cannot be replayed is reported in one line, with the right status."""
    shell, _ = recorded
    done = shell.spanreplay(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_u1_replay_without_a_command_starts_the_recorded_one(recorded: tuple[Shell, str], tmp_path: Path) -> None:
    """The recorded script runs with its arguments, from the same folder; elsewhere the command is required."""
    shell, printed = recorded
    done = shell.spanreplay("replay", "latest")
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    elsewhere = Shell(tmp_path, {**shell.environ, "SPANREPLAY_DIR": str(shell.folder / ".spanreplay")})
    lost = elsewhere.spanreplay("replay", "latest")
    assert lost.returncode == 1
    assert "write its whole command after --" in lost.stderr


def test_s48_replay_of_a_killed_run_goes_to_its_frontier(recorded: tuple[Shell, str], tmp_path: Path) -> None:
    """A killed run replays up to its frontier, is called incomplete, and ends with 4."""
    shell, _ = recorded
    dies = "    if sys.argv[1] == '9': __import__('os').kill(__import__('os').getpid(), 9)\n    print(question"
    (tmp_path / "agent.py").write_text(AGENT.replace("    print(question", dies))
    with Provider() as provider:
        killed = Shell(tmp_path, {**shell.environ, **provider.environ(), "HOME": str(tmp_path)})
        assert killed.spanreplay("record", "--", "python", "agent.py", "9", "one").returncode == 128 + 9
    [run] = killed.runs()
    assert run["status"] == "incomplete"
    done = killed.spanreplay("replay", "latest", "--", "python", "agent.py", "0", "one")
    assert done.returncode == 4, done.stderr
    assert "the recording is incomplete" in done.stderr
    assert "! incomplete recording: 1 call as recorded, up to where it ends" in done.stderr


def test_doctor_tells_what_is_recorded_and_what_is_in_the_way(recorded: tuple[Shell, str]) -> None:
    """The doctor runs the agent, lists the seams that were installed, and names obstacles."""
    shell, _ = recorded
    agent = ("python", "-c", "import httpx; print('hello')")
    fine = shell.spanreplay("doctor", "--json", "--", *agent, **ALL_INSTRUMENTORS)
    findings = {f["subject"]: f for f in json.loads(fine.stdout)}
    assert fine.returncode == 0, fine.stdout
    assert "hello\n" in fine.stderr
    assert findings["seam httpx"]["level"] == "ok"
    hindered = shell.spanreplay("doctor", "--", "python", "-c", "1", OTEL_SDK_DISABLED="true")
    assert hindered.returncode == 1
    assert "OTEL_SDK_DISABLED" in hindered.stdout
    assert "problems found" in hindered.stderr


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, {"SPANREPLAY_REPLAY_IDLE": "690"}),
        ({"live": ("tool:get_*",)}, {}),
        ({"on_change": ("llm=live",)}, {}),
        ({"on_change": ("serve",)}, {"SPANREPLAY_REPLAY_IDLE": "690"}),
        ({"port": 0}, {}),
        ({"is_stepped": True}, {}),
        ({"is_terminal": True}, {}),
        ({"setting": "5"}, {}),
    ],
)
def test_s29_a_replay_that_nobody_watches_has_a_limit(
    changed: dict[str, Any], wanted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes plus ten times the run; none with live calls, a terminal, a debugger or an explicit limit."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: changed.get("is_terminal", False)))
    monkeypatch.setenv("SPANREPLAY_REPLAY_IDLE", changed.get("setting", ""))
    options = {"live": (), "on_change": (), "port": None, **changed}
    plan = build_plan(is_stepped=changed.get("is_stepped", False))
    assert limit_idle(make_recording(), plan, options) == wanted


@pytest.mark.parametrize("failure", [SpanreplayError("no verdict: the agent was ended"), click.exceptions.Exit(130)])
def test_p4_what_ends_the_search_for_earlier_units_leaves_the_verdict(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A replay behind earlier units that gives no verdict, or an interrupt, doesn't lose that of the unit alone."""
    source = Source("r", make_recording(make_run_id(1)), earlier=(make_run_id(2),))
    monkeypatch.setattr(replay, "open_source", lambda *_: source)
    monkeypatch.setattr(replay, "print_verdict", lambda verdict: say(f"alone: {verdict['verdict']}"))
    alone: Any = {"verdict": "diverged"}

    def judge(units: Sequence[str]) -> Any:
        raise failure

    if isinstance(failure, SpanreplayError):
        assert replay._judge_after_earlier("r", tmp_path, alone, judge) is alone
        assert "that can't be told: no verdict: the agent was ended" in capfd.readouterr().err
    else:
        with pytest.raises(click.exceptions.Exit):
            replay._judge_after_earlier("r", tmp_path, alone, judge)
        assert "alone: diverged" in capfd.readouterr().err
