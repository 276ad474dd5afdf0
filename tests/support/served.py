"""Replays that listen: `spanreplay replay RUN --serve`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from support.replaying import TIMEOUT_S, Workplace


@contextmanager
def served_replay(
    place: Workplace, run: str, command: Sequence[str]
) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """Start a listening replay; yield its address, the command that it shows, and its process."""
    argv = [str(place.python.parent / "spanreplay"), "replay", run, "--serve", "0", "--", str(place.python), *command]
    process = subprocess.Popen(
        argv, cwd=place.path, env=place.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        line, shown = process.stderr.readline(), process.stderr.readline()
        assert line.startswith("serving http://127.0.0.1:"), line + shown + process.stderr.read()
        yield line.split()[1].rstrip(":"), shown, process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
