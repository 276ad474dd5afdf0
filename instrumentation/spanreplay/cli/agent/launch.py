"""Prepare an agent's command to start under spanreplay: find the Python that runs it, and build its environment."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from spanreplay.model import config
from spanreplay.model.call import Recording
from spanreplay.model.errors import ConfigError
from spanreplay.model.here import BOOT_PARTS, PACKAGE
from spanreplay.runtime.process import hash_secret
from spanreplay.runtime.process.environment import MODULE

BOOT: Final = Path(PACKAGE, *BOOT_PARTS).resolve()
_PYTHON_NAME: Final = re.compile(r"(?:python|pypy)[0-9.]*\Z")
HASH_SEED_MAX: Final = 2**32 - 1
_SHEBANG_BYTES_MAX: Final = 512
_TAKES_VALUE: Final = frozenset("WXcm")
KERNELS: Final = ("ipykernel_launcher", "ipykernel")
"""Modules that start a Jupyter kernel."""
_EXPORTERS: Final = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")


@dataclass(frozen=True)
class Agent:
    """A command that can be started; `python` is the interpreter that runs it, '' if unknown."""

    argv: tuple[str, ...]
    python: str = ""
    python_flags: str = ""

    @property
    def is_isolated(self) -> bool:
        """Whether its Python would ignore PYTHONPATH or sitecustomize, and so would not load spanreplay."""
        return any(flag in self.python_flags for flag in "IES")


def _read_flags(arguments: Sequence[str]) -> str:
    """The single-letter flags of a Python command line; pure."""
    flags = ""
    skip = False
    for argument in arguments:
        if skip:
            skip = False
            continue
        if not argument.startswith("-") or argument in ("-", "--") or argument.startswith("--"):
            break
        for i, flag in enumerate(argument[1:], start=1):
            if flag in _TAKES_VALUE:
                skip = i == len(argument) - 1
                break
            flags += flag
        if argument[1:2] in ("c", "m"):
            break
    return flags


def _read_shebang(path: str) -> list[str]:
    """The words of a script's first line, or nothing."""
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(_SHEBANG_BYTES_MAX)
    except OSError:
        return []
    if not head.startswith(b"#!"):
        return []
    return head[2:].partition(b"\n")[0].decode("utf-8", "replace").split()


def find_agent(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> Agent:
    """Find the program that a command starts, and its Python. Raises: ConfigError if there is no such program."""
    executable = shutil.which(command[0], path=environ.get("PATH"))
    if executable is None:
        raise ConfigError(
            f"no such command: {command[0]!r}",
            hint="write the agent's whole command after --, for example: -- python agent.py",
        )
    argv = (executable, *command[1:])
    if _PYTHON_NAME.match(Path(executable).name):
        return Agent(argv, executable, _read_flags(command[1:]))
    words = _read_shebang(executable)
    if words and Path(words[0]).name == "env":
        words = [w for w in words[1:] if w != "-S"]
        words[:1] = [shutil.which(words[0], path=environ.get("PATH")) or words[0]] if words else []
    if words and _PYTHON_NAME.match(Path(words[0]).name):
        return Agent(argv, words[0], _read_flags(words[1:]))
    return Agent(argv)


def check_not_isolated(agent: Agent) -> None:
    """Refuse a Python that would not load spanreplay. Raises: ConfigError."""
    if agent.is_isolated:
        raise ConfigError(
            f"Python runs with -{agent.python_flags}, so it would not load spanreplay",
            hint="leave out -I, -E and -S",
        )


def choose_hash_seed() -> str:
    """Choose a string hash seed that a replay can set again; Python does not reveal a seed that it chooses itself."""
    return str(secrets.randbelow(HASH_SEED_MAX) + 1)


def recorded_hash_seed(recording: Recording) -> str:
    """The hash seed in a recording, '' if it has none that can be set."""
    seed = str(recording.root.env.get("hash_seed", ""))
    return seed if seed.isdecimal() else ""


def _find_key() -> tuple[str, Path]:
    """The configured name of the redaction key's file, '' if not set, and the path that applies."""
    named = config.read_setting("SPANREPLAY_REDACT_KEY")
    return named, Path(named) if named else config.read_data_dir() / "redact.key"


def keep_key(settings: Mapping[str, str]) -> dict[str, str]:
    """Add the redaction key of this directory to settings that name another directory, if the key exists."""
    _, key = _find_key()
    return {**settings, "SPANREPLAY_REDACT_KEY": str(key.absolute())} if key.exists() else dict(settings)


def recorded_hash_secret(recording: Recording) -> bytes:
    """The hash secret of the recorded process; empty if it is not recorded, or without its redaction key."""
    environment = recording.root.env
    named, path = _find_key()
    if not hash_secret.is_recorded(environment) or not path.is_file():
        return b""
    from spanreplay.redact.tokens import Tokenizer, load_or_create_key

    return hash_secret.find_recorded(environment, Tokenizer(*load_or_create_key(path, is_named=bool(named))).derive)


def build_environ(
    environ: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    is_replay: bool,
    hash_seed: str = "",
    here: Path | None = None,
) -> dict[str, str]:
    """Build the environment for an agent; pure except for the working directory and this process's id.

    `hash_seed` is used unless PYTHONHASHSEED is already set. `here` is the folder to start in; default: this one.

    A replay exports nothing and can't be switched off.
    """
    result = dict(environ)
    if is_replay:
        result["SPANREPLAY_REPLAY_EXPORTER"] = environ.get(_EXPORTERS[0], "")
        # Removed by whoever reads the verdict: the agent may be killed
        report = settings.get("SPANREPLAY_REPLAY_REPORT", "")
        result["SPANREPLAY_REPLAY_FOLDER"] = str(Path(report).parent) if report else ""
        result["SPANREPLAY_REPLAY_OWNER"] = str(os.getpid())
        result.update(dict.fromkeys(_EXPORTERS, "none"))
        result.pop("OTEL_SDK_DISABLED", None)
    if hash_seed and not result.get("PYTHONHASHSEED"):
        result["PYTHONHASHSEED"] = hash_seed
    result.update(settings)
    before = [p for p in result.get("PYTHONPATH", "").split(os.pathsep) if p]
    # Like opentelemetry-instrument, for programs with an executable of their own.
    folder = str(here or Path.cwd())
    result["PYTHONPATH"] = os.pathsep.join(
        [str(BOOT), *([] if folder in before else [folder]), *(p for p in before if p != str(BOOT))]
    )
    return result


def as_kernel(agent: Agent, environment: Mapping[str, Any]) -> Agent:
    """If a notebook cell was recorded in a Jupyter kernel, the command that starts the kernel itself; pure."""
    module, argv = environment.get(MODULE), environment.get("argv")
    if module not in KERNELS or not isinstance(argv, list) or not agent.python:
        return agent
    named = next((at for at, word in enumerate(agent.argv) if word in KERNELS), None)
    if named is None:
        return replace(agent, argv=(agent.python, "-m", str(module), *map(str, argv[1:])), python_flags="")
    return replace(agent, argv=(*agent.argv, *map(str, argv[1:]))) if named == len(agent.argv) - 1 else agent


def find_recorded_agent(command: Sequence[str], recording: Recording) -> Agent:
    """The given command, else the command in the recording. Raises: ConfigError."""
    environment = recording.root.env
    if command:
        return as_kernel(find_agent(command), environment)
    argv = environment.get("argv")
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    if environment.get(MODULE) in KERNELS:
        return find_agent((sys.executable, "-m", str(environment[MODULE]), *words[1:]))
    script = Path(words[0]) if words else Path()
    if script.suffix != ".py" or script.name == "__main__.py" or not script.is_file():
        raise ConfigError(
            "the recording does not say how to start the agent here",
            hint="write its whole command after --, for example: -- python agent.py",
        )
    return find_agent((sys.executable, *words))
