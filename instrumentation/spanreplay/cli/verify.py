"""`spanreplay verify`: check that runs are unchanged since they were recorded, and who signed them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from spanreplay.cli.runs.runs import LATEST, complete_run, is_file, load
from spanreplay.cli.terminal import counting, echo, print_json
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError, DamagedRecording, RunNotFound
from spanreplay.model.escape import escape
from spanreplay.recording.seal.anchor import Anchors, read_anchors
from spanreplay.recording.seal.signing import load_public_keys
from spanreplay.recording.seal.verify import TAMPERED, UNSIGNED, VERIFIED, Verified, verify
from spanreplay.report.words import plural

SCHEMA: Final = "verify/1"
_STATUS: Final = {VERIFIED: 0, UNSIGNED: 4, TAMPERED: 5}
_COLOUR: Final = {VERIFIED: "green", UNSIGNED: "yellow", TAMPERED: "red"}
_ID_CHARACTERS: Final = 32


@click.command("verify")
@click.argument("runs", nargs=-1, metavar="RUN...", shell_complete=complete_run)
@click.option(
    "--key", "keys", multiple=True, type=click.Path(dir_okay=False), help="A public key in PEM; may be repeated."
)
@click.option(
    "--anchor",
    "anchor",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of `spanreplay anchor`: the runs are what they were then. Without RUN: all of its runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.pass_context
def verify_command(
    ctx: click.Context, *, runs: tuple[str, ...], keys: tuple[str, ...], anchor: Path | None, as_json: bool
) -> None:
    """Check that runs or .replay files are unchanged since they were recorded, and signed with the key of --key.

    Any change to a run is found: a changed byte, a call that was removed, added, moved or taken from another run, a
    missing end, a run that somebody else made. Needs no server and no secret. Runs are signed while they are recorded
    with SPANREPLAY_SIGNING_KEY=FILE, an Ed25519 private key in PEM.

    Exit status: 0 all verified, 4 not signed (or neither --key nor --anchor), 5 tampered; 1 error, 2 wrong usage.
    """
    anchors = None if anchor is None else _read_anchors(anchor)
    if not runs and anchors is None:
        raise click.UsageError("Missing argument 'RUN...'; only with --anchor it may be left out")
    known = load_public_keys(keys)
    runs = runs or tuple(anchors.runs if anchors else ())
    found = []
    with counting("verifying", len(runs)) as told:
        for run in runs:
            found.append(_verify(run, known, anchors))
            told(len(found))
    if as_json:
        print_json({"schema": SCHEMA, "runs": [_to_json(run, each) for run, each in zip(runs, found, strict=True)]})
    else:
        for run, each in zip(runs, found, strict=True):
            echo(_describe(run, each), fg=_COLOUR[each.status])
    ctx.exit(max((_STATUS[each.status] for each in found), default=0))


def _verify(run: str, keys: Any, anchors: Anchors | None) -> Verified:
    try:
        recording = load(run)
    except DamagedRecording as exc:
        return Verified("", TAMPERED, f"it cannot be read: {exc}")
    except RunNotFound:
        anchored = anchors.runs.get(run) if anchors else None
        if anchored is None:
            raise
        return Verified(run, TAMPERED, f"it was here on {anchored.at} and is not here now: removed or erased")
    misnamed = _find_other_name(run, recording)
    return Verified(recording.run_id, TAMPERED, misnamed) if misnamed else verify(recording, keys, anchors)


def _read_anchors(file: Path) -> Anchors:
    try:
        return read_anchors(file.read_bytes())
    except OSError as exc:
        raise ConfigError(f"{file} cannot be read: {exc.strerror}") from exc


def _find_other_name(run: str, recording: Recording) -> str:
    """The reason why this is not the requested run, '' if it is; a file is named after the run in it."""
    named = Path(run).name.partition(".")[0] if is_file(run) else run.strip().lower()
    is_id = len(named) == _ID_CHARACTERS and all(character in "0123456789abcdef" for character in named)
    if run == LATEST or not is_id or named == recording.run_id:
        return ""
    return f"the stored run is {recording.run_id}"


def _to_json(run: str, found: Verified) -> dict[str, Any]:
    return {"source": run, **asdict(found)}


def _describe(run: str, found: Verified) -> str:
    name = f"{escape(run)}: run {found.run_id}" if is_file(run) and found.run_id else f"run {found.run_id or run}"
    more = f", {plural(found.open_calls, 'call')} of them not ended" if found.open_calls else ""
    if found.status == VERIFIED:
        by = f"signed with key {escape(found.key)}" if found.key else ""
        proof = ", ".join(filter(None, (by, f"anchored {escape(found.anchored)}" if found.anchored else "")))
        return f"verified  {name}, {plural(found.calls, 'call')}{more}, {proof}"
    return f"{found.status}  {name}: {escape(found.reason)}"
