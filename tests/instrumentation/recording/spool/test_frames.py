"""The spool format: frames are read as written, torn tails are ignored, damage is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.model.errors import DamagedRecording, ForeignFile, NewerSchema, SourceError
from spanreplay.recording.spool.frames import HEADER, MAGIC, frame_header, iter_frames, scan_file

PAYLOADS = [b"\x0a" + bytes([n]) * (n * 7 + 1) for n in range(6)]


def _write(path: Path, payloads: list[bytes]) -> list[int]:
    """Write a spool file and return the offset after each frame."""
    content, ends = MAGIC, []
    for payload in payloads:
        content += frame_header(payload) + payload
        ends.append(len(content))
    path.write_bytes(content)
    return ends


@settings(max_examples=60, deadline=None)
@given(payloads=st.lists(st.binary(min_size=1, max_size=300), max_size=8))
def test_frames_round_trip(payloads: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any payloads come back byte for byte, and reading can resume at each frame's end."""
    path = tmp_path_factory.mktemp("frames") / "a.spool"
    ends = _write(path, payloads)
    assert [f.end for f in scan_file(path)] == ends
    for n, end in enumerate(ends):
        assert list(iter_frames(path, end)) == payloads[n + 1 :]


def test_torn_tail_at_every_byte_loses_only_the_torn_frame(tmp_path: Path) -> None:
    """A file cut at any byte yields exactly its whole frames."""
    path = tmp_path / "a.spool"
    ends = _write(path, PAYLOADS)
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        assert list(iter_frames(path)) == PAYLOADS[:whole], cut


def test_flipped_byte_is_said_and_never_alters_a_payload(tmp_path: Path) -> None:
    """Any single flipped byte raises, or loses the last frame as a torn tail; no false payload is read."""
    path = tmp_path / "a.spool"
    ends = _write(path, PAYLOADS)
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        read: list[bytes] = []
        try:
            for payload in iter_frames(path):
                read.append(payload)
        except SourceError:
            continue
        finally:
            assert read == PAYLOADS[: len(read)]
        # Only the length of the last frame can look like a torn tail.
        assert ends[-2] <= at < ends[-2] + 4


def test_damage_names_file_and_byte(tmp_path: Path) -> None:
    """The error for a checksum that does not match names the file and the frame's offset."""
    path = tmp_path / "a.spool"
    ends = _write(path, PAYLOADS)
    content = bytearray(path.read_bytes())
    content[ends[1] + HEADER.size + 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DamagedRecording, match=rf"a\.spool is damaged at byte {ends[1]}: the checksum") as caught:
        list(iter_frames(path))
    assert caught.value.hint


def test_zeros_after_power_loss_are_a_torn_tail(tmp_path: Path) -> None:
    """Zeros that the file system left after the last frame are ignored."""
    path = tmp_path / "a.spool"
    _write(path, PAYLOADS)
    path.write_bytes(path.read_bytes() + bytes(5000))
    assert list(iter_frames(path)) == PAYLOADS


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    """A file of another kind raises ForeignFile with a hint."""
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, nothing was recorded today.")
    with pytest.raises(ForeignFile, match="is not a spool file") as caught:
        list(iter_frames(path))
    assert "spanreplay ls" in caught.value.hint


def test_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    """A spool of a later version raises NewerSchema."""
    path = tmp_path / "a.spool"
    path.write_bytes(b"SPRSPOOL3\n" + bytes(100))
    with pytest.raises(NewerSchema, match="version 3"):
        list(iter_frames(path))
