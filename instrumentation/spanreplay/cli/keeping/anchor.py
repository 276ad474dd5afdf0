"""`spanreplay anchor`: write down what the recorded runs are, in a file that is kept elsewhere."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import click

from spanreplay.cli.runs.runs import open_catalog
from spanreplay.cli.runs.times import format_iso, time_option
from spanreplay.cli.terminal import print_json, say
from spanreplay.model.errors import ConfigError
from spanreplay.recording.catalog import RUNS_MAX, Catalog, RunQuery
from spanreplay.recording.seal.anchor import hash_run, make_line, read_anchors
from spanreplay.report.words import plural


@click.command("anchor")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--since", type=time_option, metavar="TIME", help="Only runs that started at or after this time.")
@click.option("--json", "as_json", is_flag=True, help="Print the head and the ids of the added runs as JSON.")
def anchor_command(*, file: Path, since: int | None, as_json: bool) -> None:
    """Append the hashes of all runs that ended, and are not in FILE yet, to FILE; print the hash of its last line.

    Keep FILE, or that hash, where whoever runs the store cannot change it: in a repository, a bucket that forbids
    overwriting, with a timestamp (`openssl ts -query -data FILE`). `spanreplay verify --anchor FILE` later proves that
    no run of it was changed or removed. FILE contains ids, times and hashes, nothing that was recorded.
    """
    anchors = read_anchors(_read(file))
    with open_catalog() as catalog:
        ended, open_runs = _find_ended(catalog, since or 0)
    added = {run_id: sha256 for run_id, sha256 in ended.items() if run_id not in anchors.runs}
    head = anchors.head
    if added:
        line = make_line(added, format_iso(time.time_ns()), anchors.head)
        head = read_anchors(_append(file, line)).head
    if as_json:
        print_json({"schema": "anchor/1", "head": head, "added": sorted(added), "open": open_runs})
    else:
        click.echo(head)
    later = f"; {plural(open_runs, 'run')} without an end: anchor them later" if open_runs else ""
    say(f"added {plural(len(added), 'run')} to {file}{later}")


def _find_ended(catalog: Catalog, since_ns: int) -> tuple[dict[str, str], int]:
    """The hashes of all runs that have a manifest, by id, and the number of runs without one."""
    query = RunQuery(include_replays=True, limit=RUNS_MAX, since_ns=since_ns)
    ended: dict[str, str] = {}
    unended: set[str] = set()
    while True:
        page = catalog.search(query)
        known = len(ended) + len(unended)
        for summary in page:
            if summary.root.manifest:
                ended[summary.root.run_id] = hash_run(summary.root)
            else:
                unended.add(summary.root.run_id)
        if len(page) < RUNS_MAX or len(ended) + len(unended) == known:
            return ended, len(unended)
        query = replace(query, until_ns=page[-1].root.start_ns)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as exc:
        raise ConfigError(f"{file} cannot be read: {exc.strerror}") from exc


def _append(file: Path, line: str) -> bytes:
    """Append a line and return the file's content."""
    try:
        with file.open("ab") as opened:
            opened.write(line.encode("ascii") + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as exc:
        raise ConfigError(f"{file} cannot be written: {exc.strerror}") from exc
    return _read(file)
