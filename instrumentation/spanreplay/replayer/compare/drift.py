"""Finds what has changed in a run's environment since the recording: command line, versions, commit; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spanreplay.runtime.process.environment import CODE_FILES_MAX

_NAMES: Final = ("argv", "git_sha", "python", "implementation", "platform", "machine")


def find_changed_files(recorded: Any, now: Mapping[str, str], early: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the agent's files that both runs loaded with different content, or only this one loaded.

    `early` are those that were loaded before anything differed: what a program loads after that, such as the modules
    that report an error, isn't a change of its code. If not all files were recorded, a missing one says nothing.
    """
    if not isinstance(recorded, Mapping) or not recorded:
        return []
    new = {} if len(recorded) >= CODE_FILES_MAX else now if early is None else early
    return sorted(name for name, digest in now.items() if recorded.get(name, "" if name in new else digest) != digest)


def find_drift(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return [{name, recorded, now}] for each differing value that both have; packages as `openai 3.1`."""
    found = [
        {"name": name, "recorded": recorded[name], "now": now[name]}
        for name in _NAMES
        if recorded.get(name) and now.get(name) and recorded[name] != now[name]
    ]
    before, after = recorded.get("packages"), now.get("packages")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found += [
            {"name": name, "recorded": str(before[name]), "now": str(after[name])}
            for name in sorted(before.keys() & after.keys())
            if before[name] != after[name]
        ]
    return found
