"""Sealed redacted values of a response are restored byte for byte, only with their key and their response."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.model.json_text import dump
from spanreplay.redact import Redactor
from spanreplay.redact.sealed_values import SEALED_BYTES_MAX, TooLarge, fill_in, open_sealed, pick_out, seal_values

KEY: Final = bytes(range(32))
OTHER: Final = bytes(range(1, 33))
SECRET: Final = 'pa"ss\\wörd-4711 é'
VALUES: Final[dict[str, Any]] = {
    "a text": {"password": SECRET},
    "a number": {"password": 48151623, "pin": "48151623", "secret": -7},
    "a fraction": {"client_secret": 0.5},
    "JSON in a text": json.dumps({"user": "bot", "password": SECRET}),
    "JSON in JSON": json.dumps({"body": json.dumps({"api_key": SECRET})}),
    "escapes": '{"password": "pa\\u0073s\\u0022-4711-x"}',
    "a context": "log in with api_key=Zx81qqPl9931AbCd and go",
    "an escaped key": "https://example.org/?token%3DZx81qqPl9931AbCd%26page=2",
    "base64 of a text": base64.b64encode(b"the configuration says: api_key=Zx81qqPl9931AbCd, region=eu").decode(),
    "an object": {"secrets": {"one": "first-value-1", "two": ["second-value-2", 3]}},
    "headers": {
        "headers": [["authorization", "Bearer Zx81qqPl9931AbCd"], ["set-cookie", "sid=Zx81qqPl9931AbCd; Path=/"]]
    },
    "twice": ["api_key=Zx81qqPl9931AbCd", "once more Zx81qqPl9931AbCd", {"password": "Zx81qqPl9931AbCd"}],
}


def _seal(value: Any) -> tuple[str, str, str]:
    """Return the original response, the recorded one, and the sealed values."""
    run = Redactor(KEY, "b").run()
    raw = {"value": value}
    response = dump(run.value(raw))
    return dump(raw), response, seal_values(run, response, raw)


@pytest.mark.parametrize("name", VALUES)
def test_r9_sealed_values_come_back_byte_for_byte(name: str) -> None:
    """For any hidden values and spelling the response equals the one that the agent saw."""
    raw, response, sealed = _seal(VALUES[name])
    assert raw != response
    opened = open_sealed(Redactor(KEY, "b").run(), sealed, response)
    assert opened is not None
    assert opened.response == raw


def test_r9_sealed_values_open_with_their_key_and_beside_their_response_only() -> None:
    """Another key, another response or a damaged text open nothing."""
    _, response, sealed = _seal({"password": SECRET, "note": "for the bank"})
    keyed, other = Redactor(KEY, "b").run(), Redactor(OTHER, "b").run()
    assert open_sealed(keyed, sealed, response) is not None
    assert open_sealed(other, sealed, response) is None
    assert open_sealed(keyed, sealed, response.replace("the bank", "a thief")) is None
    assert open_sealed(keyed, sealed, response, [["more was printed", 1, 0]]) is None
    for at in range(0, len(sealed), 7):
        damaged = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        assert open_sealed(keyed, damaged, response) is None


def test_r9_what_is_not_hidden_is_not_sealed() -> None:
    """A response without redactions has nothing sealed."""
    run = Redactor(KEY, "b").run()
    assert seal_values(run, '{"value":"a clean answer"}', {"value": "a clean answer"}) == ""


def test_r9_more_than_the_limit_is_not_sealed() -> None:
    """More hidden content than a call may seal is refused, not cut."""
    run = Redactor(KEY, "b").run()
    raw = {"value": {"password": "x1" * SEALED_BYTES_MAX}}
    with pytest.raises(TooLarge):
        seal_values(run, dump(run.value(raw)), raw)


def test_r9_whatever_differs_comes_back() -> None:
    """Another number of members or items, or another type, is restored as it was."""
    run = Redactor(KEY, "b").run()
    clean = {"a": [1, 2], "b": {"x": 1, "y": 2}, "c": 1, "d": "rdx-bbbbbbbbbbbbbbbbb", "e": "same"}
    raw = {"a": [1], "b": {"y": 2}, "c": True, "d": {"no": "text"}, "e": "same"}
    response = dump(clean)
    opened = open_sealed(run, seal_values(run, response, raw), response)
    assert opened is not None
    assert opened.response == dump(raw)


_piece = st.sampled_from(("", "a", "ab", "aba", '"', "rdx-", " ", "é"))
_TOKEN: Final = "rdx-bbbbbbbbbbbbbbbbb"


@given(st.lists(st.tuples(_piece, _piece), min_size=1, max_size=5), _piece)
def test_r9_what_stood_in_the_place_of_tokens_lines_up(pairs: list[tuple[str, str]], end: str) -> None:
    """For any text around and in place of tokens, filling in the values gives the original text."""
    raw = "".join(before + value for before, value in pairs) + end
    clean = "".join(before + _TOKEN for before, _ in pairs) + end
    found = pick_out(clean, raw)
    assert found is not None
    assert fill_in(clean, found) == raw


def test_r9_printed_text_comes_back() -> None:
    """Text that a call printed into one of the agent's objects is sealed with its response."""
    run = Redactor(KEY, "b").run()
    raw = [["the api_key=Zx81qqPl9931AbCd works\n", 1, 0, 1]]
    printed = [[run.text(str(raw[0][0])), 1, 0, 1]]
    sealed = seal_values(run, '{"value":null}', None, printed, raw)
    opened = open_sealed(run, sealed, '{"value":null}', printed)
    assert opened is not None
    assert opened.printed == raw
