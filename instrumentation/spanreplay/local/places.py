"""Which files are the agent's data, which are its code, and which belong to the machine."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from spanreplay import config

DEVICES: Final = ("/dev/", "/proc/", "/sys/")
_MACHINE: Final = (
    "/bin/",
    "/etc/",
    "/lib",
    "/sbin/",
    "/usr/",
    "/run/",
    "/nix/",
    "/System/",
    "/Library/",
    "/private/etc/",
)
"""Folders of the machine: what libraries look up there (certificates, time zones, users) is no input of the agent's."""
_SETTINGS: Final = (".cfg", ".ini", ".lock", ".toml", "requirements.txt", "setup.py")
_HOME_FOLDERS: Final = (".cache", ".config", ".local", "Library")


class Places:
    """The folders of one process, as they were when it was asked first."""

    def __init__(self, code: str = "") -> None:
        """`code` is a folder that is code too, besides the one of the script."""
        main = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
        script = os.path.dirname(os.path.realpath(main)) if main else os.getcwd()  # noqa: PTH109, PTH120 -- text
        own = [find_code_tree(script), sys.prefix, sys.base_prefix, str(config.read_data_dir())]
        own += [find_code_tree(code)] if code else []
        self._own = (*DEVICES, *{os.path.realpath(each) + os.sep for each in own})
        home = os.path.realpath(str(Path.home()))
        trees = {find_code_tree(each) for each in (script, code) if each}
        self._around = frozenset(str(each) for tree in trees for each in Path(tree).parents)
        self._machine = (*_MACHINE, *(os.path.join(home, each) + os.sep for each in _HOME_FOLDERS))  # noqa: PTH118 -- text

    def is_data(self, path: str) -> bool:
        """Whether a path is that of a regular file, or of none, outside of code."""
        real = os.path.realpath(path)
        if real.startswith(self._own):
            return False
        try:
            return stat.S_ISREG(os.stat(real).st_mode)  # noqa: PTH116 -- hot path
        except OSError:
            return True

    def is_outside(self, path: str) -> bool:
        """Whether a path, of a file or a folder, is outside of code and of devices."""
        return not (os.path.realpath(path) + os.sep).startswith(self._own)

    def is_setting(self, path: str) -> bool:
        """Whether a path is that of a project's settings, directly in one of the folders around the agent's code."""
        folder, name = os.path.split(os.path.realpath(path))
        return folder in self._around and (name.startswith(".") or name.endswith(_SETTINGS))

    def is_of_machine(self, path: str) -> bool:
        """Whether a file belongs to the machine or to a user's caches, not to the agent."""
        return os.path.realpath(path).startswith(self._machine)


def find_code_tree(folder: str) -> str:
    """The git work tree around a folder, else the folder; a temporary or home directory is never a code tree."""
    too_wide = {os.path.realpath(each) for each in (tempfile.gettempdir(), str(Path.home()), "/")}
    for each in (Path(folder), *Path(folder).parents):
        if str(each) in too_wide:
            break
        if (each / ".git").exists():
            return str(each)
    return folder


_places: list[Places] = []
_code = ""


def places() -> Places:
    """The folders of this process; found out at the first call, when the agent's script is known."""
    if not _places:
        _places.append(Places(_code))
    return _places[0]


def is_input(path: str, *, by_library: bool = False) -> bool:
    """Whether what is at a path, or that nothing is there, is no code's and no device's.

    A library looks for its settings in the folders around the code and in those of the machine: none of the agent's.
    """
    if not path or "\0" in path or path.startswith(DEVICES):
        return False
    found = places()
    return found.is_outside(path) and not (by_library and (found.is_setting(path) or found.is_of_machine(path)))


def set_code(folder: str) -> None:
    """Say which folder is code too, besides the one of the script; '' is none."""
    global _code
    _code = folder
    forget_places()


def forget_places() -> None:
    """Find the folders out anew: another agent may run in this process now."""
    _places.clear()
