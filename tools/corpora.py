"""Gets the packages of tools/corpora.txt into .corpora: pinned by version and hash, never imported, never run.

Run: python tools/corpora.py UNEARTH    (the program that downloads from the Python package index without building)
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PINS: Final = ROOT / "tools" / "corpora.txt"
FOLDER: Final = ROOT / ".corpora"
TIMEOUT_S: Final = 600
FILE_BYTES_MAX: Final = 4_000_000


_FOLDERS: Final = {"secrets": "secrets", "fresh": "fresh"}


class Pin(NamedTuple):
    """One package: where it comes from, what it is read for, and the hash of its archive."""

    registry: str
    use: str
    name: str
    version: str
    sha256: str


def read_pins() -> list[Pin]:
    """The lines of tools/corpora.txt."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    return [Pin(*line.split()) for line in lines if line and not line.startswith("#")]


def fetch(pin: Pin, unearth: str) -> Path:
    """The archive of a package, verified; downloaded only if it is not here yet."""
    kept = FOLDER / _FOLDERS.get(pin.use, "archives")
    kept.mkdir(parents=True, exist_ok=True)
    for path in kept.iterdir():
        if _hash(path) == pin.sha256:
            return path
    with tempfile.TemporaryDirectory() as name:
        if pin.registry == "npm":
            command = ["npm", "pack", "--silent", "--ignore-scripts", f"{pin.name}@{pin.version}"]
        else:
            kind = "--only-binary" if pin.registry == "wheel" else "--no-binary"
            command = [unearth, kind, "--download", name, f"{pin.name}=={pin.version}"]
        subprocess.run(command, cwd=name, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
        found = [path for path in Path(name).iterdir() if path.is_file()]
        if len(found) != 1 or _hash(found[0]) != pin.sha256:
            raise SystemExit(f"{pin.name} {pin.version}: the archive is not the one that tools/corpora.txt names")
        return Path(shutil.copy(found[0], kept))


def unpack(archive: Path) -> None:
    """The files of a source archive as plain files; no links, nothing outside of the folder."""
    target = FOLDER / "unpacked"
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile() and member.size <= FILE_BYTES_MAX]
        tar.extractall(target, members, filter="data")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Get and unpack everything; the pins say what."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for pin in read_pins():
        archive = fetch(pin, sys.argv[1])
        if pin.use in ("secrets", "both"):
            unpack(archive)
    sys.stderr.write(f"the corpora are in {FOLDER.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
