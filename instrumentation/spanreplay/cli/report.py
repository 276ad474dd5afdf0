"""`spanreplay report`: show a stored verdict in a format for people or machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from spanreplay.cli.reports import write_files, write_summary
from spanreplay.model.errors import SourceError
from spanreplay.report.json import parse
from spanreplay.report.shape import Verdict

FORMATS: Final = ("text", "junit", "sarif", "github", "html")
VERDICT_BYTES_MAX: Final = 64 * 1024 * 1024


def _read(name: str) -> Verdict:
    try:
        with click.open_file(name, "rb") as stream:
            content = stream.read(VERDICT_BYTES_MAX + 1)
    except OSError as exc:
        raise SourceError(
            f"cannot read {name!r}: {exc.strerror or exc}", hint="spanreplay replay RUN --json FILE -- CMD writes one"
        ) from exc
    if len(content) > VERDICT_BYTES_MAX:
        raise SourceError(
            f"{name!r} is larger than {VERDICT_BYTES_MAX:,} bytes", hint="give the file that --json wrote"
        )
    return parse(content.decode("utf-8", "replace"))


@click.command("report")
@click.argument("verdict", metavar="VERDICT.json", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format.")
@click.option("-o", "--output", default="-", help="File to write; - is standard output, the default.")
def report_command(*, verdict: str, form: str, output: str) -> None:
    """Show a verdict that `spanreplay replay --json FILE` wrote, in another format.

    `github` writes workflow commands, and appends to the step summary if GITHUB_STEP_SUMMARY is set.

    \b
    spanreplay report verdict.json
    spanreplay report verdict.json --format html -o verdict.html
    """
    if output != "-" and (Path(output).is_dir() or not Path(output).absolute().parent.is_dir()):
        raise click.UsageError(f"-o {output}: its directory does not exist, or it is a directory itself")
    found = _read(verdict)
    write_files(found, {form: output})
    if form == "github":
        write_summary(found, os.environ)
