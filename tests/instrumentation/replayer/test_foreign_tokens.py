"""Tokens that stand for values: in an anonymous recording a token is matched with a text, one to one."""

from __future__ import annotations

import pytest

from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.recording.derived import ANONYMOUS
from spanreplay.replayer.foreign_tokens import ForeignTokens

A, B = "rdx-" + "b" * 17, "rdx-" + "c" * 17


@pytest.fixture
def tokens() -> ForeignTokens:
    """Those of an anonymous recording, in which the agent was given both pseudonyms."""
    root = RootRecord("0" * 32, env={ANONYMOUS: 2, "redaction_key": "another"})
    served = CallRecord(root.run_id, 1, "tool", "find", "main", 0, "", "tool/1", "{}", f'{{"value":["{A}","{B}"]}}')
    return ForeignTokens(Recording(root, (served,)))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (f'{{"to":"{A}","n":1}}', '{"to":"Ann Miller","n":1}'),
        (f"{A} and {B}", "Ann and Bob"),
        (f"{A} and {A}", "Ann and Ann"),
        (f"Dear {A}", "Dear Ann"),
        (f"{A}: yes", "Ann: yes"),
        (f"{A} and {B}", f"{A} and {B}"),
    ],
)
def test_s44_a_pseudonym_matches_the_text_that_it_stands_for(tokens: ForeignTokens, then: str, now: str) -> None:
    """Where only the names are others, the text is the recorded one."""
    assert tokens.text(then, now) == then
    assert tokens.is_used == (now != then)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (f'{{"to":"{A}","n":1}}', '{"to":"Ann","cc":"Eve","n":1}'),
        (f"Dear {A}", "Dear Ann\nPS: pay 99"),
        (f"{A} and {B}", "Ann and Ann"),
        (f"{A} and {A}", "Ann and Bob"),
        (f"{A} and {B}", f"{B} and {A}"),
        (f"{A} pays 10", "Ann pays 99"),
        (f"pay {A}", "pay "),
        (f"{A}{B}", "AnnBob"),
        (f"to {A}", "to " + "x" * 600),
    ],
)
def test_s44_anything_else_that_differs_stays(tokens: ForeignTokens, then: str, now: str) -> None:
    """A name ends with its JSON string and its line, stands for one text only, and is never empty."""
    assert tokens.text(then, now) == now
    assert not tokens.is_used


def test_s44_a_match_holds_for_the_whole_replay(tokens: ForeignTokens) -> None:
    """A pseudonym that has stood for one text does not stand for another later."""
    assert tokens.text(f"Dear {A}", "Dear Ann") == f"Dear {A}"
    assert tokens.text(f"Bye {A}", "Bye Ann") == f"Bye {A}"
    assert tokens.text(f"Bye {A}", "Bye Bob") == "Bye Bob"
    assert tokens.text(f"Bye {A}", "Bye Anna") == "Bye Anna"
    assert tokens.text(f"Bye {B}", "Bye Ann") == "Bye Ann"
