"""Whether a replay is one of a message, told from its recording."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spanreplay.units.messages.replayed import _is_of_message


@pytest.mark.parametrize(
    ("value", "is_message"),
    [
        ({"source": "kafka g", "loops": ["kafka g"]}, True),
        ({"task": "shop.answer", "source": "web"}, False),  # a job with an argument of that name
        (None, False),
    ],
)
def test_p4_only_a_message_is_given_where_a_loop_takes_one(value: Any, is_message: bool) -> None:
    """The loops of a process that replays a request or a job wait."""
    call = None if value is None else SimpleNamespace(response=json.dumps({"value": value}))
    index = SimpleNamespace(at=lambda lane, boundary, number: call)
    run: Any = SimpleNamespace(resolver=SimpleNamespace(answers=SimpleNamespace(index=index)))
    assert _is_of_message(run) is is_message
