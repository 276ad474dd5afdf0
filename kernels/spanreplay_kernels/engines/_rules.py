"""What a plug-in asks of an engine before it changes anything: a table of rules, and the words of each refusal."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from spanreplay_kernels.errors import UnsupportedEngine

__all__ = ["PLUGIN", "Rule", "check", "check_release", "field", "is_asked"]

PLUGIN: Final = "spanreplay"
"""Name of both entry points, by which an engine's list of plug-ins asks for it."""


class Rule(NamedTuple):
    """One configuration that is refused."""

    path: str
    """Where it stands in the engine's configuration, `a.b.c`."""
    is_covered: Callable[[Any], bool]
    """Whether this value leaves every sum to kernels whose order is the row's own."""
    hint: str
    absent: Any = None
    """The value where a release has no such setting, or no such part."""


def is_asked(plugins: str | None) -> bool:
    """Whether an engine's list of plug-ins, separated by commas, names this one; without a list it is not asked for.

    The recorder is the same distribution: that it lies beside an engine must change nothing in it.
    """
    return PLUGIN in {name.strip() for name in (plugins or "").split(",")}


def check_release(engine: str, first: tuple[int, ...], last: tuple[int, ...]) -> str:
    """The engine's release. Raises: UnsupportedEngine for one whose source was not read."""
    release = importlib.metadata.version(engine)
    numbers = re.match(r"\d+(?:\.\d+)*", release)
    found = tuple(int(part) for part in numbers[0].split(".")) if numbers else ()
    if not first <= found[: len(first)] <= last:
        wanted = f"{'.'.join(map(str, first))} to {'.'.join(map(str, last))}"
        hint = f"install {engine} {wanted}, or take {PLUGIN} off the list of plug-ins"
        raise UnsupportedEngine(engine, f"release {release} is none whose functions are known here", hint=hint)
    return release


def field(config: Any, path: str, absent: Any = None) -> Any:
    """What stands at `a.b.c` of a configuration; absent where it ends before."""
    for name in path.split("."):
        config = getattr(config, name, None)
        if config is None:
            return absent
    return config


def check(engine: str, rules: Iterable[Rule], config: Any) -> None:
    """Raises: UnsupportedEngine, naming every rule that this configuration breaks."""
    broken = [(rule, value) for rule in rules if not rule.is_covered(value := field(config, rule.path, rule.absent))]
    if broken:
        problem = ", ".join(f"{rule.path} is {_named(value)}" for rule, value in broken)
        raise UnsupportedEngine(engine, problem, hint="; ".join(dict.fromkeys(rule.hint for rule, _ in broken)))


def _named(value: Any) -> str:
    """A plain value as it is, of an object its type: a configuration may hold a path or a token."""
    if isinstance(value, (bool, int, float, type(None))):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:64])
    return str(getattr(value, "name", None) or type(value).__name__)
