"""`spanreplay export`: write a run to one `.replay` file, which replays without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from spanreplay.cli.runs.runs import complete_run, open_catalog, resolve
from spanreplay.cli.terminal import echo, print_json, say, working
from spanreplay.recording.whole_file import write_atomically

ELSEWHERE: Final = "choose another file"


@click.command("export")
@click.argument("run", shell_complete=complete_run)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write; - is standard output.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Write JSON lines, one OTLP request each, to read and edit.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary of the export as JSON.")
def export_command(*, run: str, output: str | None, as_jsonl: bool, as_json: bool) -> None:
    """Write a run to a .replay file; default: RUN_ID.replay.

    The file contains the run as it was recorded (redacted), and replays without a server.
    """
    from spanreplay.recording.bundle import unpack
    from spanreplay.recording.jsonl import write_jsonl

    with open_catalog() as catalog, working(f"exporting {run}"):
        content = catalog.export(resolve(catalog, run))
        run_id, payloads = unpack(content)
        if as_jsonl:
            content = b"".join(write_jsonl(run_id, payloads))
    if output == "-":
        if as_json:
            raise click.UsageError("--json and -o - would both write to standard output")
        sys.stdout.buffer.write(content)
        return
    path = Path(output or f"{run_id}.{'jsonl' if as_jsonl else 'replay'}")
    write_atomically(path, content, hint=ELSEWHERE)
    if as_json:
        print_json({"run_id": run_id, "file": str(path), "bytes": len(content), "records": len(payloads)})
    else:
        echo(str(path))
        say(f"exported run {run_id}, {len(content):,} bytes; replay it: spanreplay replay {path} -- CMD")
