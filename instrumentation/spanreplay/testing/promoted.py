"""The assertions of promoted tests.

Fail-to-pass: a wrong call is not made again, and the run has not changed elsewhere before it. Pass-to-pass: a run that
was right has not changed at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["IDENTICAL", "Instead", "check_promoted", "check_same", "find_instead", "is_made"]

IDENTICAL: Final = "identical"
_STATUSES: Final = (0, 3, 4)
_TIMEOUT_S: Final = 600.0
_MAIN: Final = "from spanreplay.cli import main; main()"
_NOT_MADE: Final = frozenset({"missing_call", "changed_call", "type_changed"})
"""Kinds of divergences in which a recorded call was not made, or was made with another request."""
Instead = tuple[str, str, int]
"""First divergence of a replay: its kind, boundary, and the number of the recorded call (0: none)."""


def check_promoted(
    recording: str | os.PathLike[str],
    *,
    never: int,
    instead: Instead,
    command: Sequence[str],
    cwd: str | os.PathLike[str],
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Replay a recording with today's code; `spanreplay promote` writes tests that call this function.

    `never`: the number of the recorded call that must not be made again. `instead`: the first divergence of the fixed
    code. No live call is made and nothing is written.

    Raises: AssertionError if the call is made again, or if the replay diverges from the recording elsewhere, so that
    nothing is known about the call; RuntimeError if there is no verdict.
    """
    verdict = _replay(recording, command, cwd, timeout_s)
    found = find_instead(verdict)
    if is_made(verdict, _find_span(Path(recording), never)):
        raise AssertionError(f"call {never} is made again, as in the recorded run {verdict.get('run_id', '')}")
    if found != tuple(instead):
        raise AssertionError(
            f"the run goes another way before it comes to call {never}: {_describe(found)}; when this test was "
            f"written: {_describe(tuple(instead))}. It says nothing about that call any more: record the run "
            "again with the code of now, or promote it again"
        )


def check_same(
    recording: str | os.PathLike[str],
    *,
    command: Sequence[str],
    cwd: str | os.PathLike[str],
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Replay a recording with today's code; `spanreplay promote --same` writes tests that call this function.

    No live call is made and nothing is written. Raises: AssertionError unless the replay is identical, with the first
    difference; RuntimeError if there is no verdict.
    """
    verdict = _replay(recording, command, cwd, timeout_s)
    if verdict.get("verdict") == IDENTICAL:
        return
    first = next((each for each in verdict.get("divergences") or [] if not each.get("downstream")), None)
    what = str(first.get("message", "")) if first is not None else "; ".join(verdict.get("reasons") or [])
    raise AssertionError(
        f"run {verdict.get('run_id', '')}, which was right, is {verdict.get('verdict')} now: {what}. If this change is "
        "intended, record the run again and promote it again"
    )


def is_made(verdict: Mapping[str, Any], span_id: str) -> bool:
    """Whether a recorded call, named by its span, was made, even if at another place.

    Raises: RuntimeError if the verdict can't tell.
    """
    divergences = verdict.get("divergences") or []
    if verdict.get("divergences_total", len(divergences)) > len(divergences):
        raise RuntimeError("too much has changed to tell: the verdict does not list every call")
    kinds = {each.get("kind") for each in divergences if each.get("recorded_span_id") == span_id}
    if not kinds and verdict.get("verdict") == "incomplete":
        raise RuntimeError("the recording is incomplete: its replay may have ended before that call")
    return not kinds or not kinds <= _NOT_MADE


def find_instead(verdict: Mapping[str, Any]) -> Instead | None:
    """The first divergence of a replay; None if there is none."""
    divergences = verdict.get("divergences") or []
    first = next((each for each in divergences if not each.get("downstream")), None)
    if first is None:
        return None
    return str(first.get("kind", "")), str(first.get("boundary", "")), int(first.get("call") or 0)


def _find_span(recording: Path, number: int) -> str:
    from spanreplay.recording.bundle import load_file

    return next(call.span_id for call in load_file(recording).calls if call.number == number)


def _describe(instead: tuple[Any, ...] | None) -> str:
    if instead is None:
        return "it does what was recorded"
    kind, boundary, number = instead
    return f"{kind} at {f'call {number}, ' if number else ''}{boundary}"


def _replay(
    recording: str | os.PathLike[str], command: Sequence[str], cwd: str | os.PathLike[str], timeout_s: float
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="spanreplay-", ignore_cleanup_errors=True) as folder:
        report = Path(folder, "verdict.json")
        options = ["--json", str(report), "--timeout", str(timeout_s), "--", *command]
        settings = {"SPANREPLAY_DIR": str(Path(folder, "data")), "SPANREPLAY_ENDPOINT": ""}
        key = Path(cwd, ".spanreplay", "redact.key").absolute()
        if key.is_file() and not os.environ.get("SPANREPLAY_REDACT_KEY"):
            settings["SPANREPLAY_REDACT_KEY"] = str(key)
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, "replay", str(Path(recording).absolute()), *options],
            cwd=cwd,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in _STATUSES or not report.exists():
            raise RuntimeError(f"no verdict, exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found
