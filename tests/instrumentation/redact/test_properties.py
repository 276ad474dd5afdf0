"""Properties of redaction for every text, value and split."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spanreplay.redact import Redactor, RunRedactor
from support.secret_samples import SECRETS, SURVIVORS

_SEPARATORS = (
    *("", " ", "\n", ",", ".", ":", '"', "'", "-", "_", "=", "@", "/", "\\", "\\n", "(", ")", "1", "a", "é", "取"),
    *("\x00", "%40", "&", ";", "<", ">", "{", "}", "[", "]", "password=", "token: ", "Bearer ", "basic ", "rdx-"),
    *(
        "+",
        "12",
        "sk-",
        "--api-key ",
        "://",
        "-----BEGIN ",
        "\ud800",
        "secret => ",
        '"api_key": "',
        "data: ",
        "\n\ndata: ",
        "event: x\n",
    ),
)
_fragments = st.one_of(
    st.sampled_from([sample.text for sample in SECRETS]),
    st.sampled_from([sample.secret for sample in SECRETS]),
    st.sampled_from(SURVIVORS[:-1]),
    st.sampled_from(_SEPARATORS),
    st.text(max_size=6),
)
texts = st.lists(_fragments, max_size=8).map("".join)
_keys = st.sampled_from(
    ["a", "content", "password", "api_key", "max_tokens", "arguments", "Authorization", "token", "headers", "type"]
)
values = st.recursive(
    st.one_of(texts, st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_keys, inner, max_size=4)),
    max_leaves=8,
)
relaxed = settings(deadline=None, max_examples=200)


def _fresh() -> RunRedactor:
    return Redactor(b"k" * 32, "k").run()


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [_shape(member) for member in value.values()]
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return 0


@relaxed
@given(texts)
def test_r3_redaction_is_idempotent(text: str) -> None:
    """Redacting a redacted text changes nothing, in the same run or another."""
    run = _fresh()
    once = run.text(text)
    assert run.text(once) == once
    assert _fresh().text(once) == once
    assert run.errors == 0


@relaxed
@given(texts)
def test_r3_redaction_is_deterministic(text: str) -> None:
    """The same text gives the same result in every run, and each time within a run."""
    run = _fresh()
    once = run.text(text)
    assert run.text(text) == once == _fresh().text(text)


@relaxed
@given(values, st.booleans())
def test_r3_value_redaction_is_idempotent_and_shares_what_is_clean(value: Any, is_nested: bool) -> None:
    """A redacted value comes back as the very same object, in any run."""
    if is_nested:
        value = {"arguments": json.dumps(value)}
    run = _fresh()
    once = run.value(value)
    assert run.value(once) is once
    assert _fresh().value(once) is once
    assert run.errors == 0


@relaxed
@given(values, st.booleans(), st.booleans())
def test_json_stays_json_of_the_same_shape(value: Any, is_ascii: bool, is_nested: bool) -> None:
    """JSON stays JSON with the same members and items in the same order."""
    if is_nested:
        value = {"arguments": json.dumps(value)}
    text = json.dumps(value, ensure_ascii=is_ascii)
    redacted = _fresh().json_text(text)
    assert _shape(json.loads(redacted)) == _shape(value)
    assert _fresh().json_text(redacted) == redacted


@relaxed
@given(values)
def test_json_escapes_and_layout_make_no_difference(value: Any) -> None:
    """A document gives the same result whatever its escapes and white space, and as a value."""
    if isinstance(value, str):
        value = [value]
    results = [
        json.loads(_fresh().json_text(text))
        for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, indent=1))
    ]
    assert results[0] == results[1] == results[2] == json.loads(json.dumps(_fresh().value(value)))


@relaxed
@given(texts, st.lists(st.integers(0, 400), max_size=12))
def test_chunks_are_redacted_as_their_join(text: str, cuts: list[int]) -> None:
    """The number of chunks stays, and the redacted chunks join to the redacted join."""
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[a:b] for a, b in itertools.pairwise(bounds)]
    redacted = _fresh().chunks(chunks)
    assert len(redacted) == len(chunks)
    assert "".join(redacted) == _fresh().text(text)


@relaxed
@given(
    st.sampled_from(SECRETS),
    st.sampled_from([" ", "\n", ", ", ". ", '"', " | "]),
    st.sampled_from([" ", "\n", ", ", ". ", '"', " | "]),
    st.sampled_from(["Result: ", "You said ", "", "### "]),
)
def test_s43_redaction_commutes_with_building_a_prompt(sample: Any, left: str, right: str, before: str) -> None:
    """A prompt built from raw tool output and one built from redacted output redact to the same text.

    The recorder sees the first form, a replay the second.
    """
    recorder, replayer = _fresh(), _fresh()
    tool_output = recorder.text(sample.text)
    replayer.text(tool_output)

    def prompt(output: str) -> str:
        return before + left + output + right + "please act"

    assert recorder.text(prompt(sample.text)) == replayer.text(prompt(tool_output))


@relaxed
@given(st.sampled_from(SECRETS))
def test_s43_redaction_commutes_with_quoting(sample: Any) -> None:
    """The same holds if the output is quoted as JSON, once or twice, or its secret part stands alone."""

    def quote(output: str) -> str:
        return json.dumps({"messages": [{"role": "tool", "content": output}]})

    def quote_twice(output: str) -> str:
        return json.dumps({"arguments": json.dumps({"q": output})})

    for build in (quote, quote_twice):
        recorder = _fresh()
        tool_output = recorder.text(sample.text)
        assert recorder.json_text(build(sample.text)) == _fresh().json_text(build(tool_output))


@relaxed
@given(values, st.sampled_from(SECRETS), st.integers(0, 5))
def test_r1_no_canary_survives(value: Any, sample: Any, depth: int) -> None:
    """A secret planted at any depth of JSON in JSON is nowhere in the result."""
    assume(sample.secret not in json.dumps(value, ensure_ascii=False))  # attached to other letters it is not a key
    planted: Any = {"content": f"see {sample.text} there", "other": value}
    for _ in range(depth):
        planted = {"arguments": json.dumps(planted)}
    run = _fresh()
    assert sample.secret not in json.dumps(run.value(planted))
    escaped = json.dumps(sample.secret)[1:-1]
    assert escaped not in run.json_text(json.dumps(planted))
