"""The local time zone of a run: recorded, and given to a replay on a machine that has another one.

Local times stand in logs, prompts and file names. A zone is recorded by its name (IANA, `Europe/Berlin`) and by its
rule in POSIX form (`CET-1CEST,M3.5.0,M10.5.0/3`), with which the file of a zone ends (RFC 9636): that holds where the
machine of a replay has no zone of that name.
"""

from __future__ import annotations

import os
import posix
import re
import time
from typing import Any, Final

__all__ = ["MEMBER", "TimeZone", "describe_time_zone"]

MEMBER: Final = "time_zone"
"""Member of an environment: the zone's name and its rule, either of them '' if it is not known."""
_LOCAL: Final = "/etc/localtime"
_FOLDERS: Final = ("/usr/share/zoneinfo", "/var/db/timezone/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo")
_INSIDE: Final = re.compile(r"/zoneinfo(?:\.default)?/(?:posix/|right/)?(.+)")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")
_RULE: Final = re.compile(r"(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)[+-]?\d[A-Za-z0-9<>+:,./-]{0,98}")
_FILE_BYTES_MAX: Final = 64 * 1024
_UTC: Final = ["UTC", "UTC0"]


def describe_time_zone() -> list[str]:
    """The name and the rule of the zone in which this process shows local times."""
    given = os.environ.get("TZ")
    if given is None:
        return _read(_LOCAL)
    zone = given.removeprefix(":")
    if not zone:
        return _UTC
    path = zone if zone.startswith("/") else _find_file(zone)
    if not path:
        return ["", zone if _RULE.fullmatch(zone) else ""]
    return _read(path, "" if path == zone else zone)


def _read(path: str, name: str = "") -> list[str]:
    """The name and the rule of the zone in a file; a machine without a file shows UTC."""
    inside = _INSIDE.search(os.path.realpath(path))
    if not name and inside is not None and _NAME.fullmatch(inside[1]):
        name = inside[1]
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- our own read
            content = file.read(_FILE_BYTES_MAX)
    except FileNotFoundError:
        return _UTC
    except OSError:
        return [name, ""]
    rule = content.rstrip(b"\n").rpartition(b"\n")[2].decode("ascii", "replace")
    return _UTC if rule == _UTC[1] else [name, rule if _RULE.fullmatch(rule) else ""]


def _find_file(name: str) -> str:
    """The file of a zone on this machine; '' if it has none."""
    if not _NAME.fullmatch(name):
        return ""
    paths = (os.path.join(folder, name) for folder in _FOLDERS)  # noqa: PTH118 -- text
    return next((path for path in paths if os.path.isfile(path)), "")  # noqa: PTH113 -- text


class TimeZone:
    """The recorded time zone in one replay."""

    def __init__(self, recorded: Any) -> None:
        is_known = isinstance(recorded, list) and len(recorded) == 2 and all(isinstance(each, str) for each in recorded)
        self._recorded: list[str] = recorded if is_known else ["", ""]
        self._before: str | None = None
        self.given = ""
        """The zone in which local times are shown because this machine has another one; '' if it has the same."""

    def give(self) -> None:
        """Show local times in the recorded zone. The variables that the agent reads stay as they are."""
        (name, rule), here = self._recorded, describe_time_zone()
        zone = name if _find_file(name) else rule if _RULE.fullmatch(rule) else ""
        is_same = name == here[0] if name and here[0] else rule == here[1]
        if self.given or not zone or is_same:
            return
        self._before, self.given = os.environ.get("TZ"), zone
        posix.putenv("TZ", zone)
        time.tzset()

    def take_back(self) -> None:
        """Show local times as before."""
        if not self.given:
            return
        self.given = ""
        if self._before is None:
            posix.unsetenv("TZ")
        else:
            posix.putenv("TZ", self._before)
        time.tzset()
