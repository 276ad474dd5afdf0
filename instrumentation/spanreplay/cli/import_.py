"""`spanreplay import`: take in a `.replay` file, or one of JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from spanreplay.bundle import pack
from spanreplay.cli.runs import open_catalog
from spanreplay.cli.terminal import print_json, say, working
from spanreplay.errors import SourceError
from spanreplay.jsonl import is_jsonl, read_jsonl


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print what was taken in as JSON.")
def import_command(*, file: str, as_json: bool) -> None:
    """Take in a .replay file or one of JSON lines; FILE may be - for standard input.

    Taking it in twice changes nothing.
    """
    try:
        bundle = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as exc:
        raise SourceError(f"cannot read {file}: {exc.strerror or exc}") from exc
    if is_jsonl(bundle[:64]):
        bundle = pack(*read_jsonl(bundle, name=file))
    with open_catalog() as catalog, working(f"importing {file}"):
        imported = catalog.import_bundle(bundle)
    if as_json:
        print_json({"run_id": imported.run_id, "spans": imported.spans})
    else:
        click.echo(imported.run_id)
        say(f"imported {imported.spans} spans; see them: spanreplay show {imported.run_id}")
