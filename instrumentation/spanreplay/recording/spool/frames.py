"""The spool file format: a magic line, then frames of length, CRC-32 and payload.

A frame is `u32 LE length, u32 LE zlib.crc32(payload), payload`; the payload is one serialized
ExportTraceServiceRequest or, in files of version 2, a compact record that stands for one (`compact`).
A frame that is cut off by the end of the file was never acknowledged, so readers ignore it.
Any other inconsistency is damage and raises an error.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from spanreplay.model.errors import DamagedRecording, ForeignFile, NewerSchema
from spanreplay.model.how_to_install import install_command
from spanreplay.recording.spool.limits import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from spanreplay.recording.spool.compact import Context

__all__ = [
    "HEADER",
    "MAGIC",
    "MAGIC_COMPACT",
    "Frame",
    "Record",
    "damaged_at",
    "expand_record",
    "frame_header",
    "iter_frames",
    "scan_file",
    "scan_file_records",
    "scan_frames",
    "scan_records",
    "write_spool_file",
]

MAGIC: Final = b"SPRSPOOL1\n"
MAGIC_COMPACT: Final = b"SPRSPOOL2\n"
"""A file with compact records; it begins with their context."""
_OTHER_VERSION: Final = re.compile(rb"SPRSPOOL(\d[\d\n])\Z")
HEADER: Final = struct.Struct("<II")
# After a power failure a file may end in zeros that were never written.
_ZEROS: Final = bytes(64)
# Where a frame might begin: a length below 80 MiB, any checksum, the first byte of a payload.
_FRAME_START: Final = re.compile(rb"(?s)(?=...[\x00-\x04]....[\x02\x0a])")
_RESYNC_TRIES_MAX: Final = 4096
_COMPACT: Final = b"\x02"


class Record(NamedTuple):
    """One payload as stored, with its file offsets; a compact one has its file's context."""

    payload: bytes
    start: int
    end: int
    context: Context | None = None


class Frame(NamedTuple):
    """One ExportTraceServiceRequest and the file offsets before and after its frame."""

    payload: bytes
    end: int
    start: int = 0


def frame_header(payload: bytes) -> bytes:
    """The eight bytes that go before a payload; pure."""
    return HEADER.pack(len(payload), zlib.crc32(payload))


def _check_magic(head: bytes, name: str) -> bool:
    """Whether frames may follow; False for a file that was cut off inside its magic line."""
    if head in (MAGIC, MAGIC_COMPACT):
        return True
    if MAGIC.startswith(head) or MAGIC_COMPACT.startswith(head):
        return False
    if other := _OTHER_VERSION.match(head):
        raise NewerSchema(
            f"{name} is a spool of version {other[1].strip().decode()}, this spanreplay reads versions 1 and 2",
            hint=f"upgrade spanreplay: {install_command()}",
        )
    raise ForeignFile(
        f"{name} is not a spool file: it does not begin with {MAGIC.strip().decode()}",
        hint="pass a .replay file, a .spool file or a run id from: spanreplay ls",
    )


def damaged_at(name: str, offset: int, what: str) -> DamagedRecording:
    """Return the error for a file that is damaged at this offset."""
    return DamagedRecording(
        f"{name} is damaged at byte {offset}: {what}",
        hint="restore the file from a copy, or delete it to list the other runs without this warning",
    )


def _holds_frame(rest: bytes) -> bool:
    """Whether the rest of a file contains a whole valid frame; bounded in effort."""
    view = memoryview(rest)
    for tries, match in enumerate(_FRAME_START.finditer(rest)):
        if tries >= _RESYNC_TRIES_MAX:
            return False
        start = match.start()
        length, crc = HEADER.unpack_from(rest, start)
        end = start + HEADER.size + length
        if length and end <= len(rest) and zlib.crc32(view[start + HEADER.size : end]) == crc:
            return True
    return False


def _only_zeros(stream: BinaryIO) -> bool:
    while chunk := stream.read(1 << 20):
        if chunk.strip(b"\0"):
            return False
    return True


def scan_records(stream: BinaryIO, name: str, offset: int = 0) -> Iterator[Record]:
    """Every whole payload of a seekable stream from `offset` on, as stored; lazy.

    Errors call the stream `name`. `offset` is 0 or the `end` of an earlier frame.
    Raises: ForeignFile, NewerSchema, DamagedRecording.
    """
    stream.seek(0)
    magic = stream.read(len(MAGIC))
    if not _check_magic(magic, name):
        return
    if magic == MAGIC:
        yield from _scan(stream, name, max(offset, len(MAGIC)), None)
        return
    first = next(_scan(stream, name, len(MAGIC), None), None)
    if first is None:
        return
    from spanreplay.recording.spool.compact import decode_context

    try:
        context = decode_context(first.payload)
    except ValueError:
        raise damaged_at(name, len(MAGIC), "it does not begin with the context of its records") from None
    yield from _scan(stream, name, max(offset, first.end), context)


def _scan(stream: BinaryIO, name: str, position: int, context: Context | None) -> Iterator[Record]:
    stream.seek(position)
    while True:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            return
        length, crc = HEADER.unpack(header)
        if length == 0 and crc == 0 and _only_zeros(stream):
            return
        if not 0 < length <= FRAME_BYTES_MAX:
            raise damaged_at(name, position, f"a frame of {length} bytes cannot be")
        payload = stream.read(length)
        if len(payload) < length:
            # A damaged length looks like a torn tail, but then whole frames follow it.
            if _holds_frame(payload):
                raise damaged_at(name, position, f"its length {length} reaches beyond the end of the file")
            return
        if zlib.crc32(payload) != crc:
            if payload.endswith(_ZEROS[:length]) and not stream.read(1):
                return
            raise damaged_at(name, position, f"the checksum of {length} bytes does not match")
        end = position + HEADER.size + length
        yield Record(payload, position, end, context if payload[:1] == _COMPACT else None)
        position = end


def expand_record(record: Record, name: str) -> bytes:
    """The ExportTraceServiceRequest that a record is or stands for. Raises: DamagedRecording."""
    if record.context is None:
        return record.payload
    from spanreplay.recording.spool.compact import expand

    try:
        return expand(record.payload, record.context)
    except ValueError as exc:
        raise damaged_at(name, record.start, str(exc)) from exc


def scan_frames(stream: BinaryIO, name: str, offset: int = 0) -> Iterator[Frame]:
    """Like `scan_records`, with compact records expanded. Raises: ForeignFile, NewerSchema, DamagedRecording."""
    for record in scan_records(stream, name, offset):
        yield Frame(expand_record(record, name), record.end, record.start)


def scan_file(path: Path, offset: int = 0) -> Iterator[Frame]:
    """Every whole frame of a spool file from `offset` on; lazy.

    Raises: ForeignFile, NewerSchema, DamagedRecording, OSError.
    """
    with path.open("rb") as stream:
        yield from scan_frames(stream, str(path), offset)


def scan_file_records(path: Path) -> Iterator[Record]:
    """Every whole payload of a spool file, as stored; lazy. Raises: as `scan_file`."""
    with path.open("rb") as stream:
        yield from scan_records(stream, str(path))


def iter_frames(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Every whole payload of a spool file, in the order of writing; lazy; ignores a torn tail.

    Raises: ForeignFile, NewerSchema, DamagedRecording (names the file and the byte), OSError.
    """
    for frame in scan_file(path, offset):
        yield frame.payload


def write_spool_file(path: Path, payloads: Iterable[bytes]) -> None:
    """Write a spool file with mode 0600, whole or not at all. Raises: OSError."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(MAGIC)
            for payload in payloads:
                stream.write(frame_header(payload))
                stream.write(payload)
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
