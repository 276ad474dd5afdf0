"""Read one entry of a zip file in pieces, so that neither its size nor a false stated size can fill the memory.

`zipfile` unpacks a whole entry before it checks the stated size. Here (1) every piece is bounded, (2) the stated size,
the checksum and the end of the packed data must agree, and (3) the ratio of unpacked to packed size is limited.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from typing import Final

__all__ = ["FREE_BYTES", "RATIO_MAX", "Inflated", "room_of"]

PIECE_BYTES: Final = 64 * 1024
RATIO_MAX: Final = 32
"""Largest ratio of unpacked to packed size; our own entries have about 5 to 15."""
FREE_BYTES: Final = 16 * 1024 * 1024
"""An entry up to this size may have any ratio."""
_LOCAL_HEADER: Final = struct.Struct("<4s5H3L2H")


def room_of(packed_bytes: int) -> int:
    """Return the largest unpacked size allowed for an entry of this many packed bytes."""
    return max(FREE_BYTES, RATIO_MAX * packed_bytes)


class Inflated(io.RawIOBase):
    """The content of one entry of an in-memory zip file, read forwards only; `sha256` covers the bytes read so far.

    Raises: zipfile.BadZipFile while reading, if size, checksum and packed data disagree.
    """

    def __init__(self, data: bytes, entry: zipfile.ZipInfo) -> None:
        self._packed = _packed_of(data, entry)
        self._entry = entry
        self._unpacker = None if entry.compress_type == zipfile.ZIP_STORED else zlib.decompressobj(-zlib.MAX_WBITS)
        self._next = 0
        self._held = b""
        self._given = 0
        self._unpacked = 0
        self._crc = 0
        self._is_whole = False
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """True, although only to the current position."""
        return True

    def tell(self) -> int:
        """Number of bytes read so far."""
        return self._given

    def seek(self, offset: int, whence: int = 0) -> int:
        """Stay at the current position. Raises: io.UnsupportedOperation for any other position."""
        if whence or offset != self._given:
            raise io.UnsupportedOperation("a packed entry is read forwards")
        return offset

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes (all if negative), fewer only at the end."""
        parts: list[bytes] = []
        wanted = size if size >= 0 else self._entry.file_size + 1
        while wanted > 0:
            if not self._held and not self._fill():
                break
            part, self._held = self._held[:wanted], self._held[wanted:]
            wanted -= len(part)
            self._given += len(part)
            parts.append(part)
        return b"".join(parts)

    def _fill(self) -> bool:
        # (1)
        while not self._held and not self._is_whole:
            self._held = self._next_piece()
        self._unpacked += len(self._held)
        self._crc = zlib.crc32(self._held, self._crc)
        self.sha256.update(self._held)
        # (2)
        if self._unpacked > self._entry.file_size:
            raise zipfile.BadZipFile(f"{self._entry.filename} is larger than its stated size")
        if self._is_whole and (self._unpacked, self._crc) != (self._entry.file_size, self._entry.CRC):
            raise zipfile.BadZipFile(f"the checksum of {self._entry.filename} does not match")
        return bool(self._held)

    def _next_piece(self) -> bytes:
        if self._unpacker is None:
            piece = bytes(self._packed[self._next : self._next + PIECE_BYTES])
            self._next += len(piece)
            self._is_whole = self._next >= len(self._packed)
            return piece
        left = self._unpacker.unconsumed_tail
        if not left:
            left = bytes(self._packed[self._next : self._next + PIECE_BYTES])
            self._next += len(left)
        piece = self._unpacker.decompress(left, PIECE_BYTES)
        if self._unpacker.eof:
            self._is_whole = True
            if self._unpacker.unused_data or self._next < len(self._packed):
                raise zipfile.BadZipFile(f"{self._entry.filename} ends before its packed data")
        elif not left and not piece:
            raise zipfile.BadZipFile(f"the packed data of {self._entry.filename} ends early")
        return piece


def _packed_of(data: bytes, entry: zipfile.ZipInfo) -> memoryview:
    try:
        header = _LOCAL_HEADER.unpack_from(data, entry.header_offset)
    except struct.error:
        raise zipfile.BadZipFile(f"{entry.filename} begins beyond the end") from None
    start = entry.header_offset + _LOCAL_HEADER.size + header[9] + header[10]
    if header[0] != b"PK\x03\x04" or start + entry.compress_size > len(data):
        raise zipfile.BadZipFile(f"{entry.filename} reaches beyond the end")
    return memoryview(data)[start : start + entry.compress_size]
