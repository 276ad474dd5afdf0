"""The command line as a whole: help, completion, lazy imports and error messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from spanreplay.cli.app import COMMANDS, KNOWN_HELP
from support.recordings import make_incident, write_spool

Invoke = Callable[..., Result]
HEAVY = ("grpc", "google.protobuf", "rich", "opentelemetry.sdk", "wrapt", "torch", "chdb", "clickhouse_connect")


def _run(code: str, cwd: Path) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_u5_every_command_has_help(spanreplay: Invoke, command: str) -> None:
    """Every command answers --help and -h, and has a first sentence."""
    result = spanreplay(command, "--help")
    assert result.exit_code == 0
    assert f"Usage: spanreplay {command}" in result.stdout
    assert spanreplay(command, "-h").stdout == result.stdout


@pytest.mark.parametrize("command", sorted({*COMMANDS, *KNOWN_HELP} - {"completion", "mcp"}))
def test_u5_every_command_has_json(spanreplay: Invoke, command: str) -> None:
    """Every command has --json, except the completion script and the server of a protocol."""
    assert "--json" in spanreplay(command, "--help").stdout


def test_u5_record_states_its_runs_as_json(here: Path, spanreplay: Invoke) -> None:
    """The JSON goes to a file, or alone to standard output; the exit status is the agent's."""
    agent = "import sys\nfrom spanreplay import boundary\nboundary('tool')(len)('abc')\nprint('hello')\nsys.exit(7)\n"
    (here / "agent.py").write_text(agent, encoding="utf-8")
    main = [sys.executable, "-c", "from spanreplay.cli import main; main()", "record", "--json"]
    told = {}
    for file in ("runs.json", "-"):
        done = subprocess.run(
            [*main, file, "--", sys.executable, "agent.py"], cwd=here, check=False, capture_output=True, text=True
        )
        assert done.returncode == 7, done.stderr
        if file == "-":
            told[file] = json.loads(done.stdout)
            assert "hello\n" in done.stderr
        else:
            told[file] = json.loads((here / file).read_text(encoding="utf-8"))
            assert done.stdout == "hello\n"
    listed = [run["run_id"] for run in json.loads(spanreplay("ls", "--json").stdout)]
    found = [run["run_id"] for each in told.values() for run in each["runs"]]
    assert sorted(found) == sorted(listed)
    assert len(set(found)) == 2
    assert [(each["status"], each["runs"][0]["calls"]) for each in told.values()] == [(7, 1), (7, 1)]


def _look(here: Path, *arguments: str, **environ: str) -> str:
    """Return the output of a command on a terminal of 120 columns."""
    controller, terminal = os.openpty()
    command = [sys.executable, "-c", "from spanreplay.cli import main; main()", *arguments]
    environ = {"TERM": "xterm-256color", "COLUMNS": "120", "LC_ALL": "C.UTF-8", **environ}
    subprocess.run(command, cwd=here, check=False, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
    os.close(terminal)
    shown = os.read(controller, 65536).decode()
    os.close(controller)
    return shown


def test_u5_long_work_has_a_bar_on_a_terminal(here: Path, data_dir: Path, spanreplay: Invoke) -> None:
    """A bar shows progress on a terminal; in a pipe there is none."""
    recordings = [make_incident() for _ in range(3)]
    for recording in recordings:
        write_spool(data_dir, recording)
    runs = [recording.run_id for recording in recordings]
    shown = _look(here, "verify", *runs)
    assert "verifying" in shown
    assert "━" in shown
    assert "3/3" in shown
    assert "━" not in _look(here, "verify", runs[0])
    piped = spanreplay("verify", *runs)
    assert "verifying" not in piped.stdout + piped.stderr


def test_u5_help_lists_all_commands_without_loading_them(here: Path) -> None:
    """`spanreplay --help` names every command and imports nothing heavy."""
    shown = _run(
        "import sys\nfrom spanreplay.cli.app import app\n"
        "app.main(['--help'], standalone_mode=False)\n"
        f"print('loaded', [m for m in {HEAVY!r} if m in sys.modules])",
        here,
    )
    for command in (*COMMANDS, "up", "migrate"):
        assert f"\n  {command} " in shown
    assert shown.endswith("loaded []\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_u5_completion_prints_a_script(spanreplay: Invoke, shell: str) -> None:
    """Each shell gets a script for its own language."""
    result = spanreplay("completion", shell)
    assert result.exit_code == 0
    assert "_SPANREPLAY_COMPLETE" in result.stdout


def test_u5_completion_knows_commands_options_and_runs(here: Path, data_dir: Path) -> None:
    """Commands, options and run ids complete."""
    recording = make_incident()
    write_spool(data_dir, recording)

    def complete(*words: str) -> list[str]:
        line = " ".join(("spanreplay", *words))
        done = subprocess.run(
            [sys.executable, "-c", "from spanreplay.cli import main; main()"],
            cwd=here,
            check=True,
            capture_output=True,
            text=True,
            env={"_SPANREPLAY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))},
        )
        return done.stdout.split()

    assert "plain,replay" in complete("rep")
    assert "plain,--around" in complete("ls", "--ar")
    assert f"plain,{recording.run_id}" in complete("show", recording.run_id[:8])
    assert "plain,latest" in complete("show", "la")


def test_unknown_command_is_wrong_usage(spanreplay: Invoke) -> None:
    """An unknown command ends with status 2."""
    assert spanreplay("rewind").exit_code == 2


def test_error_never_shows_a_traceback(spanreplay: Invoke, here: Path) -> None:
    """Even a defect of our own is one line; SPANREPLAY_DEBUG shows where it happened."""
    (here / ".spanreplay").write_text("a file where a directory should be")
    shown = spanreplay("import", __file__)
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: ")
    assert "Traceback" not in shown.output
    debug = spanreplay("import", __file__, env={"SPANREPLAY_DEBUG": "true"})
    assert debug.exception is not None
    assert not isinstance(debug.exception, SystemExit)


def test_error_of_a_command_whose_extra_is_missing_names_the_extra(here: Path) -> None:
    """A command from a package that is not installed says what to install."""
    shown = _run(
        "import sys\nsys.modules['spanreplay_service'] = None\n"
        "from click.testing import CliRunner\nfrom spanreplay.cli.app import app\n"
        "result = CliRunner().invoke(app, ['up'])\nprint(result.exit_code, result.stderr)",
        here,
    )
    assert shown.startswith("1 error: `spanreplay up` cannot be loaded")
    assert "pip install 'spanreplay[service] @ git+https" in shown


def test_service_that_does_not_answer_is_one_line(spanreplay: Invoke) -> None:
    """With SPANREPLAY_ENDPOINT set, the service is asked; if it does not answer, one line says so, with a remedy."""
    result = spanreplay("ls", env={"SPANREPLAY_ENDPOINT": "127.0.0.1:9"})
    assert result.exit_code == 1
    assert "no replay service answers at 127.0.0.1:9" in result.stderr
    assert "hint: start one with `spanreplay up`" in result.stderr


def test_output_that_the_terminal_cannot_encode_does_not_fail(here: Path, data_dir: Path) -> None:
    """On an ASCII terminal nothing fails."""
    write_spool(data_dir, make_incident())
    done = subprocess.run(
        [sys.executable, "-c", "from spanreplay.cli import main; main()", "show", "latest"],
        cwd=here,
        check=True,
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"},
    )
    assert b"trade-bot" in done.stdout
    assert done.stderr == b""


def test_pipe_that_closes_early_is_no_error(here: Path, data_dir: Path) -> None:
    """`spanreplay show … | head` ends quietly."""
    write_spool(data_dir, make_incident())
    script = 'exec 2>err; spanreplay_main() { "$PYTHON" -c \'from spanreplay.cli import main; main()\' "$@"; }; '
    script += "for i in 1 2 3; do spanreplay_main show latest --json; done | head -c 1 >/dev/null; cat err"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=here,
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
    )
    assert "Traceback" not in done.stdout


def test_u5_colours_only_on_a_terminal(here: Path, data_dir: Path) -> None:
    """On a terminal there are colours and short ids; with NO_COLOR or in a pipe there are none."""
    recording = make_incident()
    write_spool(data_dir, recording)

    coloured = _look(here, "ls")
    assert "\x1b[32mok" in coloured
    assert recording.run_id[:13] in coloured
    assert recording.run_id not in coloured
    assert "\x1b[32m" not in _look(here, "ls", NO_COLOR="1")


def test_u5_a_misspelt_command_gets_the_nearest_one(here: Path) -> None:
    """An unknown word ends with status 2 and suggests the nearest command."""
    shown = _run(
        "from click.testing import CliRunner\nfrom spanreplay.cli.app import app\n"
        "result = CliRunner().invoke(app, ['repaly'])\nprint(result.exit_code, result.stderr)",
        here,
    )
    assert shown.startswith("2 ")
    assert "No such command 'repaly'. Did you mean 'replay'?" in shown
