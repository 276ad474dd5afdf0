"""`spanreplay import`: import a `.replay` file, spans as JSON, or cassettes of other tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from spanreplay.cli.runs.runs import open_catalog
from spanreplay.cli.terminal import counting, echo, print_json, say, working
from spanreplay.model.errors import SourceError
from spanreplay.recording.bundle import pack
from spanreplay.recording.cassettes import is_cassette
from spanreplay.recording.jsonl import is_json, is_jsonl, read_jsonl


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-o", "--output", metavar="PLACE", help="Cassettes: the .replay file or the folder to write.")
@click.option(
    "--replace",
    multiple=True,
    metavar="PLACEHOLDER=VALUE",
    help="Cassettes: the text that the program uses in place of a placeholder, as '<USER>=ada'; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary of the import as JSON.")
def import_command(*, files: tuple[str, ...], output: str | None, replace: tuple[str, ...], as_json: bool) -> None:
    """Import a .replay file, spans as JSON, or cassettes; FILE may be - for standard input.

    JSON is the output of `export --jsonl`, OTLP, or an export from Phoenix or Langfuse of a run that was sent there
    in full. Importing a run twice is harmless.

    Cassettes of vcrpy (YAML, JSON), betamax and responses become .replay files that serve their HTTP responses:
    tests/cassettes/test_a/test_b.yaml becomes tests/recordings/test_a/test_b.replay; others are written beside the
    cassette. Secrets are redacted.
    """
    contents = [(name, _read(name)) for name in files]
    cassettes = [each for each in contents if is_cassette(each[1], each[0])]
    if cassettes and len(cassettes) < len(contents):
        raise click.UsageError("import cassettes and recordings in two commands")
    if cassettes:
        from spanreplay.cli.cassettes import import_cassettes

        import_cassettes(cassettes, output, replace, as_json=as_json)
        return
    if replace:
        raise click.UsageError("--replace is for cassettes")
    if output is not None:
        raise click.UsageError("-o is for cassettes; write a run to a file with: spanreplay export RUN -o FILE")
    _import_runs(contents, as_json=as_json)


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as exc:
        raise SourceError(f"cannot read {name}: {exc.strerror or exc}") from exc


def _import_runs(contents: Sequence[tuple[str, bytes]], *, as_json: bool) -> None:
    names = ", ".join(name for name, _ in contents)
    with working(f"reading {names}"):
        bundles = [bundle for name, content in contents for bundle in _read_bundles(content, name)]
    imported = []
    with open_catalog() as catalog, counting(f"importing {names}", len(bundles)) as told:
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
