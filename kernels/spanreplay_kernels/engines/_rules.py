"""The checks that a plug-in makes on an engine before it changes anything: rules, and the message of each refusal."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from spanreplay_kernels.errors import UnsupportedEngine

__all__ = ["PLUGIN", "Rule", "check", "check_release", "field", "is_asked"]

PLUGIN: Final = "spanreplay"
"""Name of both entry points, used in an engine's list of plug-ins."""


class Rule(NamedTuple):
    """A requirement on one setting."""

    path: str
    """The setting's path in the engine's configuration, `a.b.c`."""
    is_covered: Callable[[Any], bool]
    """Whether, with this value, every sum is computed by batch-invariant kernels."""
    hint: str
    absent: Any = None
    """The value to assume if the release has no such setting or section."""


def is_asked(plugins: str | None) -> bool:
    """Whether an engine's comma-separated list of plug-ins names this one; without a list, it doesn't.

    The recorder is part of the same distribution, and installing it beside an engine must not change the engine.
    """
    return PLUGIN in {name.strip() for name in (plugins or "").split(",")}


def check_release(engine: str, first: tuple[int, ...], last: tuple[int, ...]) -> str:
    """Return the engine's release. Raises: UnsupportedEngine unless it is within the known range."""
    release = importlib.metadata.version(engine)
    numbers = re.match(r"\d+(?:\.\d+)*", release)
    found = tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
    if not first <= found[: len(first)] <= last:
        wanted = f"{'.'.join(map(str, first))} to {'.'.join(map(str, last))}"
        hint = f"install {engine} {wanted}, or take {PLUGIN} off the list of plug-ins"
        raise UnsupportedEngine(engine, f"release {release} is none whose functions are known here", hint=hint)
    return release


def field(config: Any, path: str, absent: Any = None) -> Any:
    """Return the value at `a.b.c` of a configuration, or `absent` if the path doesn't exist or holds None."""
    for name in path.split("."):
        config = getattr(config, name, None)
        if config is None:
            return absent
    return config


def check(engine: str, rules: Iterable[Rule], config: Any) -> None:
    """Check a configuration. Raises: UnsupportedEngine, naming every rule that is broken."""
    broken = [(rule, value) for rule in rules if not rule.is_covered(value := field(config, rule.path, rule.absent))]
    if broken:
        problem = ", ".join(f"{rule.path} is {_named(value)}" for rule, value in broken)
        raise UnsupportedEngine(engine, problem, hint="; ".join(dict.fromkeys(rule.hint for rule, _ in broken)))


def _named(value: Any) -> str:
    """Return a plain value's repr or an object's name or type: a configuration may hold a path or a token."""
    if isinstance(value, (bool, int, float, type(None))):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:64])
    return str(getattr(value, "name", None) or type(value).__name__)
