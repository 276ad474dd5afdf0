"""The statements of a determinism line, and which of them changed."""

from __future__ import annotations

import pytest

from spanreplay.dialects import Message, ResponseMeaning, ToolCall
from spanreplay.dialects._meaning import output_hash
from spanreplay.model.serving_stack import list_changed, read_determinism

LINE = (
    "kernels=0.2.0+1a2b3c4d; engine=transformers-5.23.0; torch=2.13.0+cpu; plan=5f3c; device=cpu-AVX2; threads=2; "
    "dtype=bfloat16; tp=1; model=00ff; revision=abc"
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            LINE,
            {"engine": "transformers", "engine_version": "5.23.0", "dtype": "bfloat16", "batch_invariant": True},
        ),
        (
            "engine=vllm-0.33.0; dtype=float16; batch_invariant=0; plan=a",
            {"engine": "vllm", "engine_version": "0.33.0", "dtype": "float16", "batch_invariant": False},
        ),
        ("engine=my-engine/v1.2rc1", {"engine": "my-engine", "engine_version": "1.2rc1"}),
        ("engine=house-made", {"engine": "house-made"}),
        ("plan-1", {}),
        ("", {}),
        ("; =x;;", {}),
    ],
    ids=["kernels", "flag", "slash", "no version", "no parts", "empty", "nonsense"],
)
def test_s13_engine_version_dtype_and_flag_are_read_from_a_line(line: str, found: dict[str, object]) -> None:
    """Each value is read if the line states it, and nothing else is."""
    assert read_determinism(line) == found


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"fingerprint": "a"}, {"fingerprint": "b"}, ["fingerprint"]),
        ({"fingerprint": "a"}, {}, []),
        ({"response_model": "m-1"}, {"response_model": "m-2"}, ["response_model"]),
        ({"determinism": "plan=1"}, {}, ["determinism"]),
        ({}, {}, []),
    ],
    ids=["fingerprint", "not stated", "model", "determinism gone", "nothing"],
)
def test_s24_what_is_not_stated_is_no_change(before: dict[str, str], after: dict[str, str], changed: list[str]) -> None:
    """Only the disappearance of a determinism line is a change; other missing values are not."""
    assert list_changed(before, after) == changed


CALL = ToolCall("c1", "pay", '{"amount":1}')
SAID = ResponseMeaning(text="so", messages=(Message("assistant", "so", (CALL,)),), tool_calls=(CALL,))


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (SAID._replace(response_id="other", tokens_in=9, model="m-2", finish_reason="stop"), True),
        (SAID._replace(messages=(Message("assistant", "so", (CALL._replace(id="c2"),)),)), True),
        (SAID._replace(messages=(Message("assistant", "so"),)), False),
        (SAID._replace(messages=(Message("assistant", "so", (CALL._replace(arguments="{}"),)),)), False),
        (SAID._replace(messages=(Message("assistant", "s"), Message("assistant", "o", (CALL,)))), False),
        (SAID._replace(messages=(Message("assistant", "\ud800", (CALL,)),)), False),
        (SAID._replace(is_complete=False), False),
        (SAID._replace(error="gone"), False),
    ],
    ids=["ids and usage", "id of a call", "no call", "arguments", "two choices", "half an emoji", "cut", "error"],
)
def test_s25_output_hash_is_of_what_was_said(other: ResponseMeaning, is_same: bool) -> None:
    """The hash covers texts, calls and choices, but not generated ids or usage; incomplete answers have none."""
    assert (output_hash(other) == output_hash(SAID)) == is_same
    assert bool(output_hash(other)) == (other.is_complete and not other.error)
