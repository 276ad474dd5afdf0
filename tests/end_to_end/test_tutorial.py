"""The tutorial of the documentation, done word for word."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "tutorial.md"
PORT: Final = 8123
_BLOCK: Final = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE: Final = re.compile(r"Save this as `([\w.]+)`")
_STOPS: Final = "press Ctrl-C in the second terminal"


@dataclass(frozen=True)
class Step:
    """One block of the page, with the text before it."""

    language: str
    place: str
    content: str
    before: str


def _read_steps() -> Iterator[Step]:
    page, end = PAGE.read_text(encoding="utf-8"), 0
    for found in _BLOCK.finditer(page):
        yield Step(found[1], found[2] or "", found[3], page[end : found.start()])
        end = found.end()


class Reader:
    """Somebody who follows the page in two terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = ""
        self._exported = ""
        self._second: subprocess.Popen[bytes] | None = None
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "SPANREPLAY_", "OPENAI_", "PYTEST_"))
        }
        self._environ = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CI": "",
            # The reader's environment has no other plug-ins
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "spanreplay.testing.pytest_plugin",
        }

    def follow(self, step: Step) -> None:
        """Do what one block says."""
        if _STOPS in " ".join(step.before.split()):
            self.stop_model()
        if step.language == "python":
            name = _FILE.findall(step.before)[-1]
            (self.folder / name).write_text(step.content, encoding="utf-8")
        elif step.place == "second":
            self._start_model(step.content)
        elif step.language == "sh":
            self._type(step.content)
        elif step.language == "text":
            self._compare(step.content)

    def stop_model(self) -> None:
        """Press Ctrl-C in the second terminal."""
        if self._second is not None:
            self._second.kill()
            self._second.wait()
            self._second = None

    def _start_model(self, command: str) -> None:
        self._second = subprocess.Popen(command.split(), cwd=self.folder, env=self._environ)
        while self._second.poll() is None:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                    return
        raise AssertionError("the tutorial's model has not started")

    def _type(self, lines: str) -> None:
        script = f"{self._exported}{lines}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self._environ, capture_output=True, text=True, check=False
        )
        self._exported += "".join(f"{line}\n" for line in lines.splitlines() if line.startswith(("export ", "unset ")))
        self.output = done.stdout + done.stderr

    def _compare(self, expected: str) -> None:
        """Each line stands in the output, in this order in standard output and in standard error; … is any text."""
        for line in expected.splitlines():
            pattern = r".*?".join(re.escape(part.strip()) for part in line.split("…"))
            assert re.search(pattern, self.output), (line, self.output)


def test_w8_the_tutorial_is_true(tmp_path: Path) -> None:
    """Whoever follows the tutorial sees what it says: each command is run, and each shown line comes."""
    steps = list(_read_steps())
    assert sum(step.language == "text" for step in steps) > 5
    reader = Reader(tmp_path)
    try:
        for step in steps:
            reader.follow(step)
    finally:
        reader.stop_model()


def test_w8_a_reader_would_notice_what_is_not_true(tmp_path: Path) -> None:
    """A line that a command does not print fails the check."""
    reader = Reader(tmp_path)
    reader.follow(Step("sh", "", "echo one call\n", ""))
    reader.follow(Step("text", "", "one … call\n", ""))
    with pytest.raises(AssertionError):
        reader.follow(Step("text", "", "two calls\n", ""))
