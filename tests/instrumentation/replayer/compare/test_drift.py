"""Which of the agent's files have changed since the recording."""

from __future__ import annotations

import pytest

from spanreplay.replayer.compare.drift import find_changed_files
from spanreplay.runtime.process.environment import CODE_FILES_MAX

RECORDED = {"a.py": "1", "b.py": "2"}


@pytest.mark.parametrize(
    ("early", "expected"),
    [(None, ["b.py", "new.py"]), ({"new.py": "4"}, ["b.py", "new.py"]), ({"a.py": "1"}, ["b.py"])],
    ids=["nothing differed", "loaded before", "loaded after"],
)
def test_n8_a_new_file_has_changed_if_it_was_loaded_before_anything_differed(
    early: dict[str, str] | None, expected: list[str]
) -> None:
    """A file that both runs loaded is always compared, one that only this run loaded if it can be the cause."""
    assert find_changed_files(RECORDED, {"a.py": "1", "b.py": "3", "new.py": "4"}, early) == expected


def test_n8_a_missing_file_says_nothing_if_not_all_were_recorded() -> None:
    """Beyond CODE_FILES_MAX files none are recorded, and which ones depends on their order."""
    recorded = {f"{number}.py": "1" for number in range(CODE_FILES_MAX)}
    assert find_changed_files(recorded, {**recorded, "0.py": "2", "beyond.py": "1"}) == ["0.py"]
