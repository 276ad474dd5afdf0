"""Find the code change that a divergence comes from, with git and the files' hashes.

Runs in the command, never in the agent's process, because it starts git. Adds causes of kind `code` to a verdict:
a changed line that contains the changed text itself (`value`), one in a function on the call's stack (`place`), or a
file that has changed (`beside`). If git does not know the recorded commit, only the files' hashes are used.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from spanreplay.replayer.compare.blame import FRAGMENT_CHARACTERS_MIN, changed_text
from spanreplay.replayer.compare.moving_parts import MODEL, SAMPLER, SERVING
from spanreplay.replayer.divergence import STRENGTHS, Diff
from spanreplay.report.shape import Cause, Divergence, Verdict

__all__ = ["add_code_causes"]

EXPLAINED_MAX: Final = 5
CAUSES_MAX: Final = 3
DIFF_BYTES_MAX: Final = 4 * 1024 * 1024
GIT_TIMEOUT_S: Final = 10
DIFFS_MAX: Final = 3
_PARTS_OF_MODELS: Final = (MODEL, SAMPLER, SERVING)
_OWN_BODIES: Final = ("tool", "retriever", "compute")
_SHA: Final = re.compile(r"[0-9a-f]{40}")
_HUNK: Final = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_FRAME: Final = re.compile(r"(?P<file>.+?):(?P<line>\d+) (?P<name>.*)")


@dataclass(frozen=True)
class Line:
    """One changed line of the working tree: its place, its text, and the text that it replaced."""

    file: str
    number: int
    text: str
    before: str


def add_code_causes(verdict: Verdict, folder: Path) -> Verdict:
    """Add causes in the code to a verdict; `folder` is the agent's working directory. Never raises."""
    code = verdict.get("code") or {}
    if verdict.get("verdict") != "diverged" or not code:
        return verdict
    causes = [d for d in verdict["divergences"] if not d.get("downstream") and _may_lie_in_code(d)]
    if not causes:
        return verdict
    changed = [str(name) for name in code.get("changed_files") or []]
    lines = _read_changes(str(code.get("recorded") or ""), folder)
    for divergence in causes[:EXPLAINED_MAX]:
        diffs = _printed(verdict) if divergence.get("boundary") == "process:stdout" else _diffs(divergence)
        found = list(_find(divergence, diffs, lines, changed, folder))[:CAUSES_MAX]
        if found:
            others = [each for each in divergence.get("causes") or [] if not _is_told_better(each, found)]
            listed = sorted([*others, *found], key=_rank)
            divergence["causes"] = listed
            divergence["cause"] = str(listed[0].get("evidence", ""))
    return verdict


def _may_lie_in_code(divergence: Divergence) -> bool:
    """Whether the agent's code can be the cause: not if a model answered differently, or the plan changed the call."""
    is_answer = divergence.get("kind") == "output_changed" and divergence.get("part") in _PARTS_OF_MODELS
    return not is_answer and all(c.get("kind") != "plan" for c in divergence.get("causes") or [])


def _is_told_better(cause: Cause, found: list[Cause]) -> bool:
    """Whether git has found the line for a cause in which the replay only named the file."""
    return cause.get("kind") == "code" and any(f"{cause.get('ref')}:" in str(each.get("ref")) for each in found)


def _rank(cause: Cause) -> tuple[int, bool]:
    """Sort key: best evidence first; among `beside` causes, changed code before a changed environment."""
    strength = cause.get("strength", "")
    rank = STRENGTHS.index(strength) if strength in STRENGTHS else len(STRENGTHS)
    return rank, strength == "beside" and cause.get("kind") != "code"


def _diffs(divergence: Divergence) -> list[Diff]:
    return [
        Diff(str(d.get("path")), d.get("recorded"), d.get("now")) for d in (divergence.get("diff") or [])[:DIFFS_MAX]
    ]


def _printed(verdict: Verdict) -> list[Diff]:
    """The differing lines of standard output, recorded and now in pairs."""
    rows = str((verdict.get("stdout") or {}).get("diff") or "").splitlines()[2:]
    gone, come = ([row[1:] for row in rows if row.startswith(sign)] for sign in "-+")
    return [Diff("stdout", *pair) for pair in zip_longest(gone, come)][:DIFFS_MAX]


def _find(
    divergence: Divergence, diffs: list[Diff], lines: list[Line], changed: list[str], folder: Path
) -> Iterator[Cause]:
    frames = [m for m in map(_FRAME.fullmatch, _stack(divergence)) if m]
    body = _body(divergence)
    seen: set[tuple[str, int]] = set()
    for diff in diffs:
        recorded, now = changed_text(diff)
        for line in sorted(lines, key=lambda each: not (recorded and recorded in each.before)):
            if _holds_change(line, recorded, now) and (line.file, line.number) not in seen:
                seen.add((line.file, line.number))
                yield _cause(line, "value", "the changed text is in", folder)
    for line in lines:
        is_there = any(_is_in(f, line, folder) for f in frames) or body in _functions_at(
            folder / line.file, line.number
        )
        if is_there and (line.file, line.number) not in seen:
            seen.add((line.file, line.number))
            yield _cause(line, "place", "this function changed:", folder)
    if not seen and changed:
        named = {f["file"] for f in frames}
        there = [name for name in changed if name in named or body in _functions_at(folder / name)]
        names = sorted(changed, key=lambda name: name not in there)[:CAUSES_MAX]
        strength, ref = ("place", there[0]) if there else ("beside", changed[0])
        said = f"{', '.join(names)} {'have' if len(names) > 1 else 'has'} changed since the recording"
        yield {"kind": "code", "evidence": said, "strength": strength, "ref": ref}


def _body(divergence: Divergence) -> str:
    """Name of the boundary's function whose output changed; '' for a call whose request changed."""
    kind, _, name = str(divergence.get("boundary") or "").partition(":")
    return name if divergence.get("kind") == "output_changed" and kind in _OWN_BODIES else ""


def _holds_change(line: Line, recorded: str, now: str) -> bool:
    """Whether a changed line added the present text or, if there is none, removed the recorded one."""
    if len(now) >= FRAGMENT_CHARACTERS_MIN:
        return now in line.text and now not in line.before
    return (
        not now and len(recorded) >= FRAGMENT_CHARACTERS_MIN and recorded in line.before and recorded not in line.text
    )


def _stack(divergence: Divergence) -> list[str]:
    return [str(f) for f in [*(divergence.get("stack") or []), divergence.get("code") or ""]]


def _is_in(frame: re.Match[str], line: Line, folder: Path) -> bool:
    """Whether a changed line is in a frame's function, or is the frame's own line."""
    if frame["file"] != line.file:
        return False
    name = frame["name"].rpartition(".")[2]
    return int(frame["line"]) == line.number or name in _functions_at(folder / line.file, line.number)


def _functions_at(path: Path, number: int | None = None) -> set[str]:
    """Names of the functions that contain a line of a file; without a line number, of all functions in it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return set()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = (n for n in ast.walk(tree) if isinstance(n, kinds))
    return {n.name for n in found if number is None or n.lineno <= number <= (n.end_lineno or n.lineno)}


def _cause(line: Line, strength: str, words: str, folder: Path) -> Cause:
    commit = _blame(line, folder)
    place = f"{line.file}:{line.number}"
    return {
        "kind": "code",
        "evidence": f"{words} {place} ({commit})",
        "strength": strength,
        "ref": place if commit == "not committed" else f"{commit.split(' ', 1)[0]}:{place}",
    }


def _blame(line: Line, folder: Path) -> str:
    """The commit that last changed a line: its short id and subject."""
    span = f"{line.number},{line.number}"
    blamed = _git(folder, "blame", "--porcelain", "-L", span, "--", line.file)
    sha = blamed.split(" ", 1)[0]
    if not _SHA.fullmatch(sha) or not sha.strip("0"):
        return "not committed"
    subject = next((t[8:] for t in blamed.splitlines() if t.startswith("summary ")), "")
    return f"{sha[:12]} {subject}".strip()


def _read_changes(recorded: str, folder: Path) -> list[Line]:
    """Every line that differs between the recorded commit and the working tree, below `folder`."""
    if not _SHA.fullmatch(recorded):
        return []
    text = _git(folder, "diff", "--no-color", "--no-ext-diff", "--relative", "-U0", recorded, "--", ".")
    return list(_parse(text[:DIFF_BYTES_MAX]))


def _parse(text: str) -> Iterator[Line]:
    file, number = "", 0
    gone: list[str] = []
    come: list[str] = []
    for row in [*text.split("\n"), "@@ -0,0 +0,0 @@"]:
        hunk = _HUNK.match(row)
        if hunk or row.startswith(("diff ", "--- ", "+++ ")):
            before = "\n".join(gone)
            if file and (gone or come):
                # For lines that were only removed, keep the place, with an empty text
                yield from (Line(file, max(1, number + i), t, before) for i, t in enumerate(come or [""]))
            gone, come = [], []
            number = int(hunk[1]) if hunk else 0
            if not hunk:
                file = row[6:].split("\t")[0] if row.startswith("+++ b/") else ""
        elif row.startswith("-"):
            gone.append(row[1:])
        elif row.startswith("+"):
            come.append(row[1:])


def _git(folder: Path, *args: str) -> str:
    """The output of git; '' if git is missing or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args],
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
