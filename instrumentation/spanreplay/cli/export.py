"""`spanreplay export`: write a run to one `.replay` file, which replays without a server."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from spanreplay.cli.runs.runs import complete_run, open_catalog, resolve
from spanreplay.cli.terminal import echo, print_json, say, working
from spanreplay.model.errors import SourceError
from spanreplay.model.json_text import dump
from spanreplay.recording.whole_file import write_atomically
from spanreplay.units.stated import find_unit

if TYPE_CHECKING:
    from spanreplay.model.call import Recording
    from spanreplay.recording.catalog import Catalog

PROCESS_BYTES_MAX: Final = 64 * 1024 * 1024
ELSEWHERE: Final = "choose another file"


@click.command("export")
@click.argument("run", shell_complete=complete_run)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write; - is standard output.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Write JSON lines, one OTLP request each, to read and edit.")
@click.option("--anonymous", is_flag=True, help="Replace user, session and the values of --hide by pseudonyms.")
@click.option(
    "--hide", "hidden", multiple=True, metavar="TEXT", help="With --anonymous: a text to replace, such as a name."
)
@click.option(
    "--hide-field",
    "fields",
    multiple=True,
    metavar="NAME",
    help="With --anonymous: JSON members whose texts are replaced.",
)
@click.option(
    "--hide-file",
    type=click.File(encoding="utf-8"),
    help="With --anonymous: a file with a text to replace in each line.",
)
@click.option(
    "--pseudonyms", type=click.Path(dir_okay=False), help="With --anonymous: write which pseudonym stands for what."
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary of the export as JSON.")
def export_command(
    *,
    run: str,
    output: str | None,
    as_jsonl: bool,
    anonymous: bool,
    hidden: tuple[str, ...],
    fields: tuple[str, ...],
    hide_file: TextIO | None,
    pseudonyms: str | None,
    as_json: bool,
) -> None:
    """Write a run to a .replay file; default: RUN_ID.replay.

    The file contains the run as it was recorded (redacted), and replays without a server; that of a request contains
    the start of its process too. With --anonymous, people who may not know who took part can have it: each hidden text
    is a pseudonym, the same everywhere in the file.
    """
    from spanreplay.recording.bundle import add_runs, unpack
    from spanreplay.recording.jsonl import write_jsonl

    lines = [] if hide_file is None else [line.strip() for line in hide_file if line.strip()]
    if not anonymous and (hidden or fields or lines or pseudonyms):
        raise click.UsageError("--hide, --hide-field, --hide-file and --pseudonyms need --anonymous")
    with open_catalog() as catalog, working(f"exporting {run}"):
        chosen = resolve(catalog, run)
        if anonymous:
            content, found = _anonymise(catalog.load(chosen), (*hidden, *lines), fields)
        else:
            content, found = catalog.export(chosen), {}
        run_id, payloads = unpack(content)
        refused = "nothing is hidden in it" if anonymous else "JSON lines hold one run" if as_jsonl else ""
        process = _export_process(catalog, chosen, refused)
        if as_jsonl:
            content = b"".join(write_jsonl(run_id, payloads))
        elif process:
            content = add_runs(content, process)
    if anonymous:
        _tell(found, (*hidden, *lines), pseudonyms)
    if output == "-":
        if as_json:
            raise click.UsageError("--json and -o - would both write to standard output")
        sys.stdout.buffer.write(content)
        return
    path = Path(output or f"{run_id}.{'jsonl' if as_jsonl else 'replay'}")
    write_atomically(path, content, hint=ELSEWHERE)
    if as_json:
        summary = {"run_id": run_id, "file": str(path), "bytes": len(content), "records": len(payloads)}
        print_json({**summary, **({"process": list(process)} if process else {})})
    else:
        echo(str(path))
        start = f" with the start of its process, {', '.join(process)}" if process else ""
        say(f"exported run {run_id}{start}, {len(content):,} bytes; replay it: spanreplay replay {path} -- CMD")


def _export_process(catalog: Catalog, unit_id: str, refused: str) -> dict[str, bytes]:
    """The runs that a replay of a unit needs besides its own, by id; says why one is left out."""
    found: dict[str, bytes] = {}
    try:
        unit = find_unit(catalog.load(unit_id).root.env)
    except SourceError:  # it was killed before its first call: its file says so
        unit = None
    for run_id in () if unit is None else unit.runs:
        why = refused
        if not why:
            try:
                found[run_id] = catalog.export(run_id)
            except SourceError as exc:
                why = str(exc)
        if len(found.get(run_id, b"")) > PROCESS_BYTES_MAX:
            why = f"it has {len(found.pop(run_id)):,} bytes"
        if why:
            say(f"the start of its process, run {run_id}, is not in the file: {why}")
    return found


def _anonymise(
    recording: Recording, hidden: Collection[str], fields: Collection[str]
) -> tuple[bytes, Mapping[str, str]]:
    """An anonymous recording as a file, and the pseudonyms in it. Raises: SpanreplayError."""
    from spanreplay.recording.anonymous import anonymise, find_field_values
    from spanreplay.recording.derived import pack_recording

    made, found = anonymise(recording, {*hidden, *find_field_values(recording, fields)})
    return pack_recording(made), found


def _tell(found: Mapping[str, str], hidden: Collection[str], pseudonyms: str | None) -> None:
    say(f"{len(found):,} texts are pseudonyms in this export")
    for text in hidden:
        if text not in found:
            say(f"not in this run, so nothing was hidden: {text!r}")
    if pseudonyms:
        write_atomically(Path(pseudonyms), (dump(dict(found)) + "\n").encode(), hint=ELSEWHERE)
        say(f"which pseudonym stands for what: {pseudonyms}; keep it to yourself")
