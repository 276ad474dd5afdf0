"""A unit that is held in memory is written whole or not at all, in any order of events."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.model import config
from spanreplay.model.ids import new_run_id
from spanreplay.recording.sampling import held
from spanreplay.recording.sampling.held import HeldWriter
from spanreplay.recording.spool import iter_frames
from spanreplay.recording.spool.directory import iter_spool_files

_PAYLOAD: Final = st.binary(min_size=1, max_size=40).map(lambda body: b"\x0a" + body)
_STEPS: Final = st.lists(_PAYLOAD | st.sampled_from(["keep", "leave out", "known"]), max_size=12)
SIXTY: Final = b"\x0a" * 60


def _nothing() -> None:
    """A callback that does nothing."""


def written(folder: Path) -> list[bytes]:
    """Return every payload in a spool."""
    return [payload for path in iter_spool_files(folder) for payload in iter_frames(path)]


@settings(max_examples=80)
@given(_STEPS, st.integers(1, 200), st.booleans())
def test_n3_a_unit_is_written_whole_or_not_at_all(steps: list[bytes | str], unit_bytes: int, is_left_out: bool) -> None:
    """For any order of decisions and any memory limit all payloads are written in order, or none."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "HELD_UNIT_BYTES_MAX", unit_bytes)
        told: list[str] = []
        writer = HeldWriter(Path(name), new_run_id(), kept=lambda: told.append("kept"))
        for step in [*steps, "leave out" if is_left_out else "close"]:
            was_held = writer.is_held
            if isinstance(step, bytes):
                writer.append(step)
            elif step == "known":
                writer.is_kept = lambda: True
            else:
                {"keep": writer.keep, "leave out": writer.leave_out, "close": writer.close}[step]()
                assert not writer.is_held
            if writer.is_held:
                assert was_held
                assert written(Path(name)) == []
        writer.close()
        assert written(Path(name)) == ([step for step in steps if isinstance(step, bytes)] if told else [])
        assert len(told) <= 1
        assert held._memory.held_bytes == 0


def test_n3_the_memory_of_all_units_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit that exceeds the process's limit is written and kept; those before it stay held."""
    monkeypatch.setattr(config, "HELD_BYTES_MAX", 100)
    first, second = (HeldWriter(tmp_path, new_run_id(), kept=_nothing) for _ in range(2))
    first.append(SIXTY)
    second.append(SIXTY)
    assert (first.is_held, second.is_too_large) == (True, True)
    assert written(tmp_path) == [SIXTY]
    assert first.leave_out()
    assert not second.leave_out()
    assert held._memory.held_bytes == 0
    first.append(b"\x0alate")
    first.close()
    second.close()
    assert written(tmp_path) == [SIXTY]
