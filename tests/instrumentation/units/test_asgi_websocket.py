"""Messages of websocket sessions as values."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spanreplay
from spanreplay.model import config
from spanreplay.units.asgi_websocket import LOST, build_message, describe_message, receive_message

MESSAGES: list[dict[str, Any]] = [
    {"type": "websocket.connect"},
    {"type": "websocket.receive", "text": ""},
    {"type": "websocket.receive", "bytes": b""},
    {"type": "websocket.receive", "bytes": b"text of a binary frame"},
    {"type": "websocket.receive", "bytes": b"\xff\x00"},
    {"type": "websocket.disconnect", "code": 1006, "reason": None},
    {"type": "websocket.accept", "subprotocol": None, "headers": [(b"x-a", b"1")]},
]


@pytest.mark.parametrize("message", MESSAGES, ids=[f"{each['type']}-{n}" for n, each in enumerate(MESSAGES)])
def test_p4_a_message_comes_back(message: dict[str, Any]) -> None:
    """A recorded message gives the same message again."""
    assert build_message(describe_message(message)[0]) == message


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.binary())
def test_p4_the_content_of_a_frame_comes_back(content: str | bytes) -> None:
    """The content comes back as text or bytes, as it was sent."""
    message = {"type": "websocket.receive", ("text" if isinstance(content, str) else "bytes"): content}
    assert build_message(describe_message(message)[0]) == message


def test_p4_the_frame_that_a_server_leaves_empty_is_not_there() -> None:
    """Some servers send both members, one of them None."""
    described, _ = describe_message({"type": "websocket.receive", "text": "hello", "bytes": None})
    assert build_message(described) == {"type": "websocket.receive", "text": "hello"}


def test_p2_a_message_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit only size and hash are kept, which still distinguish messages."""
    monkeypatch.setattr(config, "BODY_BYTES_MAX", 8)
    described = [describe_message({"type": "websocket.send", "text": f"12345678{last}"}) for last in "xy"]
    assert [(found["bytes"], is_whole) for found, is_whole in described] == [(9, False), (9, False)]
    assert described[0][0]["sha256"] != described[1][0]["sha256"]


class _Session:
    """A session that only keeps its holes."""

    def __init__(self) -> None:
        self.holes: list[str] = []

    def inside(self) -> AbstractContextManager[object]:
        return nullcontext()

    def hole(self, reason: str) -> None:
        self.holes.append(reason)


@pytest.mark.parametrize(
    ("described", "holes"), [(({"type": "x"}, True), []), (({"type": "x"}, False), [LOST]), (None, [LOST])]
)
def test_n3_a_message_that_is_not_recorded_whole_is_a_hole(
    described: tuple[dict[str, Any], bool] | None, holes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application gets its message whether or not it could be described."""
    monkeypatch.setenv("SPANREPLAY_GUARD", "production")
    session = _Session()

    async def receive() -> str:
        return "hello"

    def describe(came: Any) -> tuple[dict[str, Any], bool]:
        if described is None:
            raise RuntimeError("a message of a stranger")
        return described

    with spanreplay.record(directory=tmp_path):
        got = asyncio.run(receive_message(session, receive, describe, lambda exc: False))
    assert (got, session.holes) == ("hello", holes)
