"""A native library that writes files directly, as C and Rust libraries do, and whether this kernel can prevent that."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Final

import pytest

_ABI_MIN: Final = 2
NETWORK_ABI: Final = 4
LIBRARY: Final = '''
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)

def _check(result, *paths):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), *paths)
    return result

def write(path, content):
    descriptor = _check(libc.open(path.encode(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), path)
    libc.write(descriptor, content, len(content))
    libc.close(descriptor)

def remove(path):
    _check(libc.unlink(path.encode()), path)

def ask(port):
    """Connect to a port of this machine past Python's sockets, and tell what its server says."""
    descriptor = _check(libc.socket(2, 1, 0))
    address = (2).to_bytes(2, "little") + port.to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
    try:
        _check(libc.connect(descriptor, address, len(address)))
        return os.read(descriptor, 100).decode()
    finally:
        os.close(descriptor)

def dial(port):
    """Connect likewise, and return a function that sends."""
    descriptor = _check(libc.socket(2, 1, 0))
    address = (2).to_bytes(2, "little") + port.to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
    return (lambda content: None) if libc.connect(descriptor, address, len(address)) else (
        lambda content: os.write(descriptor, content)
    )
'''


def _find_abi() -> int:
    if sys.platform != "linux":
        return 0
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1))


needs_landlock = pytest.mark.skipif(_find_abi() < _ABI_MIN, reason="this kernel has no Landlock, or one before 5.19")
needs_offline = pytest.mark.skipif(_find_abi() < NETWORK_ABI, reason="this kernel can't deny connections: before 6.7")


def install_library(folder: Path) -> str:
    """Install the library, called `native`, below a folder and return the path that makes it importable."""
    packages = folder / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "native.py").write_text(LIBRARY, encoding="utf-8")
    return str(packages)
