"""Write a verdict's reports to files, to standard output and to GitHub Actions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from spanreplay.cli.export import ELSEWHERE
from spanreplay.cli.terminal import echo, say
from spanreplay.recording.whole_file import write_atomically
from spanreplay.report.shape import Verdict

__all__ = ["check_files", "find_folder", "write_files", "write_github", "write_summary"]


def find_folder(environ: Mapping[str, str], here: Path) -> str:
    """The working directory relative to GitHub Actions' checkout; '' outside of it."""
    workspace = environ.get("GITHUB_WORKSPACE")
    if not workspace:
        return ""
    relative = os.path.relpath(here.resolve(), Path(workspace).resolve())
    return "" if relative == "." or relative.startswith("..") else relative


def check_files(files: Mapping[str, str | None]) -> None:
    """Refuse, before the agent runs, files that could not be written afterwards. Raises: UsageError."""
    if sum(file == "-" for file in files.values()) > 1:
        raise click.UsageError("only one report can go to standard output")
    for name, file in files.items():
        if not file or file == "-":
            continue
        path = Path(file)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise click.UsageError(f"--{name} {file}: its directory does not exist, or it is a directory itself")


def write_files(verdict: Verdict, files: Mapping[str, str | None]) -> None:
    """Write each report to its file; - is standard output. Raises: ConfigError."""
    from spanreplay.report.formats import render

    folder = find_folder(os.environ, Path.cwd())
    for name, file in files.items():
        if file == "-":
            echo(render(name, verdict, folder), nl=False)
        elif file:
            write_atomically(Path(file), render(name, verdict, folder).encode(), hint=ELSEWHERE)


def write_summary(verdict: Verdict, environ: Mapping[str, str]) -> None:
    """Append to the step summary if GITHUB_STEP_SUMMARY names a file; a failed write is only reported."""
    from spanreplay.report.github import render_summary

    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(render_summary(verdict, find_folder(environ, Path.cwd())) + "\n")
    except OSError as exc:
        say(f"could not write the step summary: {exc.strerror or exc}")


def write_github(verdict: Verdict) -> None:
    """Write annotations to standard error, which GitHub also reads; standard output belongs to the agent."""
    from spanreplay.report.github import render

    echo(render(verdict, find_folder(os.environ, Path.cwd())), err=True, nl=False)
    write_summary(verdict, os.environ)
