"""Lets a launcher in Python replace itself by the agent's Python, as `ddtrace-run` and `dotenv run` do.

The command of a replay may be such a launcher: it changes the environment, then executes the agent in its own place.
The new program starts the replay again, from the beginning, in the same process. It has to be a Python that does so:
the same one, with our folder on its path and no option to ignore it. Only before the first call: nothing of the
recording is used up then.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.here import BOOT_PARTS, PACKAGE

__all__ = ["starts_the_agent"]

_BOOT: Final = os.path.realpath(Path(PACKAGE, *BOOT_PARTS))
_PYTHON_NAME: Final = re.compile(r"python[0-9.]*\Z")
_SHEBANG_BYTES_MAX: Final = 512
_NEEDED: Final = ("SPANREPLAY_REPLAY_SOURCE", "SPANREPLAY_REPLAY_REPORT")
_TAKES_VALUE: Final = frozenset("WX")


def starts_the_agent(args: Sequence[Any]) -> bool:
    """Whether the arguments of the audit event `os.exec` (path, argv, environment or None) start a replay anew."""
    path, argv, environ = args
    try:
        command = _find_interpreter(os.fsdecode(path), [os.fsdecode(word) for word in argv])
        given = None if environ is None else {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
        return _is_this_python(command[0]) and not _is_isolated(command[1:]) and _replays(given)
    except (TypeError, AttributeError, OSError, ValueError):  # no such file; an argument of another kind
        return False


def _find_interpreter(path: str, argv: Sequence[str]) -> list[str]:
    """The interpreter and its options: the program itself, or that of a script's first line. Raises: OSError."""
    if _PYTHON_NAME.match(os.path.basename(path)):  # noqa: PTH119 -- text
        return [path, *argv[1:]]
    with open(path, "rb") as script:  # noqa: PTH123 -- a path that may be no text
        first = script.readline(_SHEBANG_BYTES_MAX)
    if not first.startswith(b"#!"):
        return [""]
    words = os.fsdecode(first[2:]).split()
    if words and os.path.basename(words[0]) == "env":  # noqa: PTH119 -- text
        words = [shutil.which(words[1]) or "", *words[2:]] if len(words) > 1 else []
    return words or [""]


def _is_this_python(path: str) -> bool:
    """Whether it is the running interpreter, in the same environment."""
    ours = Path(sys.executable)
    return bool(path) and Path(path).parent.samefile(ours.parent) and Path(path).samefile(ours)


def _is_isolated(options: Sequence[str]) -> bool:
    """Whether Python would ignore its path or start-up module: with -I, -E or -S."""
    is_value = False
    for option in options:
        if is_value:
            is_value = False
            continue
        if not option.startswith("-") or option.startswith(("-c", "-m", "--")) or option == "-":
            return False
        if not set(option).isdisjoint("IES"):
            return True
        is_value = option[-1] in _TAKES_VALUE and len(option) == 2
    return False


def _replays(environ: Mapping[str, str] | None) -> bool:
    """Whether a Python with this environment, or with the process's, replays the same recording."""
    values = config.copy_variables() if environ is None else environ
    folders = [os.path.realpath(each) for each in values.get("PYTHONPATH", "").split(os.pathsep) if each]
    if _BOOT not in folders or values.get("SPANREPLAY_MODE") != "replay":
        return False
    return all(values.get(name, "") == config.read_variable(name) for name in _NEEDED)
