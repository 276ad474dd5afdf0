"""The quick look at what holds no secret: it saves work and decides nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.redact import Redactor, RunRedactor
from spanreplay.redact.quick_look import QuickLook

KEYS = (
    *("content", "id", "index", "headers", "Headers", "password", "session_id", "token", "email", "max_tokens"),
    *("response_format", "arguments", "choices", "data", "set-cookie", "authorization", '{"k": 1}'),
)
TEXTS = (
    *(
        "order",
        "invoice 3",
        "details of it",
        "sk-ant-api03-" + "a1B2" * 10,
        "hunter2secretx9",
        "--api-key",
        "{not json",
    ),
    *("data: x", 'data: {"choices":[{"delta":{"content":"sk-"}}]}\n\n', "[1,2]", '{"a": "b"}\n', '"quoted"', '"a" b'),
    *(
        " \n lead",
        '\n\n[{"choices": 1}]',
        '[{"choices": 1}]',
        "password=supersecret99x",
        "résumé",
        "\ud800 lone",
        "id: 3",
    ),
    *('{"password": "hunter2secretx9"}', '{"a": "one", "a": "Bearer abcdefgh12345678zz"}', "4111 1111 1111 1111"),
)
texts = st.sampled_from(TEXTS) | st.lists(st.sampled_from(TEXTS), max_size=3).map(" ".join)
values = st.recursive(
    texts | st.integers() | st.floats(allow_nan=False) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
headers = st.lists(st.tuples(st.sampled_from(KEYS), texts), max_size=4)
given_things = st.lists(
    st.tuples(st.just("value"), values)
    | st.tuples(st.just("text"), texts)
    | st.tuples(st.just("text"), values.map(json.dumps))
    | st.tuples(st.just("json_text"), values.map(json.dumps))
    | st.tuples(st.just("headers"), headers),
    max_size=6,
)


class _Blind(QuickLook):
    """Never sees that anything is clean."""

    def is_clean(self, *args: Any, **kwargs: Any) -> bool:
        return False

    def is_value_clean(self, value: Any) -> bool:
        return False


def _redact_all(run: RunRedactor, things: list[tuple[str, Any]]) -> Any:
    found = []
    for name, thing in things:
        counts: dict[str, int] = {}
        found.append((repr(getattr(run, name)(thing, counts)), counts))
    return found, run.errors, sorted(run.remember().known)


@settings(deadline=None, max_examples=300)
@given(given_things)
def test_r3_the_quick_look_changes_no_outcome(things: list[tuple[str, Any]]) -> None:
    """Texts, values and headers, one after the other, are redacted, counted and learned from as without it."""
    quick, slow = (Redactor(b"k" * 32, "k").run() for _ in range(2))
    slow._quick.__class__ = _Blind
    assert _redact_all(quick, things) == _redact_all(slow, things)


@pytest.mark.parametrize(
    ("text", "is_clean"),
    [
        ('{"id": "chatcmpl-1", "choices": [{"message": {"content": "a plain answer"}}]}', True),
        ('{"content": "password=supersecret99x"}', False),
        ('{"content": "fine", "password": "x"}', False),
        ('{"content": "one", "content": "password=supersecret99x"}', False),
        ('data: {"content": "a plain answer"}\n\n', False),
        ('{"content": "cut', False),
        ("a plain answer", True),
    ],
    ids=["answer", "secret", "secret name", "second of two", "events", "cut", "text"],
)
def test_r3_a_look_is_enough_only_for_plain_texts_under_plain_names(
    run: RunRedactor, text: str, is_clean: bool
) -> None:
    """What is more than that, or only might be, is left to the redactor."""
    assert run.is_clean([("content-type", "application/json")], (text,)) is is_clean


@pytest.mark.parametrize("name", ["authorization", "set-cookie", "x-api-key"])
def test_r3_a_header_of_a_secret_name_takes_more_than_a_look(run: RunRedactor, name: str) -> None:
    """Its value may be no secret to any rule."""
    assert not run.is_clean([("content-type", "text/plain"), (name, "quarterly")])
