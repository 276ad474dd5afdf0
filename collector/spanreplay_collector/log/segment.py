"""The file format of the log: records in framed segments; pure functions and plain file I/O.

A segment is the magic line followed by frames: u32 length, u32 CRC-32 of the body, body. The body is
u64 received_ns, u16 length of the tenant, tenant (UTF-8), and one serialized ExportTraceServiceRequest.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from spanreplay_collector.limits import RECORD_BYTES_MAX

MAGIC: Final = b"SPRSLOG1\n"
_FRAME: Final = struct.Struct("<II")
_HEAD: Final = struct.Struct("<QH")
_SUFFIX: Final = ".seg"
_IOV_MAX: Final = 512


class Position(NamedTuple):
    """A position in the log; ordered. Offset 0 is the start of a segment."""

    segment: int
    offset: int


@dataclass(frozen=True)
class Record:
    """One acknowledged request and its range in the log, from `start` to `end`."""

    tenant: str
    received_ns: int
    payload: bytes
    start: Position
    end: Position


def segment_path(directory: Path, segment: int) -> Path:
    """Path of a segment's file."""
    return directory / f"{segment:016d}{_SUFFIX}"


def list_segments(directory: Path) -> list[int]:
    """Numbers of the segments on disk, oldest first."""
    stems = (path.stem for path in directory.glob(f"*{_SUFFIX}"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def encode_frame(tenant: str, received_ns: int, payload: bytes) -> tuple[bytes, bytes]:
    """Encode a record as two buffers, so that the payload is not copied."""
    name = tenant.encode()
    head = _HEAD.pack(received_ns, len(name)) + name
    crc = zlib.crc32(payload, zlib.crc32(head))
    return _FRAME.pack(len(head) + len(payload), crc) + head, payload


def write_all(fd: int, buffers: Sequence[bytes]) -> None:
    """Write every byte, continuing after partial writes. Raises: OSError."""
    for first in range(0, len(buffers), _IOV_MAX):
        group = buffers[first : first + _IOV_MAX]
        written = os.writev(fd, group)
        if written < sum(map(len, group)):
            rest = memoryview(b"".join(group))[written:]
            while rest:
                rest = rest[os.write(fd, rest) :]


def sync_file(fd: int) -> None:
    """Return once the bytes are on the disk, not only in its cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync only reaches the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names of a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file atomically: a reader sees either the old or the new content."""
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(fd, [content])
        sync_file(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_directory(path.parent)


@dataclass(frozen=True)
class Frame:
    """A complete frame of a file; `body` is None if its checksum does not match."""

    body: bytes | None
    end: int


def read_frame(file: BinaryIO, offset: int, limit: int) -> Frame | None:
    """Read the frame at an offset; None if no complete frame ends before `limit`."""
    file.seek(offset)
    header = file.read(_FRAME.size)
    if len(header) < _FRAME.size:
        return None
    length, crc = _FRAME.unpack(header)
    end = offset + _FRAME.size + length
    if end > limit or not _HEAD.size <= length <= RECORD_BYTES_MAX:
        return None
    body = file.read(length)
    if len(body) < length:
        return None
    return Frame(body if zlib.crc32(body) == crc else None, end)


def decode_body(body: bytes, start: Position, end: int) -> Record | None:
    """Decode a frame's body to a record; None if it is malformed."""
    received_ns, tenant_bytes = _HEAD.unpack_from(body)
    split = _HEAD.size + tenant_bytes
    if split > len(body):
        return None
    try:
        tenant = body[_HEAD.size : split].decode()
    except UnicodeDecodeError:
        return None
    return Record(tenant, received_ns, body[split:], start, Position(start.segment, end))


def find_end(path: Path) -> int:
    """Offset at which the last intact record of a segment ends; bytes after it are a torn tail.

    A damaged record followed by an intact one does not belong to the tail: readers skip and count it.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return 0
        good = offset = len(MAGIC)
        while True:
            frame = read_frame(file, offset, size)
            if frame is None:
                return good
            offset = frame.end
            if frame.body is not None:
                good = offset
