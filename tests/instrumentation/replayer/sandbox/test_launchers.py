"""A launcher may replace itself by the agent's Python in a replay, and by nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.here import BOOT_PARTS, PACKAGE
from spanreplay.replayer.sandbox.launchers import starts_the_agent

BOOT: Final = str(Path(PACKAGE, *BOOT_PARTS))
OF_REPLAY: Final = {
    "PYTHONPATH": os.pathsep.join(("/first", BOOT)),
    "SPANREPLAY_MODE": "replay",
    "SPANREPLAY_REPLAY_SOURCE": "/tmp/source",
    "SPANREPLAY_REPLAY_REPORT": "/tmp/report",
}


@pytest.fixture(autouse=True)
def _in_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OF_REPLAY.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "words", [["agent.py"], ["-u", "-X", "dev", "agent.py", "-I"], ["-m", "agent"], ["-Wd", "a.py"]]
)
@pytest.mark.parametrize("environ", [None, OF_REPLAY, {os.fsencode(k): os.fsencode(v) for k, v in OF_REPLAY.items()}])
def test_p1_the_same_python_starts_the_replay_again(
    words: list[str], environ: dict[str, str] | dict[bytes, bytes] | None
) -> None:
    """Options that leave our start-up module alone do not matter, and neither do the agent's own."""
    assert starts_the_agent((sys.executable, [sys.executable, *words], environ))


def test_p1_a_script_of_the_same_python_starts_the_replay_again(tmp_path: Path) -> None:
    """An installed command names its interpreter in its first line."""
    script = tmp_path / "agent"
    script.write_text(f"#!{sys.executable}\n")
    assert starts_the_agent((str(script), ["agent"], None))
    assert starts_the_agent((os.fsencode(script), [b"agent"], None))
    script.write_text(f"#!{sys.executable} -I\n")
    assert not starts_the_agent((str(script), ["agent"], None))
    script.write_bytes(b"\x7fELF")
    assert not starts_the_agent((str(script), ["agent"], None))


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-uE", "-sIB"])
def test_s27_a_python_that_would_not_replay_is_not_started(option: str) -> None:
    """It ignores the path, or loads no start-up module."""
    assert not starts_the_agent((sys.executable, [sys.executable, option, "agent.py"], None))


@pytest.mark.parametrize("name", sorted(OF_REPLAY))
def test_s27_a_python_without_the_replays_environment_is_not_started(name: str) -> None:
    """Its path lacks our folder, it would record, or it would replay another run or report elsewhere."""
    argv = [sys.executable, "agent.py"]
    assert not starts_the_agent((sys.executable, argv, {**OF_REPLAY, name: "/other"}))
    assert not starts_the_agent((sys.executable, argv, {k: v for k, v in OF_REPLAY.items() if k != name}))


@pytest.mark.parametrize("path", ["/bin/echo", "/usr/bin/env", "/nonexistent/python3", "python3", "", 7])
def test_s27_no_other_program_is_started(path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a Python of another environment either: what it has installed is unknown."""
    monkeypatch.chdir(tmp_path)
    assert not starts_the_agent((path, ["python3", "agent.py"], None))
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)
    assert not starts_the_agent((str(other), [str(other), "agent.py"], None))
