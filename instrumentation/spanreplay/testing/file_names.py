"""Names of recordings: the file of a test."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["FOLDER", "safe_name"]

FOLDER: Final = "recordings"
"""Folder beside a test module with the recordings of its tests."""
_NAME_CHARACTERS_MAX: Final = 120
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.=+-]+")


def safe_name(name: str) -> str:
    """A file name for a test, different for every test."""
    safe = _UNSAFE.sub("-", name).strip("-")[:_NAME_CHARACTERS_MAX]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
