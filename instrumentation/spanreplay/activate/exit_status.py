"""The exit status of a program, as its process ends."""

from __future__ import annotations

import sys
from pathlib import Path

from spanreplay.model import ids


def to_status(code: object) -> int:
    """Return the exit status of `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def may_raise_exit() -> bool:
    """Whether the program may raise SystemExit itself, in which case the status can't be known in the process."""
    main = sys.modules.get("__main__")
    # Python 3.14 has removed the program's `__file__` by now, but not its loader
    program = getattr(main, "__file__", None) or getattr(getattr(main, "__loader__", None), "path", None)
    if program is None:
        return any("SystemExit" in word for word in sys.orig_argv)
    files = {program, *(str(getattr(module, "__file__", None) or "") for module in tuple(sys.modules.values()))}
    sources = [Path(file) for file in files if file.endswith(".py") and ids.is_agent_file(file)]
    return len(sources) > _SOURCES_MAX or any(map(_holds_exit, sources))


def _holds_exit(source: Path) -> bool:
    try:
        is_long = source.stat().st_size > _SOURCE_BYTES_MAX
        return is_long or b"SystemExit" in source.read_bytes()
    except OSError:
        return True


_SOURCE_BYTES_MAX = 1_000_000

_SOURCES_MAX = 500
