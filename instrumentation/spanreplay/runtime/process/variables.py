"""The environment that a program is given, as differences from the inherited one that hold on another machine.

A variable is compared by value if that differs from the one with which the run's process began, and by name if the
agent passes only a few. A value that contains the inherited one (`PATH`) is written with the variable's name in its
place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from spanreplay.model.here import BOOT_PARTS

ONLY, SET, WITHOUT = "only", "set", "without"
INHERITED: Final = "(inherited)"
ABSENT: Final = "(absent)"
_OURS: Final = ("SPANREPLAY_", "OTEL_", "PYTEST_")
_OUR_NAMES: Final = frozenset({"BAGGAGE", "TRACEPARENT", "TRACESTATE", "PYTHONHASHSEED", "_"})
_MODULE_PATH: Final = "PYTHONPATH"
_OUR_FOLDERS: Final = ("auto_instrumentation", os.path.join("spanreplay", *BOOT_PARTS))  # noqa: PTH118 -- text
_VALUE_CHARACTERS_MIN: Final = 3
"""A shorter inherited value may be contained in others by chance."""


def describe_variables(given: Mapping[Any, Any] | None, first: Mapping[str, str]) -> dict[str, Any]:
    """How a program's environment differs from `first`; {} if it does not."""
    now = clean_environ(os.environ if given is None else given)
    before = clean_environ(first)
    kept = [name for name in before if now.get(name) == before[name]]
    found: dict[str, Any] = {}
    changed = {name: _relative(name, value, before) for name, value in now.items() if value != before.get(name)}
    if changed:
        found[SET] = dict(sorted(changed.items()))
    if 2 * len(kept) < len(before):
        found[ONLY] = sorted(now)
    elif len(now) - len(changed) < len(before):
        found[WITHOUT] = sorted(before.keys() - now.keys())
        if not found[WITHOUT]:
            del found[WITHOUT]
    return found


def clean_environ(environ: Mapping[Any, Any]) -> dict[str, str]:
    texts = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
    found = {n: v for n, v in texts.items() if n not in _OUR_NAMES and not n.startswith(_OURS)}
    if _MODULE_PATH in found:
        folders = [f for f in found[_MODULE_PATH].split(os.pathsep) if not f.endswith(_OUR_FOLDERS)]
        found[_MODULE_PATH] = os.pathsep.join(folders)
        if not found[_MODULE_PATH]:
            del found[_MODULE_PATH]
    return found


def _relative(name: str, value: str, before: Mapping[str, str]) -> str:
    inherited = before.get(name, "")
    return value.replace(inherited, f"${{{name}}}") if len(inherited) >= _VALUE_CHARACTERS_MIN else value


def find_differing(then: Any, now: Any) -> list[str]:
    return sorted(set(then or ()) ^ set(now or ()))
