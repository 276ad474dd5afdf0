"""Changes of paths and of the process as effects: the function of `os`, its target and its arguments.

A change becomes a call before it happens: for real while recording, in the overlay during a replay. Metadata that a
copy takes over from its original (times, mode, attributes) is named but not compared: it comes from the original, which
is an input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model.call import Effect
from spanreplay.runtime.agent_patches import Patch, patch_with, recorded_run, replace_in_os
from spanreplay.runtime.caller.caller import asks_for_files
from spanreplay.runtime.caller.places import DEVICES, asks_for
from spanreplay.runtime.patches import Patches
from spanreplay.runtime.process.noted_effects import sees_effects
from spanreplay.seams.machine.clock.temporary import is_tempfile
from spanreplay.seams.machine.effects import note_effect
from spanreplay.seams.machine.files.descriptors import path_of, resolve

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_getframe: Final = sys._getframe
_PATH, _TWO = "path", ("from", "to")
_SIGNATURES: Final[dict[str, tuple[str, ...]]] = {
    "remove": (_PATH,), "unlink": (_PATH,), "rmdir": (_PATH,), "rmtree": (_PATH,), "mkdir": (_PATH, "mode"),
    "chmod": (_PATH, "mode"), "utime": (_PATH, "times"), "truncate": (_PATH, "length"), "rename": _TWO, "replace": _TWO,
    "symlink": _TWO, "link": _TWO, "open": (_PATH, "flags", "mode"), "chown": (_PATH, "uid", "gid"),
    "lchown": (_PATH, "uid", "gid"), "setxattr": (_PATH, "attribute", "value", "flags"),
    "removexattr": (_PATH, "attribute"), "mkfifo": (_PATH, "mode"), "mknod": (_PATH, "mode", "device"),
    "lchmod": (_PATH, "mode"), "chflags": (_PATH, "flags"), "lchflags": (_PATH, "flags"), "fchmod": (_PATH, "mode"),
    "fchown": (_PATH, "uid", "gid"), "ftruncate": (_PATH, "length"),
}  # fmt: skip
_HERE: Final = frozenset(
    {"chown", "lchown", "setxattr", "removexattr", "lchmod", "chflags", "lchflags", "fchmod", "fchown", "ftruncate"}
)  # fmt: skip
"""Functions for which `changes` does not record what was there before."""
_PATHS: Final = frozenset({_PATH, *_TWO})
_SAME: Final = {"unlink": "remove"}
_USUAL: Final[dict[str, Any]] = {"mkdir.mode": 0o777, "utime.times": None, "setxattr.flags": 0}
_COPIES: Final = frozenset({"copystat", "copymode", "_copyxattr"})
_FOLDERS: Final = {_PATH: "dir_fd", _TWO[0]: "src_dir_fd", _TWO[1]: "dst_dir_fd"}
_FORGOTTEN: Final = frozenset({*_FOLDERS.values(), "target_is_directory", "ignore_errors", "onerror", "onexc"})
_OPENS: Final = tuple((getattr(os, name), name) for name in ("O_EXCL", "O_TRUNC", "O_APPEND"))
"""Flags of `os.open` that affect the file; the others affect the descriptor."""
_OF_PROCESS: Final[dict[str, tuple[str, ...]]] = {
    "chdir": (_PATH,), "umask": ("mask",), "nice": ("increment",), "setpriority": ("which", "who", "priority"),
    "chroot": (_PATH,), "setuid": ("uid",), "seteuid": ("uid",), "setgid": ("gid",), "setegid": ("gid",),
    "fchdir": (_PATH,), "setpgid": ("process", "group"), "setpgrp": (), "setsid": (),
    "setresuid": ("uid", "effective", "saved"), "setresgid": ("gid", "effective", "saved"),
    "initgroups": ("user", "gid"), "sched_setaffinity": ("process", "processors"),
    "sched_setscheduler": ("process", "policy", "parameter"), "sched_setparam": ("process", "parameter"),
    "setns": ("descriptor", "kind"), "unshare": ("flags",), "putenv": ("name", "value"), "unsetenv": ("name",),
    "setgroups": ("groups",), "setreuid": ("uid", "effective"), "setregid": ("gid", "effective"),
}  # fmt: skip


def note_change(name: str, frame: FrameType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Note that the agent is about to change a path. Raises: ReplayMiss if it did something else when recorded."""
    run = recorded_run()
    if run is None or run.written is None or not sees_effects(run) or run.written.is_outside():
        return
    if is_tempfile(frame) or "rmtree" in frame.f_code.co_name or not asks_for_files(frame):
        return
    shown = _describe(run, name, frame, args, kwargs)
    if shown is not None and asks_for(frame, *(str(shown[each]) for each in _PATHS & shown.keys())):
        module = "shutil" if name == "rmtree" else "os"
        note_effect(f"{module}.{_SAME.get(name, name)}", shown, is_contained=True)


def _describe(
    run: Run, name: str, frame: FrameType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a change's arguments as its call states them; None for devices and for values that are not a path."""
    parameters = _SIGNATURES[name]
    given = dict(zip(parameters, args, strict=False))
    given.update({_TWO[n == "dst"] if n in ("src", "dst") else n: v for n, v in kwargs.items() if n not in _FORGOTTEN})
    is_copy = frame.f_code.co_name in _COPIES
    shown: dict[str, Any] = {}
    for parameter, value in given.items():
        if parameter in _PATHS:
            if isinstance(value, int):
                found = path_of(run, value)
                shown[parameter] = _name(run, found) if found else "(descriptor)"
                continue
            if not isinstance(value, (str, bytes, os.PathLike)):
                return None
            path = os.fsdecode(value)
            if path.startswith(DEVICES) or "\0" in path:
                return None
            folder = kwargs.get(_FOLDERS[parameter], kwargs.get("dir_fd") if parameter == _TWO[1] else None)
            is_text = name == "symlink" and parameter == _TWO[0]  # the text of the link, wherever the link lies
            shown[parameter] = _name(run, path if is_text else resolve(run, path, folder))
        elif parameter == "flags" and name == "open":
            shown.update({parameter: [each for flag, each in _OPENS if value & flag]} if value & _OPENED else {})
        elif is_copy:
            shown["copied"] = True
        elif value != _USUAL.get(f"{name}.{parameter}", _describe):
            shown[parameter] = list(value) if isinstance(value, tuple) else value
    return shown


_OPENED: Final = sum(flag for flag, _ in _OPENS)


def _name(run: Run, path: str) -> str:
    return path if run.written is None else run.written.name(path)


def _install_one(patches: Patches, module: Any, name: str) -> None:
    real = getattr(module, name)

    def call(patch: Patch, *args: Any, **kwargs: Any) -> Any:
        if args:
            note_change(name, _getframe(1), args, kwargs)
        return real(*args, **kwargs)

    replace_in_os(patches, name, call)


def _show(run: Run, parameter: str, value: Any) -> Any:
    if isinstance(value, (str, bytes, os.PathLike)):
        text = os.fsdecode(value)
        return _name(run, text) if parameter == _PATH else text
    if parameter == _PATH and isinstance(value, int):
        return _name(run, path_of(run, value)) or "(descriptor)"
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value if value is None or isinstance(value, (bool, int, list)) else str(value)


def _install_process(patches: Patches, module: Any, name: str, parameters: tuple[str, ...]) -> None:
    real = getattr(module, name)

    def ask(*args: Any) -> Any:
        run = recorded_run()
        # When `os.environ` calls `putenv`, the value reaches the programs that are started, which are compared
        is_direct = _getframe(2).f_globals.get("__name__") != "os"
        if is_direct and run is not None and run.written is not None and sees_effects(run):
            shown = {n: _show(run, n, value) for n, value in zip(parameters, args, strict=False)}
            note_effect(f"os.{name}", shown, Effect.WRITE)
        return real(*args)

    patch_with(patches, module, name, ask)


def install(module: Any, patches: Patches) -> None:
    """Patch the functions of `os` that change the process, or paths without a handler in `changes`."""
    for name in sorted(_HERE):
        if hasattr(module, name):
            _install_one(patches, module, name)
    for name, parameters in _OF_PROCESS.items():
        if hasattr(module, name):
            _install_process(patches, module, name, parameters)
