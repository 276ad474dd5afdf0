"""A ValidationError of pydantic comes back as it was: lines, inputs, texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator, validate_call
from pydantic_core import PydanticCustomError

from spanreplay import codec
from spanreplay.model.errors import Unserializable


class Order(BaseModel):
    """A model whose validation can fail in every way."""

    row: int
    parts: list[int]
    count: int = 0

    @field_validator("count")
    @classmethod
    def check(cls, count: int) -> int:
        """Reject some counts."""
        if count == 1:
            raise ValueError("no")
        if count == 2:
            raise PydanticCustomError("mine", "it is {x}, {not this}", {"x": 3})
        assert count != 3, "three"
        return count


@validate_call
def place(symbol: str, quantity: int) -> None:
    """A function whose arguments pydantic validates."""


def _place() -> None:
    place(symbol="A")  # type: ignore[call-arg]  # what is tested


FAILURES: dict[str, Any] = {
    "missing_and_wrong": lambda: Order.model_validate({"parts": [1, "x"]}),
    "json": lambda: Order.model_validate_json('{"row": 1'),
    "value_error": lambda: Order.model_validate({"row": 1, "parts": [], "count": 1}),
    "custom": lambda: Order.model_validate({"row": 1, "parts": [], "count": 2}),
    "assertion": lambda: Order.model_validate({"row": 1, "parts": [], "count": 3}),
    "arguments": _place,
}


@pytest.mark.parametrize("failure", FAILURES)
def test_validation_error_comes_back(failure: str) -> None:
    """Text, title and lines are the same after a round trip through JSON."""
    with pytest.raises(ValidationError) as caught:
        FAILURES[failure]()
    rebuilt = codec.decode_exception(json.loads(json.dumps(codec.encode_exception(caught.value))))
    assert isinstance(rebuilt, ValidationError)
    assert str(rebuilt) == str(caught.value)
    assert rebuilt.title == caught.value.title
    assert repr(rebuilt.errors()) == repr(caught.value.errors())


def test_validation_error_of_what_has_no_codec_is_refused() -> None:
    """An input that cannot be encoded is not replaced by its text."""
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"row": object(), "parts": []})
    with pytest.raises(Unserializable):
        codec.encode_exception(caught.value)


def test_unknown_kind_of_line_is_refused() -> None:
    """A recording by a newer pydantic does not crash the decoder."""
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({})
    encoded = codec.encode_exception(caught.value)
    encoded["lines"][0]["type"] = "from_the_future"
    with pytest.raises(Unserializable, match="does not know"):
        codec.decode_exception(encoded)
