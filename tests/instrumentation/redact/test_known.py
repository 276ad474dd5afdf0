"""Looking up known history gives the same result as walking it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay import codec
from spanreplay.model.json_text import dump
from spanreplay.redact import Redactor, RunRedactor
from spanreplay.redact.plain import ITEMS_MAX

KEY = bytes(range(32))
_texts = st.sampled_from(
    [
        "",
        "short",
        "an ordinary sentence of a prompt",
        "data: not an event",
        '{"order": 1, "note": "plain text inside"}',
        '{"password": "hunter2hunter2"}',
        "the password is hunter2hunter2, keep it",
        "Authorization: Bearer abcdef0123456789abcdef",
        "--api-key",
        "hunter2hunter2",
        "sk-proj-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5bC7d",
    ]
)
_keys = st.sampled_from(["role", "content", "headers", "password", "token", "max_tokens", "arguments", "description"])
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_keys, inner, max_size=4)),
    max_leaves=12,
)
_hostile = st.one_of(
    _values,
    st.sampled_from(
        ["größer", "\ud800", 2**63, -(2**63) - 1, float("nan"), float("inf"), b"\x00", (1, "short"), {1: 2}]
    ),
    st.dictionaries(st.sampled_from(["$type", "größe", "plain"]), _texts, max_size=2),
    st.lists(st.just("short"), min_size=ITEMS_MAX, max_size=ITEMS_MAX + 1),
)
_messages = st.lists(st.dictionaries(_keys, _values, max_size=3), min_size=4, max_size=9)


class _Walker(RunRedactor):
    """A redactor that walks everything, as if nothing had been seen before."""

    def __init__(self, run: RunRedactor) -> None:
        self.__dict__.update(run.__dict__)
        self._clean = _NothingKnown()  # type: ignore[assignment]  # as much of it as the engine uses


class _NothingKnown:
    def prune(self, value: Any) -> Any:
        return value

    def remember(self, value: Any) -> None:
        return


@settings(max_examples=200, deadline=None)
@given(messages=_messages, tools=_values, is_grown=st.lists(st.booleans(), min_size=1, max_size=5))
def test_pruned_history_is_redacted_as_a_whole_one(messages: list[Any], tools: Any, is_grown: list[bool]) -> None:
    """Requests that grow, shrink and repeat give the same result as a full walk, including counts."""
    redactor = Redactor(KEY, "k")
    quick, thorough = redactor.run(), _Walker(redactor.run())
    length = 4
    for grows in is_grown:
        length = min(length + 1, len(messages)) if grows else max(4, length - 1)
        body = json.dumps({"messages": messages[:length], "tools": tools, "model": "gpt-x"})
        counts: dict[str, int] = {}
        expected: dict[str, int] = {}
        assert quick.value(json.loads(body), counts) == thorough.value(json.loads(body), expected)
        assert counts == expected


@pytest.mark.parametrize(
    "secret",
    [
        {"password": "hunter2hunter2"},
        ["--api-key", "hunter2hunter2"],
        {"headers": [["authorization", "hunter2hunter2"]]},
    ],
    ids=["key name", "command line", "headers"],
)
def test_secret_appended_to_known_history_is_found(secret: Any) -> None:
    """A new message at the end of a conversation known to be clean is scanned."""
    run = Redactor(KEY, "k").run()
    history = [{"role": "user", "content": f"question number {n}"} for n in range(8)]
    for _ in range(2):
        assert run.value({"messages": [dict(message) for message in history]}) == {"messages": history}
    grown = {"messages": [*history, {"role": "tool", "content": secret}]}
    assert "hunter2" not in json.dumps(run.value(grown))


def test_known_history_is_returned_itself() -> None:
    """If there is nothing to redact, the very same object is returned, every time."""
    run = Redactor(KEY, "k").run()
    body = {"messages": [{"role": "user", "content": f"question number {n}"} for n in range(8)]}
    assert all(run.value(body) is body for _ in range(3))


@settings(max_examples=300, deadline=None)
@given(values=st.lists(st.one_of(_hostile, st.lists(_hostile, max_size=3)), min_size=1, max_size=4))
def test_text_of_what_is_clean_is_that_of_codec_and_redaction(values: list[Any]) -> None:
    """The fast path for small clean values gives the same text as codec and redaction, or declines."""
    run = Redactor(KEY, "k").run()
    for value in [*values, *values]:
        text = run.write_clean(value)
        if not text:
            with contextlib.suppress(codec.Unserializable):
                run.value(codec.encode(value))
            continue
        counts: dict[str, int] = {}
        assert text == dump(run.value(codec.encode(value), counts))
        assert not counts


def test_text_is_written_of_what_was_redacted_before_and_was_clean() -> None:
    """After a value was found clean it is written by the fast path; a secret never is, however often it comes."""
    run = Redactor(KEY, "k").run()
    clean = {"question": ["an ordinary sentence of a prompt", {"count": 3}, 1.5, None, True, False, {}, []]}
    assert run.write_clean(clean) == ""
    run.value(clean)
    assert run.write_clean(clean) == dump(clean)
    for secret in ({"password": "hunter2hunter2"}, ["--api-key", "hunter2hunter2"], {"password": 12345678}):
        run.value(secret)
        assert run.write_clean(secret) == ""


def test_text_of_what_is_not_plain_is_left_to_codec_and_redactor() -> None:
    """The fast path declines subclasses, which may run code while they are walked, and cycles; nothing is raised."""

    class Growing(dict[str, Any]):
        pass

    class Name(str):
        __slots__ = ()

    run = Redactor(KEY, "k").run()
    deep: list[Any] = []
    deep.append(deep)
    for value in (Growing(a=1), deep, {Name("a"): 1}, Name("a"), (1, 2)):
        assert run.write_clean(value) == ""
