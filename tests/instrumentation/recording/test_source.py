"""Sources of a recording: a file or a directory; which are refused, and with which message."""

from __future__ import annotations

from pathlib import Path

import pytest

from spanreplay.model.errors import ConfigError, DamagedRecording, ForeignFile, NewerSchema, RunNotFound
from spanreplay.recording.source import load_newest, load_source
from spanreplay.recording.spool import SpoolCatalog
from support.recordings import write_spool
from support.runs import make_recording, make_run_id


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A directory of recordings, as the agent's environment names it."""
    return {"SPANREPLAY_DIR": str(tmp_path / "data")}


@pytest.fixture
def data_dir(environ: dict[str, str]) -> Path:
    """The path of that directory."""
    return Path(environ["SPANREPLAY_DIR"])


def test_s62_run_is_found_by_its_id_and_in_its_files(environ: dict[str, str], data_dir: Path, tmp_path: Path) -> None:
    """A run id, a spool file and an exported file all give the same recording."""
    recording = make_recording()
    spool = write_spool(data_dir, recording)
    exported = tmp_path / "run.replay"
    catalog = SpoolCatalog(data_dir)
    exported.write_bytes(catalog.export(recording.run_id))
    catalog.close()
    found = [load_source(s, environ) for s in (recording.run_id, str(spool), str(exported))]
    assert found == [recording] * 3


def test_newest_run_of_an_agent_is_found(environ: dict[str, str], data_dir: Path) -> None:
    """The newest run of that agent is chosen; replays are left out."""
    for number in (1, 2):
        write_spool(data_dir, make_recording(make_run_id(number), start_ns=number))
    write_spool(data_dir, make_recording(make_run_id(3), start_ns=3, app="other"))
    write_spool(data_dir, make_recording(make_run_id(4), start_ns=4, replay_of=make_run_id(2)))
    assert load_newest("refunds", environ).run_id == make_run_id(2)


def test_empty_source_is_refused(environ: dict[str, str]) -> None:
    """An empty source is refused, not taken for everything."""
    with pytest.raises(ConfigError):
        load_source("", environ)


def test_unknown_run_is_refused(environ: dict[str, str]) -> None:
    """An unknown run is reported as missing, even in an empty directory."""
    with pytest.raises(RunNotFound):
        load_source(make_run_id(9), environ)
    with pytest.raises(RunNotFound, match="no recorded run of 'agent'"):
        load_newest("agent", environ)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", RunNotFound),
        (b"PK\x03\x04 not a zip", ForeignFile),
        (b"#!/usr/bin/env python\n", ForeignFile),
        (b"SPRSPOOL1\n", RunNotFound),
        (b"SPRSPOOL9\n", NewerSchema),
    ],
    ids=["empty", "broken_zip", "script", "no_frames", "newer"],
)
def test_file_that_is_no_recording_is_refused(content: bytes, error: type[Exception], tmp_path: Path) -> None:
    """A file of another kind is refused by its kind, and never replays as an empty run."""
    path = tmp_path / "run.replay"
    path.write_bytes(content)
    with pytest.raises((error, DamagedRecording)):
        load_source(str(path), {})
