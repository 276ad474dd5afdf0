"""Which files are the agent's data, which are its code, and which belong to the machine."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.distributions import split_site
from spanreplay.model.ids import is_agent_file
from spanreplay.model.owners import starts_application
from spanreplay.runtime.caller.caller import AGENT, LIBRARY, who_opens
from spanreplay.runtime.process.real_paths import forget_folders, real_folder, real_path

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
"""Folders of the machine: files that libraries look up there (certificates, time zones, users) are not input."""
_SETTINGS: Final = (".cfg", ".ini", ".lock", ".toml", "requirements.txt", "setup.py")
_HOME_FOLDERS: Final = (".cache", ".config", ".local", "Library")


_HIDDEN: Final = f"{os.sep}."


class Places:
    """The folders of one process, as found at first use."""

    def __init__(self, code: str = "") -> None:
        """`code` is a folder that is code too, besides the script's folder."""
        main = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
        script = os.path.dirname(os.path.realpath(main)) if main else os.getcwd()  # noqa: PTH109, PTH120 -- text
        home = os.path.realpath(str(Path.home()))
        machine = [sys.prefix, sys.base_prefix, str(config.read_data_dir())]
        self._not_code = (*DEVICES, *{os.path.realpath(each) + os.sep for each in machine})
        self._here = _find_here()
        self._folders: set[str] = set()
        """Those that the application's modules were loaded from, if an installed program has loaded it."""
        self._looked_at = 0 if starts_application() else -1
        """How many modules were loaded when they were looked at; -1 if they are not."""
        self._seen: set[str] = set()
        self._set_trees({find_code_tree(each) for each in (script, code) if each})
        self._loaded: frozenset[str] = frozenset()
        self._modules = 0
        self._machine = (*_MACHINE, *(os.path.join(home, each) + os.sep for each in _HOME_FOLDERS))  # noqa: PTH118 -- text

    def _set_trees(self, trees: set[str]) -> None:
        self._all_trees = trees
        self._trees = tuple({os.path.realpath(each) + os.sep for each in trees})
        self._own = (*dict.fromkeys((*self._not_code, *self._trees)),)
        above = (str(each) for tree in (*trees, self._here) for each in Path(tree).parents)
        self._around = frozenset([self._here, *above])

    def _look_at_modules(self) -> None:
        """Add the code trees of modules loaded since: a server is installed elsewhere than the application it loads."""
        if self._looked_at in (-1, len(sys.modules)) or not _modules_are_code[-1]:
            return
        self._looked_at = len(sys.modules)
        since = sys.modules.keys() - self._seen
        self._seen |= since
        found = {_find_root(sys.modules.get(name)) for name in since if "." not in name and name != "__main__"}
        new = found - self._folders - {"", os.sep}
        if new:
            self._folders |= new
            self._set_trees(self._all_trees | {find_code_tree(each) for each in new})

    def is_data(self, path: str) -> bool:
        """Whether a path is a regular file, or does not exist, outside code."""
        return self.is_data_at(real_path(path))

    def is_data_at(self, real: str) -> bool:
        """`is_data` for a path whose links are resolved."""
        self._look_at_modules()
        if (real.startswith(self._own) and not self._is_hidden(real)) or split_site(real)[0]:
            return False
        try:
            return stat.S_ISREG(os.stat(real).st_mode)  # noqa: PTH116 -- hot path
        except OSError:
            return True

    def is_outside(self, path: str) -> bool:
        """Whether a path, of a file or a folder, is outside code and devices."""
        self._look_at_modules()
        real = real_path(path)
        is_own = (real + os.sep).startswith(self._own) and not self._is_hidden(real)
        return not (is_own or split_site(real)[0])

    def is_code(self, path: str) -> bool:
        """Whether a path lies in the agent's code tree, but not in the interpreter, its packages or our own folders."""
        self._look_at_modules()
        folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 -- text
        whole = os.path.join(real_folder(folder), name)  # noqa: PTH118 -- text: refers to a link itself
        is_installed = (whole + os.sep).startswith(self._not_code) or bool(split_site(whole)[0])
        return whole.startswith(self._trees) and not is_installed and not self._is_hidden(whole)

    def _is_hidden(self, real: str) -> bool:
        """Whether a server's or a tool's own folder beside an application's code has this path: `.langgraph_api`."""
        if not self._folders or real.startswith(self._not_code):
            return False
        return any(
            real.startswith(tree) and _HIDDEN in real[len(tree) - 1 : real.rfind(os.sep) + 1] for tree in self._trees
        )

    def is_setting(self, path: str) -> bool:
        """Whether a path is a project setting, directly around the agent's code or in its working directory."""
        folder, name = os.path.split(real_path(path))
        return folder in self._around and (name.startswith(".") or name.endswith(_SETTINGS))

    def is_loaded(self, path: str) -> bool:
        """Whether a path is the file of a loaded module, wherever it lies."""
        if len(sys.modules) != self._modules:
            # A module's own `__getattr__` may import others
            loaded: list[Any] = list(sys.modules.values())
            modules = [module for module in loaded if isinstance(module, ModuleType)]
            found = (module.__dict__.get("__file__") for module in modules)
            self._loaded = frozenset(each for each in found if isinstance(each, str))
            self._modules = len(sys.modules)
        return path in self._loaded

    def is_of_machine(self, path: str) -> bool:
        """Whether a file belongs to the machine or to a user's caches, not to the agent."""
        return real_path(path).startswith(self._machine)


def _find_here() -> str:
    try:
        return os.path.realpath(os.getcwd())  # noqa: PTH109 -- text
    except OSError:
        return os.sep


def _find_root(module: object) -> str:
    """The folder from which a module of the agent's was imported; '' for any other module."""
    space = module.__dict__ if isinstance(module, ModuleType) else {}
    path = next(iter(space.get("__path__") or ()), None)
    file = space.get("__file__") or (isinstance(path, str) and os.path.join(path, "__init__.py"))  # noqa: PTH118 -- text
    if not isinstance(file, str) or not is_agent_file(file):
        return ""
    folder = os.path.dirname(os.path.abspath(file))  # noqa: PTH100, PTH120 -- text
    return os.path.realpath(folder if path is None else os.path.dirname(folder))  # noqa: PTH120 -- text


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
_modules_are_code: Final = [True]
"""Whether the trees of modules are code: not in a replay of a recording made when they were not."""


def places() -> Places:
    """The folders of this process; determined at the first call, when the agent's script is known."""
    if not _places:
        _places.append(Places(_code))
    return _places[0]


def is_input(path: str, *, by_library: bool = False) -> bool:
    """Whether the content, or the absence, of a path is input of the agent: neither code nor a device.

    A library looks for its settings in the folders around the code and in those of the machine, and for installed
    packages in those that Python imports from; a server's reloader watches the files of loaded modules. None of these
    are the agent's input.
    """
    if not path or "\0" in path or path.startswith(DEVICES):
        return False
    found = places()
    if by_library and (path in sys.path or found.is_setting(path) or found.is_of_machine(path)):
        return False
    return found.is_outside(path) and not (by_library and found.is_loaded(path))


def asks_for(frame: FrameType | None, *paths: str, is_read: bool = False) -> bool:
    """Whether the agent, or a library for it, opens or changes files here; not a library's caches and settings."""
    who = who_opens(frame)
    if who != LIBRARY:
        return who == AGENT
    found = places()
    return not all(found.is_of_machine(each) or (is_read and found.is_setting(each)) for each in paths)


def is_code(path: str) -> bool:
    """Whether a path lies in the agent's code tree."""
    return bool(path) and "\0" not in path and places().is_code(path)


def set_code(folder: str) -> None:
    """Set a folder that is code too, besides the script's folder; '' for none."""
    global _code
    _code = folder
    forget_places()


def set_modules(are_code: bool) -> None:
    """Set whether the trees of an application's modules are code."""
    if are_code != _modules_are_code[-1]:
        _modules_are_code[-1] = are_code
        forget_places()


def forget_places() -> None:
    """Determine the folders again: another agent may run in this process now."""
    forget_folders()
    _places.clear()
