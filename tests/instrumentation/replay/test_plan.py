"""Plans: which boundaries run live, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.errors import ConfigError
from spanreplay.replay.plan import RULES_MAX, Plan, build_plan, read_plan


@pytest.mark.parametrize(
    ("stub", "live", "boundary", "is_live"),
    [
        ((), (), "tool:f", False),
        ((), ("tool",), "tool:f", True),
        ((), ("tool:*",), "llm:f", False),
        (("tool:delete*",), ("tool:*",), "tool:delete_row", False),
        (("tool:*",), ("tool:delete*",), "tool:delete_row", True),
        (("tool:*",), ("tool:*",), "tool:f", False),
        ((), ("tool:get_?",), "tool:get_a", True),
        ((), ("tool:get_?",), "tool:get_ab", False),
        ((), ("TOOL:*",), "tool:f", False),
        (("*:*",), ("http:POST 127.0.0.1*",), "http:POST 127.0.0.1:80", True),
    ],
    ids=["default", "kind", "other_kind", "longer_stub", "longer_live", "tie", "one", "two", "case", "host"],
)
def test_s2_longest_pattern_decides(stub: tuple[str, ...], live: tuple[str, ...], boundary: str, is_live: bool) -> None:
    """Of the patterns that match, the longest decides, and `stub` wins a tie."""
    assert build_plan(stub=stub, live=live).is_live(boundary) is is_live


@given(st.text(max_size=12))
def test_s27_nothing_is_live_without_a_pattern(boundary: str) -> None:
    """The default plan lets nothing through."""
    assert Plan().is_live(boundary) is False
    assert read_plan("").is_live(boundary) is False


@pytest.mark.parametrize("on_change", ["stop", "serve", "live"])
def test_plan_reads_what_it_wrote(on_change: str) -> None:
    """A plan goes through the environment unchanged."""
    plan = build_plan(stub=("llm:*",), live=("tool:a", "http"), on_change=on_change)
    assert read_plan(plan.to_json()) == plan


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '"x"', '{"on_change": "guess"}', '{"live": [""]}', '{"stub": [" "]}'],
    ids=["torn", "list", "text", "unknown word", "empty pattern", "blank pattern"],
)
def test_s27_plan_that_cannot_be_read_is_refused(text: str) -> None:
    """A damaged plan is an error, never the default one."""
    with pytest.raises(ConfigError):
        read_plan(text)


def test_plan_has_a_limit() -> None:
    """A plan has at most 200 patterns."""
    with pytest.raises(ConfigError, match="at most"):
        build_plan(live=tuple(f"tool:{n}" for n in range(RULES_MAX + 1)))
