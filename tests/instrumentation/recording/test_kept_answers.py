"""Answers that are kept for later runs: found by their question, bounded, and never trusted."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from spanreplay.recording import kept_answers
from spanreplay.recording.kept_answers import ANSWER_BYTES_MAX, Answer, KeptAnswers
from support.runs import make_run_id

NOW: Final = 1_795_861_216_384_070_524
ANSWER: Final = Answer(make_run_id(1), 7, NOW - 10, NOW, '{"status":200}', {"model": "gpt-x"}, "u-1", "s-1")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_s41_the_oldest_answer_that_is_left_is_found(tmp_path: Path) -> None:
    """A question has several answers; those that were used or are too old are not found, the old ones removed."""
    kept = KeptAnswers(tmp_path)
    later = replace(ANSWER, seq=9, end_ns=NOW + 5)
    for each in (later, ANSWER):
        assert kept.keep("who is it?", each, 0)
    assert kept.find("who is it?", 0, set()) == ANSWER
    assert kept.find("who is it?", 0, {(ANSWER.run_id, 7)}) == later
    assert kept.find("what is it?", 0, set()) is None
    assert kept.find("who is it?", NOW + 1, set()) == later
    assert [path.name for path in _files(tmp_path)] == [later.name]
    assert kept.runs() == {ANSWER.run_id}


def test_s41_answers_are_private_and_their_names_say_nothing(tmp_path: Path) -> None:
    """Only this user can read them; neither the question nor the user stands in a name."""
    KeptAnswers(tmp_path).keep("u-1 asks for the payroll", ANSWER, 0)
    (path,) = _files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "payroll" not in str(path.relative_to(tmp_path))
    assert "u-1" not in str(path.relative_to(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"run_id": 1}',
        json.dumps({**ANSWER.__dict__, "response": ["no text"]}).encode(),
        json.dumps({**ANSWER.__dict__, "meta": []}).encode(),
        json.dumps({**ANSWER.__dict__, "seq": True}).encode(),
        json.dumps({**ANSWER.__dict__, "seq": 8}).encode(),
        b"[" * 100_000,
        b" " * (ANSWER_BYTES_MAX + 1),
    ],
)
def test_s41_a_file_that_is_no_answer_is_passed_over(tmp_path: Path, content: bytes) -> None:
    """Nor is one under another's name; what it stands for is asked live."""
    kept = KeptAnswers(tmp_path)
    kept.keep("question", ANSWER, 0)
    (path,) = _files(tmp_path)
    path.write_bytes(content)
    assert kept.find("question", 0, set()) is None


def test_s41_a_link_is_not_followed(tmp_path: Path) -> None:
    """An answer is a file of its own."""
    kept = KeptAnswers(tmp_path)
    kept.keep("question", ANSWER, 0)
    (path,) = _files(tmp_path)
    os.rename(path, tmp_path / "elsewhere")  # noqa: PTH104 -- a move of ours
    path.symlink_to(tmp_path / "elsewhere")
    assert kept.find("question", 0, set()) is None


def test_s41_there_is_room_for_a_limited_number_of_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory and to one question; room that old answers take is used again, a long answer is not kept."""
    monkeypatch.setattr(kept_answers, "ANSWERS_MAX", 3)
    monkeypatch.setattr(kept_answers, "SAMPLES_MAX", 2)
    kept = KeptAnswers(tmp_path)
    assert not kept.keep("long", replace(ANSWER, response="x" * ANSWER_BYTES_MAX), 0)
    assert [kept.keep("same", replace(ANSWER, seq=number), 0) for number in range(3)] == [True, True, False]
    assert [kept.keep(f"other {number}", ANSWER, 0) for number in range(3)] == [True, False, False]
    assert kept.keep("new", replace(ANSWER, end_ns=NOW + 9), NOW + 5)
    assert len(_files(tmp_path)) == 1
