"""The step of action.yml: replays each recording, annotates the code, writes the summary and the counts.

Reads the variables that action.yml sets. Exit status: that of the worst replay; 2 for wrong inputs.
"""

from __future__ import annotations

import glob
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

IDENTICAL, USAGE, DIVERGED, INCOMPLETE = 0, 2, 3, 4
NAMES = {IDENTICAL: "identical", DIVERGED: "diverged", INCOMPLETE: "incomplete"}
COUNTED = ("identical", "diverged", "incomplete", "failed")


def find_recordings(patterns: str, folder: Path) -> list[str]:
    """The files that the patterns name, one on each line, each once, sorted."""
    lines = [line.strip() for line in patterns.splitlines()]
    found = {name for line in lines if line for name in glob.glob(line, root_dir=folder, recursive=True)}  # noqa: PTH207
    return sorted(name for name in found if (folder / name).is_file())


def replay(name: str, folder: Path, verdict: Path) -> int:
    """Replay one recording; return the exit status. Its annotations and summary are GitHub's."""
    say(f"::group::{escape(name)}")
    command = shlex.split(os.environ["COMMAND"])
    words = [
        "spanreplay",
        "replay",
        f"./{name}",
        "--github",
        "--json",
        str(verdict),
        *shlex.split(os.environ["OPTIONS"]),
    ]
    status = subprocess.run([*words, *(["--", *command] if command else [])], cwd=folder, check=False).returncode
    say("::endgroup::")
    return status


def say(line: str) -> None:
    """Print a line before what a child process prints next."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def escape(text: str) -> str:
    """A text as a workflow command takes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def main() -> int:
    """Replay all, in order of their names."""
    folder, verdicts = Path(os.environ["FOLDER"]), Path(os.environ["VERDICTS"]).absolute()
    recordings = find_recordings(os.environ["RECORDINGS"], folder) if folder.is_dir() else []
    if not recordings:
        named = " ".join(os.environ["RECORDINGS"].split())
        say(f"::error title=spanreplay::no recording matches {escape(named)} in {escape(str(folder))}")
        return USAGE
    verdicts.mkdir(parents=True, exist_ok=True)
    statuses = {
        name: replay(name, folder, verdicts / f"{number:04d}-{Path(name).stem}.json")
        for number, name in enumerate(recordings, 1)
    }
    counts = Counter(NAMES.get(status, "failed") for status in statuses.values())
    write_outputs({**{name: str(counts[name]) for name in COUNTED}, "verdicts": str(verdicts)})
    for name, status in statuses.items():
        say(f"{NAMES.get(status, f'failed ({status})'):<12} {name}")
    if os.environ["ALLOW_INCOMPLETE"] == "true":
        statuses = {name: IDENTICAL if status == INCOMPLETE else status for name, status in statuses.items()}
    return min((status for status in statuses.values() if status), key=rank, default=IDENTICAL)


def rank(status: int) -> int:
    """How bad a status is, the worst first: what can't be replayed, then divergences, then holes."""
    return {DIVERGED: 1, INCOMPLETE: 2}.get(status, 0)


def write_outputs(values: dict[str, str]) -> None:
    """Set the step's outputs."""
    path = os.environ.get("GITHUB_OUTPUT")
    if path:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.writelines(f"{name}={value}\n" for name, value in values.items())


if __name__ == "__main__":
    sys.exit(main())
