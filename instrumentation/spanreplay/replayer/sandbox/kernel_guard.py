"""Makes the kernel guard a replay's files and network (only if the whole process is one): native code bypasses Python.

Files that Python opens go to the overlay, and Python code that bypasses it is denied (`overlay`, `hermetic`). A library
in C, C++ or Rust goes through neither. The guard can't be lifted, so it needs a process that ends with its replay and
does nothing live.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from spanreplay.model import config
from spanreplay.recording.spool.directory import prepare_directory
from spanreplay.replayer.resolve.guard import Guard
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.sandbox import landlock
from spanreplay.replayer.sandbox.world import own_files
from spanreplay.runtime.process import own_ports

_KERNELS_OWN: Final = ("/dev", "/proc")
"""Not anybody's files: devices, shared memory, and libraries' information about their own threads."""
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 -- where C libraries look, SQLite in this order
_CHOOSES_TEMPORARY: Final = ("TMPDIR", "TEMP", "TMP")


def enter(plan: Plan, manifest: Mapping[str, object] = MappingProxyType({}), own_url: str = "") -> Guard:
    """Make the kernel deny file changes and connections by native code; call before the agent or a thread starts.

    This lasts until the process ends and includes the processes that it starts. A program that is a client of its own
    server, according to its recorded manifest, may connect: the port is not known in advance. `own_url` is our
    collector.
    """
    why = _why_not(plan)
    if why:
        return Guard(why)
    free = _free_folders()
    ours = (own_url, config.read_setting("SPANREPLAY_ENDPOINT"))
    ports = None if own_ports.stated(manifest) else [port for url in ours if (port := port_of(url))]
    restricted = landlock.restrict(free, [*_make_own_files(), *_redirections()], ports)
    return Guard(restricted.why) if restricted.why else Guard(free=free, is_offline=restricted.is_offline)


def port_of(url: str) -> int:
    """Return the port of a URL or of `host:port`; 0 if it has none."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        port = parts.port
    except ValueError:
        return 0
    return port or {"https": 443, "http": 80}.get(parts.scheme, 0)


def _why_not(plan: Plan) -> str:
    if config.read_setting("SPANREPLAY_SANDBOX") != "kernel":
        return "SPANREPLAY_SANDBOX=python"
    if plan.resume is not None:
        return "the run continues live"
    if plan.lets_go_live:
        return "the plan lets calls go live"
    return "a debugger may write" if plan.is_break else ""


def _free_folders() -> tuple[str, ...]:
    """Return the writable folders; ours are created."""
    ours = config.read_data_dir()
    with contextlib.suppress(OSError):  # a recording that can't be written is counted when it is written
        prepare_directory(ours)
    temporary = [tempfile.gettempdir(), os.environ.get("SQLITE_TMPDIR", "")]
    if not any(os.environ.get(name) for name in _CHOOSES_TEMPORARY):
        temporary += _TEMPORARY
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 -- without a home: text
    caches = [cache, sys.pycache_prefix or ""]
    found = (os.path.realpath(each) for each in (str(ours), *temporary, *caches) if os.path.isabs(each))  # noqa: PTH117
    free = list(dict.fromkeys(each for each in found if os.path.isdir(each)))  # noqa: PTH112 -- text
    folder = config.read_setting("SPANREPLAY_REPLAY_FOLDER")
    if folder and not os.path.realpath(folder).startswith(tuple(each + os.sep for each in free)):
        free.append(os.path.realpath(folder))
    return (*free, *_KERNELS_OWN)


def _make_own_files() -> list[str]:
    """Create the files that we write at the end now, because a rule needs an existing file."""
    found = own_files()
    for path in found:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:
            continue  # the code that writes it reports the error
    return found


def _redirections() -> list[str]:
    """Return the files that the standard streams are redirected to: opening /dev/stdout opens them."""
    found = []
    for descriptor in range(3):
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            continue
        if is_file:
            found.append(f"/proc/self/fd/{descriptor}")
    return found
