"""A program's start as a call: its command, and each option that reaches the program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from spanreplay.model import guard
from spanreplay.model.call import Effect, Kind
from spanreplay.runtime.calls.function_calls import FunctionCall
from spanreplay.runtime.process.noted_effects import first_environ, sees_versions
from spanreplay.runtime.process.variables import describe_variables
from spanreplay.seams.machine.effects import effects_run
from spanreplay.seams.machine.files.descriptors import describe_file

if TYPE_CHECKING:
    from spanreplay.runtime.run import Run

_PIPES: Final = {subprocess.PIPE: "pipe", subprocess.STDOUT: "stdout", subprocess.DEVNULL: "devnull"}
_USUAL: Final[dict[str, Any]] = {
    "executable": None, "close_fds": True, "restore_signals": True, "start_new_session": False, "process_group": None,
    "user": None, "group": None, "extra_groups": None, "umask": -1, "creationflags": 0,
}  # fmt: skip
"""Options that reach the program, with their defaults, besides those that `describe_process` names itself."""


def command_of(args: Any) -> list[str]:
    """Return a command as the list of its parts."""
    listed = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    return [os.fsdecode(each) for each in listed]


def describe_process(args: Any, options: Mapping[str, Any]) -> FunctionCall:
    """Describe a program's start as a call."""
    command = command_of(args)
    is_shell = bool(options.get("shell"))
    run = effects_run()
    if run is not None and run.written is not None:
        guard.guarded("what a program can read", run.written.show_to_program)
    program = "sh" if is_shell else os.path.basename(command[0] if command else "")  # noqa: PTH119 -- any text
    shown: dict[str, Any] = {"args": command}
    for name in ("stdin", "stdout", "stderr"):
        given = options.get(name)
        is_word = isinstance(given, int) and given in _PIPES
        shown[name] = "inherited" if given is None else _PIPES[given] if is_word else _describe_file(run, given)
    shown["shell"] = is_shell
    if options.get("cwd") is not None:
        shown["cwd"] = os.fsdecode(options["cwd"])
    if run is not None and sees_versions(run):
        shown.update(_describe_options(options))
    function_call = FunctionCall(Kind.TOOL.value, f"subprocess.{program}", Effect.IRREVERSIBLE.value, shown)
    variables = {} if run is None else describe_variables(options.get("env"), first_environ(run))
    return function_call._replace(beside={"env": variables}) if variables else function_call


def _describe_file(run: Run | None, file: Any) -> str:
    return describe_file(run, file) if run is not None and sees_versions(run) else "file"


def _describe_options(options: Mapping[str, Any]) -> dict[str, Any]:
    run = effects_run()
    found: dict[str, Any] = {}
    for name, usual in _USUAL.items():
        given = options.get(name, usual)
        if given != usual:
            found[name] = _plain(given)
    if options.get("pass_fds"):
        found["pass_fds"] = [describe_file(run, each) for each in options["pass_fds"]]
    before = options.get("preexec_fn")
    if before is not None:
        found["preexec_fn"] = str(getattr(before, "__qualname__", type(before).__qualname__))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (str, bytes, os.PathLike)):
        return os.fsdecode(value)
    return value if value is None or isinstance(value, (bool, int)) else [_plain(each) for each in value]
