"""A replay with the code of tools, after one with their results."""

from __future__ import annotations

from typing import Any

import pytest

from spanreplay.cli.runs.tools_again import limit_again


@pytest.mark.parametrize(
    ("served", "settings", "limit"),
    [
        ({"duration_ms": 800, "recorded_duration_ms": 2_000}, {}, "10"),
        ({"duration_ms": 8_000, "recorded_duration_ms": 2_000}, {}, "40"),
        ({"duration_ms": 800, "recorded_duration_ms": 60_000}, {}, "120"),
        ({}, {}, "10"),
        ({"duration_ms": 8_000}, {"SPANREPLAY_REPLAY_TIMEOUT": "5"}, None),
    ],
    ids=["short", "slow", "long", "unknown", "as asked"],
)
def test_p12_the_code_of_tools_has_a_limit(served: Any, settings: dict[str, str], limit: str | None) -> None:
    """It may wait for something that a replay does not bring; a user's own limit stays."""
    assert limit_again(served, settings) == ({} if limit is None else {"SPANREPLAY_REPLAY_TIMEOUT": limit})
