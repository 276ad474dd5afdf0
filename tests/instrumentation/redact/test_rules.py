"""Each rule finds its secrets in every wrapping, and leaves everything else unchanged."""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

import pytest

from spanreplay.redact import RULES, Anchor, Redactor, Rule, RunRedactor
from support.secret_samples import SECRETS, SURVIVORS, Sample

_IDS = [f"{index}-{sample.rule}" for index, sample in enumerate(SECRETS)]
WRAPPINGS = {
    "alone": "{}",
    "prose": "I used {} for it, did it work?",
    "comma": "a,{},b",
    "quotes": '"{}"',
    "brackets": "({})",
    "lines": "first\n{}\nlast",
    "non-ascii": "schlüssel→ {} ←取引",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS.keys())
@pytest.mark.parametrize("sample", SECRETS, ids=_IDS)
def test_r1_secret_is_replaced_and_its_surroundings_stay(run: RunRedactor, sample: Sample, wrapping: str) -> None:
    """No part of a secret survives, and everything around it does."""
    before, after = wrapping.split("{}")
    counts: dict[str, int] = {}
    redacted = run.text(before + sample.text + after, counts)
    assert sample.secret not in redacted
    assert "rdx-k" in redacted
    assert redacted.startswith(before)
    assert redacted.endswith(after)
    assert set(counts) == {sample.rule}
    assert run.errors == 0


@pytest.mark.parametrize("sample", SECRETS, ids=_IDS)
def test_r1_secret_in_json_is_replaced_at_any_depth(run: RunRedactor, sample: Sample) -> None:
    """A secret inside JSON inside JSON is found, and the result is JSON of the same shape."""
    document: Any = sample.text
    for _ in range(4):
        document = json.dumps({"content": document, "n": 1})
    redacted: Any = run.json_text(document)
    assert sample.secret not in redacted
    for _ in range(4):
        parsed = json.loads(redacted)
        assert parsed["n"] == 1
        redacted = parsed["content"]
    assert "rdx-k" in redacted
    assert sample.secret not in redacted


@pytest.mark.parametrize("sample", [s for s in SECRETS if "\n" not in s.secret], ids=lambda s: str(s.rule))
def test_secret_after_an_escaped_newline_is_found(run: RunRedactor, sample: Sample) -> None:
    """In a cut-off JSON text, the n of an escaped line break does not hide the key after it."""
    redacted = run.text('{"content":"first\\n' + sample.text.replace('"', '\\"'))
    assert sample.secret not in redacted


@pytest.mark.parametrize("text", SURVIVORS)
def test_r2_harmless_text_survives(run: RunRedactor, text: str) -> None:
    """Amounts, dates, ids, hashes, code and prose about secrets stay unchanged, alone and in JSON."""
    assert run.text(text) == text
    assert run.text(f"see {text} there") == f"see {text} there"
    document = {"content": text, "items": [text]}
    assert run.value(document) is document
    nested = json.dumps({"arguments": json.dumps(document)})
    assert run.json_text(nested) is nested


def test_r2_tool_definitions_survive(run: RunRedactor) -> None:
    """A tool with parameters called password and api_key keeps its JSON Schema."""
    schema = {
        "type": "object",
        "properties": {
            "password": {"type": "string", "description": "The user's password", "format": "password"},
            "api_key": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "secret": {"title": "Client Secret", "default": ""},
            "token": {"type": ["string", "null"]},
            "authorization": {"$ref": "#/$defs/Auth"},
        },
        "required": ["password", "token", "username"],
    }
    tools = {"tools": [{"type": "function", "function": {"name": "login", "parameters": schema}}]}
    assert run.value(tools) is tools
    text = json.dumps(tools)
    assert run.json_text(text) is text


@pytest.mark.parametrize("kind", ["string", [], {}, "bearer", ["string"]], ids=repr)
def test_r1_value_dressed_as_a_schema_is_replaced(run: RunRedactor, kind: object) -> None:
    """An object under a secret name that states its type but holds a value is not a schema."""
    value: dict[str, Any] = {"password": {"type": kind, "value": "a b c", "n": 12345}}
    redacted = run.value(value)
    assert redacted["password"]["value"].startswith("rdx-k")
    assert redacted["password"]["n"].startswith("rdx-k")
    assert json.loads(run.json_text(json.dumps(value))) == redacted


def test_r2_log_probabilities_and_streamed_tokens_survive(run: RunRedactor) -> None:
    """A key `token` that holds a piece of model output is not a secret."""
    value = {
        "logprobs": {"content": [{"token": "pa55word123", "logprob": -0.1, "bytes": [112, 97]}]},
        "event": {"token": " Hello"},
        "usage": {"total_tokens": 12345678, "cached_tokens": 3},
    }
    assert run.value(value) is value


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "Password",
        "db_password",
        "dbPassword",
        "DB_PASSWORD",
        "PGPASSWORD",
        "apiKey",
        "x-api-key",
        "OPENAI_API_KEY",
        "openaiAPIKey",
        "clientSecret",
        "access_token",
        "refreshToken",
        "http.request.header.authorization",
        "Set-Cookie",
        "private_key",
    ],
)
def test_value_under_a_secret_name_is_replaced(run: RunRedactor, name: str) -> None:
    """Words, numbers, lists and objects under a secret name are replaced; flags and null stay."""
    value = {name: ["a b c", 12345, {"x": "short", "on": True, "none": None}], "other": "a b c"}
    redacted: Any = run.value(value)
    text, number, members = redacted[name]
    assert text.startswith("rdx-k")
    assert number.startswith("rdx-k")
    assert members["x"].startswith("rdx-k")
    assert (members["on"], members["none"], redacted["other"]) == (True, None, "a b c")
    assert json.loads(run.json_text(json.dumps(value))) == redacted


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "token_type",
        "tokens",
        "token_count",
        "next_page_token",
        "password_hint",
        "keyboard",
        "secretary",
        "author",
        "primary_key",
        "key",
        "cookies_enabled",
    ],
)
def test_r2_value_under_a_harmless_name_survives(run: RunRedactor, name: str) -> None:
    """Names are compared by whole words, from their end."""
    value = {name: "a1b2c3d4e5"}
    assert run.value(value) is value


def test_adding_a_rule_is_one_row() -> None:
    """A row for another format, found by the shape of its digits, is all that is needed."""
    row = Rule("ssn", Anchor.SHAPE, ("000-00-0000",), r"[0-9]{3}-[0-9]{2}-[0-9]{4}(?![0-9-])")
    email = Rule(
        "email",
        Anchor.TEXT,
        ("@",),
        r"@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,5}\.[A-Za-z]{2,24}(?![A-Za-z0-9_])",
        before="ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._%+-",
    )
    run = Redactor(b"k" * 32, "k", (*RULES, row, email)).run()
    counts: dict[str, int] = {}
    redacted = run.text("ssn 123-45-6789, mail ada@example.com.", counts)
    assert re.fullmatch(r"ssn rdx-k\w{16}, mail rdx-k\w{16}\.", redacted)
    assert counts == {"ssn": 1, "email": 1}


# ── Linear time, by construction ────────────────────────────────────────────────────────────────────
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_WIDTH_MAX = 25_000


def _open_ended(pattern: Any) -> bool:
    """Whether the last element of a parsed pattern repeats without a bound. Asserts that no other one does."""
    is_open = False
    for operation, argument in pattern:
        assert not is_open, "something follows an unbounded repeat"
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            _, most, body = argument
            if most is _parser.MAXREPEAT:
                assert not _open_ended(body), "an unbounded repeat inside an unbounded repeat"
                assert name != "MIN_REPEAT", "a lazy unbounded repeat"
                is_open = True
            else:
                assert most == 1 or not _open_ended(body), "an unbounded repeat inside a repeat"
                is_open = _open_ended(body)
        elif name == "SUBPATTERN":
            is_open = _open_ended(argument[-1])
        elif name == "BRANCH":
            is_open = True in [_open_ended(branch) for branch in argument[1]]
    return is_open


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_r4_rule_costs_a_bounded_amount_per_anchor(rule: Rule) -> None:
    """Every part that may fail to match is bounded; only a certain match may read on without a bound."""
    parsed = _parser.parse(rule.pattern)
    if rule.check is not None or not _open_ended(parsed):
        assert parsed.getwidth()[1] <= _WIDTH_MAX
    if rule.tail:
        assert _open_ended(_parser.parse(rule.tail))
    assert re.compile(rule.pattern.encode("ascii")).match(b"\x00") is None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_never_matches_across_nul(rule: Rule) -> None:
    """Texts that are scanned together are separated by NUL, so no pattern may match it."""
    pattern = re.compile(rule.pattern.encode("ascii"))
    for sample in SECRETS:
        if sample.rule != rule.name:
            continue
        text = sample.text.encode()
        for cut in range(1, len(text)):
            match = pattern.match(text[:cut] + b"\x00" + text[cut:], 0)
            assert match is None or b"\x00" not in match.group()
