"""Text without secrets: sources, documentation, data and pictures of large packages, read from their archives."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

__all__ = ["CleanText", "iter_clean"]

SUFFIXES: Final = frozenset(
    {
        *(".py", ".pyi", ".pyx", ".js", ".ts", ".go", ".rs", ".c", ".h", ".sh", ".css", ".html", ".htm", ".svg"),
        *(".md", ".rst", ".txt", ".po", ".tex", ".json", ".csv", ".tsv", ".xml", ".yml", ".yaml", ".toml", ".ipynb"),
    }
)
TEST_FOLDERS: Final = frozenset({"test", "tests", "testing", "test-data", "fixtures", "__tests__", "t", "unit"})
"""Folders in which projects keep made-up passwords and keys."""
ARCHIVE_BYTES_MAX: Final = 12_000_000
"""A limit per package, so that none outweighs all others together."""
PIECE_CHARS: Final = 64_000


class CleanText(NamedTuple):
    """A piece of one file, like a tool result that a model would get."""

    name: str
    text: str


def iter_clean(folder: Path) -> Iterator[CleanText]:
    """Yield the texts of every archive in pieces, up to a limit per archive; folders of tests are skipped."""
    for archive in sorted(path for path in folder.iterdir() if path.suffix in (".gz", ".tgz", ".whl")):
        left = ARCHIVE_BYTES_MAX
        for name, raw in _iter_files(archive):
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                continue
            text = text[:left]
            left -= len(raw)
            for at in range(0, len(text), PIECE_CHARS):
                yield CleanText(f"{archive.name}:{name}:{at}", text[at : at + PIECE_CHARS])
            if left <= 0:
                break


def _iter_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if _is_text(info.filename):
                    yield info.filename, wheel.read(info)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() and _is_text(member.name) else None
            if file is not None:
                yield member.name, file.read()


def _is_text(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not TEST_FOLDERS.intersection(path.parts)
