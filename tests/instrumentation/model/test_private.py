"""Files that others on the machine, or a repository, put in place of ours: refused with one line, or made private."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spanreplay.model import private
from spanreplay.model.errors import ConfigError
from spanreplay.recording.spool import SpoolCatalog
from spanreplay.recording.spool.courier import read_ack
from spanreplay.recording.spool.directory import ack_path, iter_spool_files, prepare_directory
from spanreplay.recording.spool.writer import SpoolWriter
from spanreplay.redact import load_or_create_key
from spanreplay_collector.log.segment_log import SegmentLog
from spanreplay_service.up import _make_data_dir
from support.agents import without_instrumentors

RUN = "0192f0c4a1b27c3d8e4f5a6b7c8d9e0f"
SECRET = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
AGENT = f"""
import spanreplay

@spanreplay.boundary("tool", name="lookup", effect="read")
def lookup(number):
    return {{"key": "{SECRET}", "number": number}}

print(lookup(7)["number"])
"""


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def _writable_key(key: Path) -> None:
    key.write_text("ab" * 32)
    key.chmod(0o666)


def _fifo_key(key: Path) -> None:
    os.mkfifo(key)


def _linked_key(key: Path) -> None:
    real = key.with_name("elsewhere")
    real.write_text("ab" * 32)
    key.symlink_to(real)


def _linked_directory(key: Path) -> None:
    elsewhere = key.parent.with_name("elsewhere")
    key.parent.rename(elsewhere)
    key.parent.symlink_to(elsewhere)


ODD_KEYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "writable": (_writable_key, "others can write to it (mode 666)"),
    "fifo": (_fifo_key, "it is not a regular file"),
    "link": (_linked_key, "it is a link"),
    "directory_behind_a_link": (_linked_directory, "it is a link to"),
}


@pytest.mark.parametrize("name", ODD_KEYS)
def test_r6_a_key_that_others_may_know_is_refused(tmp_path: Path, name: str) -> None:
    """A redaction key that is a link, a FIFO, writable by others or in a linked directory is named and not used."""
    make, said = ODD_KEYS[name]
    key = tmp_path / ".spanreplay" / "redact.key"
    key.parent.mkdir(mode=0o700)
    make(key)
    with pytest.raises(ConfigError, match=r"redact\.key") as caught:
        load_or_create_key(key)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_r6_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's key is refused; root's is accepted if the user named it, as with a mount in a cluster."""
    key = tmp_path / "redact.key"
    load_or_create_key(key)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1234)
    with pytest.raises(ConfigError, match=f"it belongs to user {os.getuid()}, not to you"):
        load_or_create_key(key)
    if os.getuid() == 0:
        link = tmp_path / "mounted"
        link.symlink_to(key)
        assert load_or_create_key(link, is_named=True) == load_or_create_key(key, is_named=True)


def test_r6_directories_of_ours_are_closed_to_others(tmp_path: Path) -> None:
    """`.spanreplay`, spool and log are made private if others could enter them, and new ones are private."""
    ours = tmp_path / ".spanreplay"
    for path in (ours, ours / "spool", tmp_path / "log"):
        path.mkdir()
        path.chmod(0o755)
    prepare_directory(ours)
    SegmentLog(tmp_path / "log", cursors={"loader": None}).close()
    SegmentLog(tmp_path / "new" / "collector" / "log", cursors={"loader": None}).close()
    closed = [ours, ours / "spool", tmp_path / "log", *(tmp_path / "new").rglob("*")]
    assert {_mode(path) for path in closed if path.is_dir()} == {0o700}
    assert _mode(tmp_path / "new") == 0o700


@pytest.mark.parametrize("linked", [".spanreplay", ".spanreplay/spool"])
def test_r6_a_link_in_place_of_a_directory_is_refused(
    tmp_path: Path, linked: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written through a link in place of a recording directory; it is reported once and counted."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / linked).parent.mkdir(exist_ok=True)
    (tmp_path / linked).symlink_to(elsewhere)
    writer = SpoolWriter(tmp_path / ".spanreplay", RUN)
    assert [writer.append(b"\x0a"), writer.append(b"\x0a")] == [False, False]
    writer.close()
    assert writer.dropped == 2
    assert list(elsewhere.iterdir()) == []
    assert len([r for r in caplog.records if "it is a link to" in r.getMessage()]) == 1


def test_r6_a_directory_that_cannot_be_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the mode of a directory can't be changed, nothing is written into it."""

    def refuse(descriptor: int, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(PermissionError, match=r"open to others \(mode 755\)"):
        private.make_private(tmp_path)


def test_r6_what_is_no_file_in_the_spool_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A FIFO, a link and a directory among recordings block nothing, are reported once, and hide no recording."""
    directory = tmp_path / ".spanreplay"
    writer = SpoolWriter(directory, RUN)
    assert writer.append(b"\x0a")
    recording = writer.path
    assert recording is not None
    writer.close()
    spool = directory / "spool"
    os.mkfifo(spool / f"{RUN}.1-00000001.spool")
    (spool / f"{RUN}.1-00000002.spool").symlink_to(recording)
    (spool / f"{RUN}.1-00000003.spool").mkdir()
    os.mkfifo(ack_path(recording))
    for _ in range(2):
        assert list(iter_spool_files(directory)) == [recording]
    assert read_ack(recording) == 0
    SpoolCatalog(directory).close()
    assert len([r for r in caplog.records if "left alone" in r.getMessage()]) == 3


def test_r6_a_server_refuses_an_open_data_directory(tmp_path: Path) -> None:
    """`spanreplay up` refuses a data directory that others can read, and says what to do."""
    directory = tmp_path / "server"
    directory.mkdir()
    directory.chmod(0o755)
    with pytest.raises(ConfigError, match=r"open to other users \(mode 755\)") as caught:
        _make_data_dir(directory)
    assert "chmod 700" in caught.value.hint
    directory.chmod(0o700)
    assert _make_data_dir(directory) == directory.resolve()
    assert _mode(_make_data_dir(tmp_path / "a" / "b")) == 0o700
    assert _mode(tmp_path / "a") == 0o700


def test_r6_an_agent_runs_on_beside_a_key_that_is_refused(tmp_path: Path) -> None:
    """With a refused key the agent runs as usual, nothing of it is recorded, and one line says why."""
    (tmp_path / "agent.py").write_text(AGENT)
    key = tmp_path / ".spanreplay" / "redact.key"
    key.parent.mkdir(mode=0o700)
    _writable_key(key)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SPANREPLAY_", "PYTEST_"))}
    environ = {**kept, **without_instrumentors()}
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, "agent.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n")
    said = [line for line in done.stderr.splitlines() if "redact.key" in line]
    assert len(said) == 1
    assert "others can write to it" in said[0]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "agent.py"]
    assert not any(SECRET in path.read_text(errors="replace") for path in files)
    assert list(iter_spool_files(key.parent)) == []
