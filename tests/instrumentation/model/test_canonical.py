"""Canonical JSON and keys: one form per value, errors with a path, digests that locate differences."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import threading
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.codec import encode
from spanreplay.model.canonical import canonicalize
from spanreplay.model.errors import ConfigError, Unserializable
from spanreplay.model.keys import KeyMemo, compute_key, differing_fields
from support import tricky_values

ROOT = Path(__file__).parents[3]

nfc_names = st.text(max_size=5).map(lambda text: unicodedata.normalize("NFC", text))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(nfc_names, inner, max_size=4),
    max_leaves=20,
)
properties = settings(deadline=None, max_examples=150)

# RFC 8785, appendix B: IEEE 754 bits and their one spelling
RFC_NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


# ── canonicalize ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("bits", RFC_NUMBERS)
def test_s32_canonical_numbers_follow_the_rfc(bits: str) -> None:
    """Every number of RFC 8785's table is spelled as the table says."""
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonicalize(value).decode() == RFC_NUMBERS[bits]


def test_s32_canonical_example_of_the_rfc() -> None:
    """The RFC's example document comes out byte for byte."""
    text = r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )
    assert canonicalize(json.loads(text)).decode() == expected


def test_s32_canonical_keys_are_in_utf16_order() -> None:
    """Object keys are ordered by UTF-16 code units instead of code points."""
    names = ["\u20ac", "\r", "\uff5e", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = list(json.loads(canonicalize(dict.fromkeys(names, 0))))
    assert ordered == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\uff5e"]


@properties
@given(json_values)
def test_s32_canonical_is_idempotent(value: Any) -> None:
    """Parsing the canonical form and writing it again changes nothing."""
    once = canonicalize(value)
    assert canonicalize(json.loads(once)) == once


@properties
@given(st.dictionaries(nfc_names, json_values, max_size=6), st.randoms(use_true_random=False))
def test_s32_canonical_is_order_free(members: dict[str, Any], random: Any) -> None:
    """The order of an object's members has no effect."""
    expected = canonicalize(members)
    names = list(members)
    random.shuffle(names)
    assert canonicalize({name: members[name] for name in names}) == expected


def test_s32_canonical_text_is_nfc() -> None:
    """Two Unicode spellings of a text are one text; two keys that become equal are refused."""
    assert canonicalize("e\u0301") == canonicalize("\u00e9") == '"\u00e9"'.encode()
    with pytest.raises(Unserializable, match=r"unserializable at \$\.a: object keys that are equal after NFC"):
        canonicalize({"a": {"e\u0301": 1, "\u00e9": 2}})


def test_s32_canonical_integers_are_exact() -> None:
    """Integers above 2**53 keep all digits, so that two ids never become the same double."""
    assert canonicalize([2**53, 2**53 + 1, -(2**70)]) == b"[9007199254740992,9007199254740993,-1180591620717411303424]"


def test_s32_canonical_lone_surrogate_is_escaped() -> None:
    """Half an emoji, as in a cut JSON text, has its own ASCII form."""
    assert canonicalize("\ud83d") == b'"\\ud83d"'
    assert canonicalize("\ud83d") != canonicalize("\\ud83d")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b": [0, 1, 2, math.nan]}}, "$.a.b[3]"),
        ({"a": [math.inf]}, "$.a[0]"),
        ([{"x y": {1, 2}}], '$[0]["x y"]'),
        ({"a": {1: 2}}, "$.a"),
        ({"blob": b"x"}, "$.blob"),
        (object(), "$"),
    ],
    ids=["nan", "infinity", "set", "int_key", "bytes", "object"],
)
def test_s32_canonical_refuses_with_the_path(value: Any, path: str) -> None:
    """A value that is not JSON is refused, and the error says where it is."""
    with pytest.raises(Unserializable) as caught:
        canonicalize(value)
    assert caught.value.path == path


def test_s32_canonical_refuses_bottomless_values() -> None:
    """A cycle and a very deep value are refused, not followed."""
    cycle: dict[str, Any] = {}
    cycle["a"] = cycle
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    for value in (cycle, deep):
        with pytest.raises(Unserializable, match="nested deeper than 400 levels"):
            canonicalize(value)


# ── the corpus ──────────────────────────────────────────────────────────────────────────────────────
def _keys_in_process(python: str, seed: str) -> dict[str, str]:
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "tests")}
    code = "from support.tricky_values import print_keys; print_keys()"
    done = subprocess.run([python, "-c", code], env=environ, capture_output=True, check=True, text=True)
    named: dict[str, str] = json.loads(done.stdout)
    return named


def test_s32_corpus_has_one_key_in_three_processes(python: str) -> None:
    """Each tricky value has the same key, or the same error, whatever the hash seed."""
    first, second, third = (_keys_in_process(python, seed) for seed in ("0", "1", "4242"))
    assert first == second == third
    assert len(first) >= 60
    assert first["deep"] == "unserializable at $"
    assert first["dataclass"] == tricky_values.find_key(tricky_values.GOOD["dataclass"]())


@pytest.mark.parametrize("name", tricky_values.GOOD)
def test_s32_tricky_value_has_a_key(name: str) -> None:
    """A value with a codec has a key, and an equal value has the same one."""
    make = tricky_values.GOOD[name]
    key = tricky_values.find_key(make())
    assert len(key) == 64
    assert tricky_values.find_key(make()) == key


def test_s32_tricky_values_have_different_keys() -> None:
    """No two tricky values share a key, except equal numbers."""
    keys = {name: tricky_values.find_key(make()) for name, make in tricky_values.GOOD.items()}
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize("name", tricky_values.BAD)
def test_s32_value_without_codec_is_refused_with_its_path(name: str) -> None:
    """A value without a codec is refused, and the path leads to it."""
    make, path = tricky_values.BAD[name]
    assert tricky_values.find_key(make()) == f"unserializable at {path}"


@pytest.mark.parametrize("items", [[(2, "b"), (1, "a"), (None, 0)], [((1, 2), 3), ((0,), 4)]], ids=["ints", "tuples"])
def test_s32_key_ignores_the_order_of_any_dict(items: list[tuple[Any, Any]]) -> None:
    """A dict whose keys are not strings keeps its order in the recording, but has one key."""
    assert encode(dict(items)) != encode(dict(reversed(items)))
    assert tricky_values.find_key(dict(items)) == tricky_values.find_key(dict(reversed(items)))


# ── repr never reaches a key ────────────────────────────────────────────────────────────────────────
class _Impostor:
    """An object with 0x in its repr, str and format."""

    def __repr__(self) -> str:
        return "<Impostor at 0x7f1234>"

    __str__ = __repr__

    def __len__(self) -> int:
        return 0


async def _coroutine_function() -> None:
    """A coroutine function, used only for its repr."""


addressed_objects = st.sampled_from(
    [
        object(),
        _Impostor(),
        _Impostor().__repr__,
        lambda: None,
        threading.Lock(),
        iter([]),
        (n for n in [0]),
        _coroutine_function,
        property(),
        type("Local", (), {})(),
        threading.local(),
    ]
)
containers = st.sampled_from(["list", "dict", "tuple", "nested"])


@properties
@given(addressed_objects, containers, json_values)
def test_s33_object_with_an_address_is_refused(value: Any, container: str, beside: Any) -> None:
    """An object whose repr has 0x never has a key, wherever it appears."""
    assert "0x" in repr(value)
    held: Any = {"list": [beside, value], "dict": {"v": value}, "tuple": (value,), "nested": {"a": [{"b": value}]}}[
        container
    ]
    for refuse in (canonicalize, encode):
        with pytest.raises(Unserializable):
            refuse(held)


def test_s33_text_subclass_gives_its_content_not_its_str() -> None:
    """A class that lies about its text cannot put the lie into a key."""
    assert "0x" not in canonicalize(encode(tricky_values.Tagged("content"))).decode()
    assert "content" in canonicalize(encode(tricky_values.Tagged("content"))).decode()


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────
def _chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def _tool_turn(call_id: str, result_id: str | None = None, arguments: str = "{}") -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": result_id or call_id, "content": "42"},
    ]


def _key(fields: dict[str, Any], memo: KeyMemo | None = None) -> str:
    return compute_key("openai_chat/1", fields, memo).hex


def test_key_is_stable_over_releases() -> None:
    """The key of a fixed request is pinned, so that recordings made by earlier versions still match."""
    fields = _chat({"role": "user", "content": "hi"}, *_tool_turn("call_a"), temperature=0.5)
    assert _key(fields) == KEY_OF_FIXED_REQUEST


KEY_OF_FIXED_REQUEST = "b3ff0260a912a63dd1db3e9534368a47ca7daf1eaed821da279f9cc7b060c07b"


def test_key_unknown_keyspec_is_an_error() -> None:
    """A keyspec of a newer version is named, with a remedy."""
    with pytest.raises(ConfigError, match="unknown keyspec 'openai_chat/99'") as caught:
        compute_key("openai_chat/99", {})
    assert "upgrade" in caught.value.hint


def test_key_refusal_names_field_and_element() -> None:
    """A refused value is located within the request."""
    with pytest.raises(Unserializable) as caught:
        compute_key("openai_chat/1", _chat({"role": "user"}, {"role": "user", "content": math.nan}))
    assert caught.value.path == "$.messages[1].content"


def test_key_mismatch_is_located() -> None:
    """The digests of two keys tell which message, argument and scalar differ."""
    before = compute_key(
        "openai_chat/1", _chat({"role": "user", "content": "a"}, {"role": "user", "content": "b"}, seed=1)
    )
    after = compute_key(
        "openai_chat/1", _chat({"role": "user", "content": "a"}, {"role": "user", "content": "c"}, seed=2)
    )
    assert sorted(differing_fields(before, after)) == ["messages[1]", "seed"]
    first = compute_key("tool/1", {"name": "pay", "arguments": {"amount": 190_000, "to": "x"}})
    second = compute_key("tool/1", {"name": "pay", "arguments": {"amount": 19_000, "to": "x"}})
    assert differing_fields(first, second) == ["arguments.amount"]
    assert differing_fields(first, first) == []


def test_key_ignores_which_random_ids_were_drawn() -> None:
    """The same conversation with other tool call ids, of any provider or framework, has the same key."""
    uuid, run_id = "0192f0e1-0000-7000-8000-000000000001", "0192f0e1000070008000000000000001"
    ids = ["call_abc", "toolu_01", "pyd_ai_77", uuid, run_id, "chatcmpl-tool-9"]
    assert len({_key(_chat(*_tool_turn(each))) for each in ids}) == 1


def test_key_still_sees_which_call_a_result_belongs_to() -> None:
    """Swapping two results between two calls changes the key."""
    straight = [*_tool_turn("call_a"), *_tool_turn("call_b")]
    crossed = [*_tool_turn("call_a", "call_b"), *_tool_turn("call_b", "call_a")]
    same_again = [*_tool_turn("call_x"), *_tool_turn("call_y")]
    assert _key(_chat(*straight)) == _key(_chat(*same_again))
    assert _key(_chat(*straight)) != _key(_chat(*crossed))
    assert _key(_chat(*_tool_turn("call_a"), *_tool_turn("call_a"))) != _key(_chat(*straight))


@pytest.mark.parametrize(
    ("keyspec", "make"),
    [
        ("openai_chat/1", lambda value: _chat(*_tool_turn("call_a", arguments=f'{{"id":"{value}"}}'))),
        (
            "anthropic_messages/1",
            lambda value: _chat(
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"id": value}}],
                }
            ),
        ),
        ("tool/1", lambda value: {"name": "f", "arguments": {"id": value, "call_id": value}}),
        ("openai_chat/1", lambda value: _chat({"role": "user", "content": value})),
        ("http/1", lambda value: {"method": "POST", "url": {}, "body": {"id": value}}),
    ],
    ids=["openai_arguments", "anthropic_input", "tool_arguments", "text", "http_body"],
)
def test_key_keeps_ids_that_are_meaning(keyspec: str, make: Any) -> None:
    """An id in arguments, text or another service's body is meaningful, so it stays in the key."""
    first = "0192f0e1-0000-7000-8000-000000000001"
    second = "0192f0e1-0000-7000-8000-000000000002"
    assert compute_key(keyspec, make(first)).hex != compute_key(keyspec, make(second)).hex


def test_key_placeholder_cannot_be_spelled() -> None:
    """A text that looks like a renamed id is not treated as one."""
    assert _key(_chat({"role": "user", "id": "call_a"})) != _key(_chat({"role": "user", "id": "id#1"}))


# ── memo ────────────────────────────────────────────────────────────────────────────────────────────
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": json_values},
    optional={"tool_call_id": st.sampled_from(["call_a", "call_b", "call_c"]), "id": st.sampled_from(["msg_1", "x"])},
)


@properties
@given(st.lists(st.lists(messages, max_size=6), max_size=6))
def test_key_memo_never_changes_a_key(conversations: list[list[dict[str, Any]]]) -> None:
    """Whatever was digested before, a key with a memo equals the key without."""
    memo = KeyMemo()
    grown: list[dict[str, Any]] = []
    for conversation in conversations:
        grown.extend(conversation)
        for each in (grown, conversation, grown[1:]):
            fields = json.loads(json.dumps(_chat(*each)))
            try:
                expected = compute_key("openai_chat/1", fields)
            except Unserializable:
                continue
            found = compute_key("openai_chat/1", fields, memo)
            assert (found.hex, found.fields) == (expected.hex, expected.fields)


def test_key_memo_tells_equal_but_different_types_apart() -> None:
    """True, 1 and 1.0 are equal in Python; the memo keeps them apart as JSON does."""
    memo = KeyMemo()
    variants = [True, 1, 1.0, "1", None, [1], {"a": 1}]
    fields = [_chat({"role": "user", "content": each}) for each in variants]
    assert [_key(each, memo) for each in fields] == [_key(each) for each in fields]
    assert len({_key(each, memo) for each in fields}) == len(variants) - 1  # 1 and 1.0 are one JSON number


def test_key_memo_pays_only_for_new_messages() -> None:
    """A conversation that grew by one message digests one message; an edited one digests the edited one."""
    memo = KeyMemo()
    history = [{"role": "user", "content": f"message {n}"} for n in range(50)]
    _key(_chat(*history), memo)
    before = memo.misses
    _key(_chat(*history, {"role": "user", "content": "new"}), memo)
    assert memo.misses == before + 1
    _key(_chat({"role": "user", "content": "edited"}, *history[1:]), memo)
    assert memo.misses == before + 2


def test_key_memo_is_bounded() -> None:
    """The memo drops its oldest elements and still gives correct keys."""
    memo = KeyMemo(bytes_max=10_000)
    for n in range(200):
        fields = _chat({"role": "user", "content": f"{n} " + "x" * 900})
        assert _key(fields, memo) == _key(fields)
    assert len(memo) <= 11


def test_key_memo_does_not_hide_a_refusal() -> None:
    """A value that cannot be in a key is refused again even if an equal part was digested before."""
    memo = KeyMemo()
    _key(_chat({"role": "user", "content": "a"}), memo)
    for _ in range(2):
        with pytest.raises(Unserializable):
            _key(_chat({"role": "user", "content": "a"}, {"role": "user", "content": b"a"}), memo)


def test_canonical_imports_nothing_heavy(python: str) -> None:
    """Keys, codec and dialects load neither pydantic nor numpy nor an SDK."""
    code = (
        "import sys; import spanreplay.model.canonical, spanreplay.model.keys, spanreplay.codec._table;"
        "import spanreplay.dialects as d;"
        "paths = ('chat/completions', 'responses', 'embeddings', 'messages');"
        "[d.find_dialect('POST', 'http://h/v1/' + path) for path in paths];"
        "heavy = {'pydantic', 'pydantic_core', 'numpy', 'openai', 'anthropic', 'httpx', 'httpx2', 'attr', 'mcp',"
        " 'langchain_core', 'google', 'grpc'};"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & heavy), 'opentelemetry.sdk' in sys.modules)"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[] False"
