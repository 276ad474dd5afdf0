"""Models of real libraries survive the codec: pydantic, LangChain, MCP, OpenAI, Anthropic."""

from __future__ import annotations

import json
import threading
import warnings
from decimal import Decimal
from typing import Any, Generic, TypeVar

import anthropic.types
import openai.types.chat
import openai.types.responses
import pydantic
import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)
from langchain_core.outputs import ChatGeneration
from langgraph.types import Command
from mcp import types as mcp_types

from spanreplay.codec import Unserializable, decode, encode
from support import wire_anthropic, wire_openai
from support.tricky_values import Color, Invoice, Line, Order

T = TypeVar("T")


class Page(pydantic.BaseModel, Generic[T]):
    """A generic model."""

    items: list[T]


class Noisy(pydantic.BaseModel):
    """A model that leaves a trace when it is constructed."""

    made: list[str] = []
    name: str

    def model_post_init(self, context: Any) -> None:
        """Leave a trace."""
        self.made.append("post_init")


class Account(pydantic.BaseModel):
    """A model with a value that must not be recorded."""

    key: pydantic.SecretStr
    home: pydantic.HttpUrl


def _back(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


def _assert_same(value: Any) -> Any:
    back = _back(value)
    assert type(back) is type(value)
    assert back == value
    return back


def test_s61_pydantic_model_keeps_types_extras_and_private_state() -> None:
    """Nested models, parsed datetimes, extra fields, private attributes and the set of given fields are restored."""
    invoice = Invoice.model_validate({"lines": [{"sku": "a", "price": "2.50"}], "due": "2026-03-01T12:00:00Z", "po": 7})
    invoice._seen = 9
    back = _assert_same(invoice)
    assert back._seen == 9
    assert back.model_extra == {"po": 7}
    assert back.model_fields_set == invoice.model_fields_set
    assert type(back.lines[0]) is Line
    assert back.color is Color.RED
    assert type(back.due.tzinfo) is type(invoice.due.tzinfo)
    assert back.model_dump_json() == invoice.model_dump_json()


def test_s61_pydantic_generic_model_round_trip() -> None:
    """A parametrised model is restored as the same class."""
    _assert_same(Page[Line](items=[Line(sku="a", price=Decimal(1))]))
    _assert_same(Page[int](items=[1]))
    _assert_same(Page[Any](items=[1]))


def test_codec_runs_no_model_code_on_decode() -> None:
    """Decoding does not construct the model a second time."""
    noisy = Noisy(name="n")
    assert noisy.made == ["post_init"]
    assert _back(noisy).made == ["post_init"]


def test_codec_never_writes_a_secret_down() -> None:
    """A SecretStr comes back masked; recording and key don't contain it."""
    account = Account(key="sk-very-secret", home="https://example.test/a")  # type: ignore[arg-type]  # pydantic coerces
    assert "very-secret" not in json.dumps(encode(account))
    back = _back(account)
    assert type(back.key) is pydantic.SecretStr
    assert back.home == account.home
    assert type(back.home) is type(account.home)


def test_s61_pydantic_v1_model_round_trip() -> None:
    """Models of pydantic 1 are restored with their given fields and private attributes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        legacy = pytest.importorskip("support.legacy_models", exc_type=ImportError)
    old = legacy.Old(name="n", order=Order(1, None))  # type: ignore[arg-type]  # any values do
    old._count = 5
    back = _assert_same(old)
    assert back._count == 5
    assert back.__fields_set__ == {"name", "order"}


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage([{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:x"}}]),
        SystemMessage("be brief", id="s1"),
        AIMessage(
            "",
            tool_calls=[{"name": "pay", "args": {"amount": 1}, "id": "call_1", "type": "tool_call"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
            response_metadata={"model_name": "m"},
        ),
        AIMessageChunk(content="part", tool_call_chunks=[{"name": "f", "args": "{", "id": "c", "index": 0}]),
        ToolMessage("42", tool_call_id="call_1", artifact=Order(1, None), status="error"),  # type: ignore[arg-type]
    ],
    ids=lambda message: type(message).__name__,
)
def test_s61_langchain_message_round_trip(message: Any) -> None:
    """Messages keep calls, usage, artifacts and status, and serialise as before."""
    back = _assert_same(message)
    assert message_to_dict(back) == message_to_dict(message)


def test_s61_langchain_retrieval_and_graph_values_round_trip() -> None:
    """Documents with scores, generations and LangGraph's commands survive, as retrievers and tools return them."""
    documents = [(Document("text", metadata={"page": 1}, id="d1"), 0.25)]
    assert _back(documents) == documents
    _assert_same(ChatGeneration(message=AIMessage("a"), generation_info={"finish_reason": "stop"}))
    _assert_same(Command(update={"messages": [ToolMessage("x", tool_call_id="c")]}, goto="next"))


def test_s61_mcp_result_round_trip() -> None:
    """Tool results of an MCP session keep their content types."""
    result = mcp_types.CallToolResult.model_validate(
        {
            "content": [
                {"type": "text", "text": "ok"},
                {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                {"type": "resource_link", "uri": "file:///a", "name": "a"},
            ],
            "structuredContent": {"n": 1},
            "isError": False,
        }
    )
    back = _assert_same(result)
    assert [type(each) for each in back.content] == [type(each) for each in result.content]
    assert back.model_dump_json() == result.model_dump_json()


def test_s61_sdk_objects_round_trip() -> None:
    """Completions, responses and messages of the SDKs keep vendor fields that the SDKs do not know."""
    chat = wire_openai.answer_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, "fp")
    chat["vendor_extra"] = {"x": 1}
    _assert_same(openai.types.chat.ChatCompletion.model_validate(chat))
    _assert_same(
        openai.types.responses.Response.construct(**wire_openai.answer_responses({"model": "m", "input": "hi"}))
    )
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    _assert_same(anthropic.types.Message.model_validate(wire_anthropic.answer_messages(body)))


def test_codec_refuses_a_model_that_holds_a_client() -> None:
    """A model that contains a live object is refused with the path to it."""
    with pytest.raises(Unserializable, match=r"unserializable at \$\.items\[0\]\.lock: _thread\.lock"):
        encode(Page[Any](items=[{"lock": threading.Lock()}]))
