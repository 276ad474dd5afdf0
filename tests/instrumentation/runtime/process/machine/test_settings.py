"""Settings of a process that a recording states; a recording is a stranger's, whatever it states."""

from __future__ import annotations

import os
import posix
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spanreplay.runtime.process.machine import time_zone
from spanreplay.runtime.process.machine.file_mask import FileMask, read_mask
from spanreplay.runtime.process.machine.time_zone import TimeZone, describe_time_zone


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The zone and the mask of this process stay."""
    mask = os.umask(0o022)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    os.umask(mask)
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        ("Europe/Berlin", ["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"]),
        (":Asia/Kolkata", ["Asia/Kolkata", "IST-5:30"]),
        ("EST5EDT,M3.2.0,M11.1.0", ["", "EST5EDT,M3.2.0,M11.1.0"]),
        ("<+0330>-3:30", ["", "<+0330>-3:30"]),
        ("Etc/UTC", ["UTC", "UTC0"]),
        ("", ["UTC", "UTC0"]),
        ("Nowhere/Land", ["", ""]),
        ("../../etc/passwd", ["", ""]),
        ("/etc/passwd", ["", ""]),
    ],
)
def test_s62_a_zone_is_stated_by_its_name_and_its_rule(
    given: str, stated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the variable holds; without it, the system's zone."""
    monkeypatch.setenv("TZ", given)
    assert describe_time_zone() == stated


def test_s62_the_zone_of_the_system_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link into the database of zones tells the name, a copy only the rule; without a file it is UTC."""
    monkeypatch.delenv("TZ")
    file = tmp_path / "localtime"
    monkeypatch.setattr(time_zone, "_LOCAL", str(file))
    assert describe_time_zone() == ["UTC", "UTC0"]
    file.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert describe_time_zone() == ["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"]
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    assert describe_time_zone() == ["", "CET-1CEST,M3.5.0,M10.5.0/3"]
    file.write_bytes(b"\xff" * 100)
    assert describe_time_zone() == ["", ""]


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"], "1970-01-01 01:00"),
        (["Unknown/Here", "IST-5:30"], "1970-01-01 05:30"),
        (["UTC", "UTC0"], "1970-01-01 00:00"),
        (["", ""], "1970-01-01 00:00"),
        (["../../../tmp/zone", "$(id)"], "1970-01-01 00:00"),
        (["/etc/passwd", ":/etc/passwd"], "1970-01-01 00:00"),
        ({"name": "Europe/Berlin"}, "1970-01-01 00:00"),
        ([1, 2], "1970-01-01 00:00"),
        (None, "1970-01-01 00:00"),
    ],
)
def test_s62_a_recorded_zone_is_shown_and_taken_back(recorded: Any, shown: str) -> None:
    """By its rule if this machine has no such zone; the agent's variable stays; what is no zone is left alone."""
    zone = TimeZone(recorded)
    zone.give()
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(0)) == shown
    assert os.environ["TZ"] == "UTC"
    assert bool(zone.given) == (shown != "1970-01-01 00:00")
    zone.take_back()
    assert time.localtime(0).tm_hour == 0


def test_s62_without_a_variable_the_zone_of_this_machine_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the recorded zone is left in the environment of the process."""
    monkeypatch.delenv("TZ")
    time.tzset()
    before = time.tzname
    zone = TimeZone(["Unknown/Here", "ABC-5:30"])
    zone.give()
    assert time.tzname[0] == "ABC"
    assert "TZ" not in os.environ
    zone.take_back()
    assert time.tzname == before


@pytest.mark.parametrize(
    ("recorded", "made"),
    [(0o077, 0o600), (0o002, 0o664), (0, 0o664), (None, 0o644), (True, 0o644), (-1, 0o644), ("0", 0o644)],
)
def test_s62_a_recorded_mask_opens_no_file_to_others(tmp_path: Path, recorded: Any, made: int) -> None:
    """Files are made as on the recorded machine, except that everybody can't write what they can't write here."""
    mask = FileMask(recorded)
    mask.give()
    path = tmp_path / "file"
    path.write_text("")
    assert path.stat().st_mode & 0o777 == made
    mask.take_back()
    assert read_mask() == 0o022


def test_s62_the_mask_is_read_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS."""
    from spanreplay.runtime.process.machine import file_mask

    monkeypatch.setattr(file_mask, "_STATUS", "/nowhere")
    posix.umask(0o027)
    assert read_mask() == 0o027
    assert posix.umask(0o022) == 0o027
