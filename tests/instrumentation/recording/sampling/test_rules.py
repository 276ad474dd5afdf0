"""The rules of SPANREPLAY_SAMPLE: every valid text is parsed, and any other is refused by name."""

from __future__ import annotations

import logging
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from spanreplay.model.errors import ConfigError
from spanreplay.recording.sampling.rules import Facts, Rules, parse_rules, read_rules

_UNITS: Final = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_DURATIONS: Final = st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(_UNITS)))
_RATIOS: Final = st.decimals(0, 1, places=6).map(str)
_TRACES: Final = st.integers(1, 2**128 - 1)


@st.composite
def _texts(draw: st.DrawFn) -> tuple[str, Rules]:
    """A text of the grammar, and its meaning."""
    kinds = draw(st.lists(st.sampled_from(("errors", "call-errors", "slow", "ratio")), min_size=1, unique=True))
    number, unit = draw(_DURATIONS)
    ratio = draw(_RATIOS)
    words = [{"slow": f"slow:{number}{unit}", "ratio": ratio}.get(kind, kind) for kind in kinds]
    rules = Rules(
        ",".join(words),
        is_always=False,
        errors="errors" in kinds,
        call_errors="call-errors" in kinds,
        slow_ns=number * _UNITS[unit] if "slow" in kinds else None,
        ratio=float(ratio) if "ratio" in kinds else None,
    )
    spaces = draw(st.sampled_from((",", ", ", " , ")))
    return spaces.join(words), rules


@given(_texts())
def test_n3_every_text_of_the_grammar_is_read(case: tuple[str, Rules]) -> None:
    """Rules may be in any order, each kind at most once, with spaces around the commas."""
    text, rules = case
    assert parse_rules(text) == rules
    assert parse_rules(rules.text) == rules


@given(st.text(max_size=30))
def test_n3_any_text_is_read_or_refused_by_name(text: str) -> None:
    """Any text gives rules, or an error that names the variable, the value and the valid forms."""
    refused: ConfigError | None = None
    try:
        parse_rules(text)
    except ConfigError as exc:
        refused = exc
    assert refused is None or (str(refused).startswith("SPANREPLAY_SAMPLE=") and "call-errors" in refused.hint)


@pytest.mark.parametrize(
    "text",
    ["erors", "2", "-0.1", "nan", "inf", "slow", "slow:2", "slow:-1s", "errors,errors", "0.1,0.2", "always,0.1", ","],
)
def test_n3_a_bad_rule_keeps_everything_and_says_so(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A bad rule gives one error that names the variable and the value, and all units are kept."""
    caplog.set_level(logging.ERROR)
    assert read_rules({"SPANREPLAY_SAMPLE": text}).is_always
    assert read_rules({"SPANREPLAY_SAMPLE": text}).is_always
    (record,) = caplog.records
    assert f"SPANREPLAY_SAMPLE={text!r}" in record.message
    assert "a ratio from 0 to 1" in record.message


@given(_TRACES, st.decimals(0, 1, places=3).map(float))
def test_n3_a_ratio_keeps_the_traces_that_opentelemetrys_sampler_keeps(trace_id: int, ratio: float) -> None:
    """Every service decides alike, ours or not; a trace that a low ratio keeps is kept by a higher one too."""
    rules = parse_rules(f"{ratio:.3f}")
    theirs = TraceIdRatioBased(ratio).should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
    assert rules.has_trace(trace_id) is theirs
    if theirs:
        assert parse_rules(f"{min(1, ratio + 0.1):.3f}").has_trace(trace_id)


@given(_texts(), _TRACES, st.booleans(), st.booleans(), st.integers(0, 10**12), st.sampled_from(["", "ann", "bob"]))
def test_n3_a_unit_is_kept_if_one_rule_keeps_it(
    case: tuple[str, Rules], trace_id: int, has_failed: bool, has_failed_call: bool, elapsed_ns: int, user: str
) -> None:
    """Each rule gives its own reason; a listed user is kept whatever the rules say."""
    rules = parse_rules(case[0], users="ann, carl")
    facts = Facts(elapsed_ns, has_failed, has_failed_call, user, trace_id)
    alone = [word for word in rules.text.split(",") if parse_rules(word).find_reasons(facts)]
    reasons = rules.find_reasons(facts)
    assert len([reason for reason in reasons if reason != "users"]) == len(alone)
    assert ("users" in reasons) is (user == "ann")
