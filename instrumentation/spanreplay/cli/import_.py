"""`spanreplay import`: import a `.replay` file, or spans as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from spanreplay.cli.runs.runs import open_catalog
from spanreplay.cli.terminal import counting, echo, print_json, say, working
from spanreplay.model.errors import SourceError
from spanreplay.recording.bundle import pack
from spanreplay.recording.jsonl import is_json, is_jsonl, read_jsonl


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print a summary of the import as JSON.")
def import_command(*, file: str, as_json: bool) -> None:
    """Import a .replay file, or spans as JSON; FILE may be - for standard input.

    JSON is the output of `export --jsonl`, OTLP, or an export from Phoenix or Langfuse of a run that was sent there
    in full. Importing a run twice is harmless.
    """
    try:
        bundle = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as exc:
        raise SourceError(f"cannot read {file}: {exc.strerror or exc}") from exc
    with working(f"reading {file}"):
        bundles = [*_read_bundles(bundle, file)]
    imported = []
    with open_catalog() as catalog, counting(f"importing {file}", len(bundles)) as told:
        for each in bundles:
            imported.append(catalog.import_bundle(each))
            told(len(imported))
    if as_json:
        runs = [{"run_id": run.run_id, "spans": run.spans} for run in imported]
        print_json(runs[0] if len(runs) == 1 else runs)
        return
    for run in imported:
        echo(run.run_id)
        say(f"imported {run.spans} spans; see them: spanreplay show {run.run_id}")


def _read_bundles(data: bytes, name: str) -> Iterator[bytes]:
    """The runs of a file, each as a `.replay` file."""
    if not is_json(data[:64]):
        yield data
        return
    if is_jsonl(data):
        yield pack(*read_jsonl(data, name=name))
        return
    from spanreplay.recording.other_tools import read_tool_json

    for run_id, payloads in read_tool_json(data, name=name).items():
        yield pack(run_id, payloads)
