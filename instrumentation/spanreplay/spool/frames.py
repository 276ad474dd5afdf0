"""The spool file format: a magic line, then frames of length, CRC-32 and payload.

A frame is `u32 LE length, u32 LE zlib.crc32(payload), payload`; the payload is one serialized
ExportTraceServiceRequest. A frame that was cut off by the end of the file was never acknowledged to
anybody: readers ignore it. Everything else that does not add up is damage and is said.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from spanreplay.errors import DamagedRecording, ForeignFile, NewerSchema
from spanreplay.spool.limits import FRAME_BYTES_MAX

__all__ = ["HEADER", "MAGIC", "Frame", "frame_header", "iter_frames", "scan_file", "scan_frames", "write_spool_file"]

MAGIC: Final = b"SPRSPOOL1\n"
_OTHER_VERSION: Final = re.compile(rb"SPRSPOOL(\d[\d\n])\Z")
HEADER: Final = struct.Struct("<II")
# After a power failure a file may end in zeros that were never written.
_ZEROS: Final = bytes(64)
# Where a frame might begin: a length below 80 MiB, any checksum, the first tag of a payload.
_FRAME_START: Final = re.compile(rb"(?s)(?=...[\x00-\x04]....\x0a)")
_RESYNC_TRIES_MAX: Final = 4096


class Frame(NamedTuple):
    """One payload and the file offset just after its frame."""

    payload: bytes
    end: int


def frame_header(payload: bytes) -> bytes:
    """The eight bytes that go before a payload; pure."""
    return HEADER.pack(len(payload), zlib.crc32(payload))


def _check_magic(head: bytes, name: str) -> bool:
    """Whether frames may follow; False for a file that was cut off inside its magic line."""
    if head == MAGIC:
        return True
    if MAGIC.startswith(head):
        return False
    if other := _OTHER_VERSION.match(head):
        raise NewerSchema(
            f"{name} is a spool of version {other[1].strip().decode()}, this spanreplay reads version 1",
            hint="upgrade spanreplay: pip install -U spanreplay",
        )
    raise ForeignFile(
        f"{name} is not a spool file: it does not begin with {MAGIC.strip().decode()}",
        hint="pass a .replay file, a .spool file or a run id from: spanreplay ls",
    )


def _damaged(name: str, offset: int, what: str) -> DamagedRecording:
    return DamagedRecording(
        f"{name} is damaged at byte {offset}: {what}",
        hint="restore the file from a copy, or delete it to list the other runs without this warning",
    )


def _holds_frame(rest: bytes) -> bool:
    """Whether a whole valid frame is found in the remains of a file, bounded in effort."""
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


def scan_frames(stream: BinaryIO, name: str, offset: int = 0) -> Iterator[Frame]:
    """Every whole frame of a seekable stream from `offset` on; lazy.

    `name` is what errors call the stream. `offset` is 0 or the `end` of an earlier frame.
    Raises: ForeignFile, NewerSchema, DamagedRecording.
    """
    stream.seek(0)
    if not _check_magic(stream.read(len(MAGIC)), name):
        return
    position = max(offset, len(MAGIC))
    stream.seek(position)
    while True:
        header = stream.read(HEADER.size)
        if len(header) < HEADER.size:
            return
        length, crc = HEADER.unpack(header)
        if length == 0 and crc == 0 and _only_zeros(stream):
            return
        if not 0 < length <= FRAME_BYTES_MAX:
            raise _damaged(name, position, f"a frame of {length} bytes cannot be")
        payload = stream.read(length)
        if len(payload) < length:
            # A damaged length looks like a torn tail, but then whole frames lie behind it.
            if _holds_frame(payload):
                raise _damaged(name, position, f"its length {length} reaches beyond the end of the file")
            return
        if zlib.crc32(payload) != crc:
            if payload.endswith(_ZEROS[:length]) and not stream.read(1):
                return
            raise _damaged(name, position, f"the checksum of {length} bytes does not match")
        position += HEADER.size + length
        yield Frame(payload, position)


def scan_file(path: Path, offset: int = 0) -> Iterator[Frame]:
    """Every whole frame of a spool file from `offset` on; lazy.

    Raises: ForeignFile, NewerSchema, DamagedRecording, OSError.
    """
    with path.open("rb") as stream:
        yield from scan_frames(stream, str(path), offset)


def iter_frames(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Every whole payload of a spool file, in the order of writing; lazy; ignores a torn tail.

    Raises: ForeignFile, NewerSchema, DamagedRecording (names the file and the byte), OSError.
    """
    for frame in scan_file(path, offset):
        yield frame.payload


def write_spool_file(path: Path, payloads: Iterable[bytes]) -> None:
    """A spool file with mode 0600 that appears whole or not at all. Raises: OSError."""
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
