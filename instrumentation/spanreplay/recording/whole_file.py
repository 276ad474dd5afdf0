"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from spanreplay.model.errors import ConfigError

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: bytes, *, hint: str, makes_folder: bool = False) -> None:
    """Write a file of mode 0600, whole or not at all. Raises: ConfigError with the hint."""
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}", hint=hint) from exc
