"""Find the distribution that installed a code file, and the one from which this process was started.

The source is pip's own lists (`RECORD`, `entry_points.txt`), read at the first question; `importlib.metadata` would
parse every file of every distribution.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Final

_SITES: Final = re.compile(r".*[/\\](?:site|dist)-packages(?=[/\\])", re.DOTALL)
_INFO: Final = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*?)-[^-]+(?:-py[\d.]+)?\.(?:dist|egg)-info\Z")
_TOP: Final = re.compile(rb'"?([^/,\n]+)([/,])')
_FOLDER: Final = re.compile(rb'\n"?([^,\n]+)/[^/,\n]+,')
_FILES_MAX: Final = 10_000
_listdir: Final = os.listdir  # the real ones, whatever is patched later
_open: Final = open
_stat: Final = os.stat
_RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
_NAMED_OTHERWISE: Final = {
    "PIL": "pillow",
    "_distutils_hack": "setuptools",
    "_yaml": "pyyaml",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "git": "gitpython",
    "grpc": "grpcio",
    "jwt": "pyjwt",
    "pkg_resources": "setuptools",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Common packages whose distributions have other names: where to look first."""
_WITH_VALUE: Final = frozenset("WX")
"""Interpreter options that take the next argument if no value follows in the same one."""


def normalise(name: str) -> str:
    """The normalised name of a distribution (PEP 503)."""
    result = name.lower().replace("_", "-").replace(".", "-")
    while "--" in result:
        result = result.replace("--", "-")
    return result


def split_site(filename: str) -> tuple[str, str]:
    """The folder of installed packages that contains a file, and the rest of its path with `/`; both '' without one."""
    found = _SITES.match(filename)
    folder = _find_target(filename) if found is None else found[0]
    return (folder, filename[len(folder) + 1 :].replace(os.sep, "/")) if folder else ("", "")


@functools.lru_cache(maxsize=_FILES_MAX)
def _find_target(filename: str) -> str:
    """The folder of `pip install --target` (a deployment package, a layer) that a file was installed into; '' if none.

    The agent's own code may be in the same folder, so only files that pip lists count as installed.
    """
    for folder in sys.path or ():  # None while Python ends
        is_above = os.path.isabs(folder) and filename.startswith(os.path.join(folder, ""))  # noqa: PTH117, PTH118 -- text
        if is_above and _site(folder).lists(filename[len(folder) + 1 :].replace(os.sep, "/")):
            return folder
    return ""


def _exists(path: str) -> bool:
    try:
        _stat(path)
    except (OSError, ValueError):
        return False
    return True


class _Site:
    """One folder of installed packages."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.infos: dict[str, str] = {}
        """Distribution → its metadata folder."""
        self._owners: dict[str, str] = {}
        self._tops: dict[str, list[str]] | None = None
        self._near: dict[str, dict[str, str]] = {}
        try:
            listed = _listdir(folder)
        except OSError:
            listed = []
        for each in listed:
            info = _INFO.match(each) if each.endswith("-info") else None
            if info is not None:
                self.infos[normalise(info["name"])] = each

    def owner_of(self, below: str) -> str:
        """The distribution of a file, by its path in this folder; if none lists it, the name of its package."""
        top, _, rest = below.partition("/")
        module = top if rest else top.partition(".")[0]
        key = below.rpartition("/")[0] or below
        known = self._owners.get(key)
        if known is None:
            known = self._find(module, below)
            if len(self._owners) < _FILES_MAX:
                self._owners[key] = known
        return known

    def _find(self, module: str, below: str) -> str:
        name = normalise(module)
        is_package = _exists(os.path.join(self._folder, module, "__init__.py"))  # noqa: PTH118 -- text
        if name in self.infos and (is_package or "/" not in below):
            return name
        near = self._find_near(module, below)
        if near:
            return near
        if self._tops is None:
            self._tops = self._index()
        candidates = self._tops.get(module, [])
        if len(candidates) == 1:
            return candidates[0]
        folder = f"\n{below.rpartition('/')[0]}/".encode()
        listed = [n for n in candidates if folder in self._read(n, "RECORD")]
        if listed:
            return listed[0]
        both = normalise("-".join(below.split("/")[:2]))
        return both if not is_package and "/" in below and both in self.infos else name

    def _find_near(self, top: str, below: str) -> str:
        """A distribution named like a file's package, or like the namespace above it, if it lists the folder; else ''.

        Saves reading the lists of all distributions to find those of `opentelemetry` or `google.protobuf`.
        """
        folder = below.rpartition("/")[0]
        for word in (*folder.split("/")[1:2], _NAMED_OTHERWISE.get(top, top)):
            start = normalise(word)
            listed = self._near.get(start)
            if listed is None:
                listed = self._list_folders(start)
                if len(self._near) < _FILES_MAX:
                    self._near[start] = listed
            if folder in listed:
                return listed[folder]
        return ""

    def _list_folders(self, start: str) -> dict[str, str]:
        """Folder with files → the distribution that lists it, for distributions whose names begin with a word."""
        found: dict[str, str] = {}
        for name in self.infos:
            if name == start or name.startswith(f"{start}-"):
                for folder in {*_FOLDER.findall(self._read(name, "RECORD"))}:
                    found.setdefault(folder.decode(errors="replace"), name)
        return found

    def _index(self) -> dict[str, list[str]]:
        """Top-level module or package → the distributions that list a file of it."""
        found: dict[str, list[str]] = {}
        for name in self.infos:
            record, at, tops = self._read(name, "RECORD"), 1, set()
            while (entry := _TOP.match(record, at)) is not None:
                top = entry[1]
                tops.add(top)
                # pip sorts its lists: the line after the last one of a folder belongs to another folder
                last = record.rfind(b"\n" + top + b"/") if entry[2] == b"/" else -1
                at = (record.find(b"\n", max(last + 1, at)) + 1) or len(record)
            for top in tops:
                found.setdefault(top.decode(errors="replace").partition(".")[0], []).append(name)
        return found

    def _read(self, name: str, file: str) -> bytes:
        try:
            with _open(os.path.join(self._folder, self.infos[name], file), "rb") as stream:  # noqa: PTH118 -- text
                return b"\n" + stream.read(_RECORD_BYTES_MAX)
        except OSError:
            return b""

    @property
    def is_target(self) -> bool:
        """Whether pip has installed something here; a source tree has `egg-info` at most."""
        return any(each.endswith(".dist-info") for each in self.infos.values())

    def lists(self, below: str) -> bool:
        """Whether pip's lists name this file."""
        if not self.is_target:
            return False
        if self._tops is None:
            self._tops = self._index()
        entry = f"\n{below},".encode()
        names = self._tops.get(below.partition("/")[0].partition(".")[0], ())
        return any(entry in self._read(each, "RECORD") for each in names)

    def find_script(self, name: str) -> str:
        """The distribution that installed a program with this name; '' if none did."""
        entry = re.compile(rb"^" + re.escape(name.encode()) + rb"\s*=", re.MULTILINE)
        for each in self.infos:
            text = self._read(each, "entry_points.txt")
            _, found, scripts = text.partition(b"[console_scripts]")
            if found and entry.search(scripts.partition(b"\n[")[0]):
                return each
        wanted = f"/bin/{name},".encode()
        return next((each for each in self.infos if wanted in self._read(each, "RECORD")), "")


_sites: Final[dict[str, _Site]] = {}


def _site(folder: str) -> _Site:
    found = _sites.get(folder)
    if found is None:
        found = _sites[folder] = _Site(folder)
    return found


def find_distribution(filename: str) -> str:
    """The normalised name of the distribution that installed a code file; '' if the file is not installed."""
    folder, below = split_site(filename)
    return _site(folder).owner_of(below) if folder else ""


# ── The start of this process ───────────────────────────────────────────────────────────────────────
def find_start(argv: list[str] | None = None) -> tuple[str, str]:
    """The way this process was started: ("module", its name), ("script", its path) or ("", "")."""
    rest = list(sys.orig_argv if argv is None else argv)[1:]
    while rest:
        option = rest.pop(0)
        if not option.startswith("-") or option == "-":
            return ("script", option) if option != "-" else ("", "")
        if option.startswith("--"):
            if option == "--check-hash-based-pycs" and rest:
                rest.pop(0)
            continue
        for at, letter in enumerate(option[1:], 2):
            value = option[at:]
            if letter == "c":
                return "", ""
            if letter == "m":
                name = value or (rest[0] if rest else "")
                return ("module", name) if name else ("", "")
            if letter in _WITH_VALUE:
                if not value and rest:
                    rest.pop(0)
                break
    return "", ""


def find_started() -> str:
    """The distribution whose console script or module started this process; '' if none did."""
    kind, name = find_start()
    if kind == "script":
        if split_site(name)[0]:
            return find_distribution(name)
        return "" if name.endswith(".py") else _installed_scripts(os.path.basename(name))  # noqa: PTH119 -- text
    return _distribution_of_module(name) if kind == "module" else ""


def _folders() -> list[str]:
    return [
        each
        for each in dict.fromkeys(sys.path)
        if each.endswith(("site-packages", "dist-packages")) or (each and _site(each).is_target)
    ]


def _installed_scripts(name: str) -> str:
    return next(filter(None, (_site(each).find_script(name) for each in _folders())), "")


def _distribution_of_module(name: str) -> str:
    """Find a module's distribution without importing it: the first folder of sys.path with its package decides."""
    path = name.replace(".", os.sep)
    top = path.partition(os.sep)[0]
    for folder in sys.path or ():  # None while Python ends
        here = folder or os.curdir
        for found in (os.path.join(here, top), os.path.join(here, f"{top}.py")):  # noqa: PTH118 -- text
            if _exists(found):
                return find_distribution(os.path.join(here, path, "__main__.py") if found.endswith(top) else found)  # noqa: PTH118 -- text
    return ""
