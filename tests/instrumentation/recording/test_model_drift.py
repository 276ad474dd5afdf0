"""Equal requests over many runs: one event for each new serving stack, and outputs grouped by cause."""

from __future__ import annotations

from typing import Any

import pytest

from spanreplay.model.call import CallRecord, Recording, RootRecord
from spanreplay.recording.model_drift import DriftQuery, DriftReport, StackAnswers, fold_recordings, report_drift

SECOND = 1_000_000_000


def run(number: int, *calls: dict[str, Any], **root: Any) -> Recording:
    """A run with model calls; each is given by its meta, plus `key` and `outcome`."""
    run_id = f"{number:032x}"
    made = []
    for seq, meta in enumerate(calls, 1):
        values = {"model": "gpt-x", "temperature": 0, "output_hash": "out-1", **meta}
        made.append(
            CallRecord(
                run_id=run_id,
                seq=seq * 3,
                kind="llm",
                name="openai.chat.completions",
                lane="main",
                index=seq,
                key=values.pop("key", "k" * 64),
                keyspec="openai_chat/1",
                request="{}",
                outcome=values.pop("outcome", "ok"),
                meta=values,
                span_id=f"{number * 100 + seq:016x}",
                start_ns=number * SECOND + seq,
            )
        )
    return Recording(RootRecord(run_id, start_ns=number * SECOND, **root), tuple(made))


def report(*recordings: Recording, **query: Any) -> DriftReport:
    """The report on these runs, oldest first."""
    return report_drift(fold_recordings(recordings, DriftQuery(**query)))


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({"fingerprint": "fp_1"}, {"fingerprint": "fp_2"}, ("fingerprint",)),
        ({"response_model": "m-1"}, {"response_model": "m-2"}, ("response_model",)),
        ({"determinism": "plan=1"}, {"determinism": "plan=2"}, ("determinism",)),
        ({"determinism": "plan=1"}, {}, ("determinism",)),
        (
            {"response_model": "m-1", "fingerprint": "a"},
            {"response_model": "m-2", "fingerprint": "b"},
            ("response_model", "fingerprint"),
        ),
    ],
    ids=["fingerprint", "model", "determinism", "determinism gone", "two of them"],
)
def test_s24_new_stack_for_an_equal_key_is_exactly_one_event(
    before: dict[str, str], after: dict[str, str], changed: tuple[str, ...]
) -> None:
    """The event names the pair of spans by run and number, however many runs and calls follow."""
    other = {"key": "other", "fingerprint": "fp_9"}
    found = report(run(1, other, before), run(2, before), run(3, other, other, after), run(4, after, before))
    (event,) = found.events
    assert event.changed == changed
    pair = [(s.first.run_id, s.first.call, s.first.span_id) for s in (event.before, event.after)]
    assert pair == [(f"{1:032x}", 2, f"{102:016x}"), (f"{3:032x}", 3, f"{303:016x}")]


def test_s24_one_change_that_shows_in_many_requests_is_one_event() -> None:
    """Three requests, two of which met the stacks in another order, give one event that counts them."""
    a, b = {"fingerprint": "a"}, {"fingerprint": "b"}
    keys = [{"key": key} for key in ("k1", "k2", "k3")]
    (event,) = report(
        run(1, {**a, **keys[0]}, {**b, **keys[1]}), run(2, *({**b, **key} for key in keys), {**a, **keys[1]}),
        run(3, {**a, **keys[2]}),
    ).events  # fmt: skip
    assert event.keys == 3
    assert (event.before.first.run_id, event.after.first.run_id) == (f"{1:032x}", f"{2:032x}")


@pytest.mark.parametrize(
    "runs",
    [
        (run(1, {"fingerprint": "a"}), run(2, {"fingerprint": "a"})),
        (run(1, {"fingerprint": "a"}), run(2, {"fingerprint": "b", "key": "other"})),
        (run(1, {"fingerprint": "a"}), run(2, {})),
        (run(1, {"fingerprint": "a"}), run(2, {"fingerprint": "b", "outcome": "error"})),
        (run(1, {"fingerprint": "a"}), run(2, {"fingerprint": "b"}, replay_of="1")),
        (run(1, {"fingerprint": "a", "key": ""}), run(2, {"fingerprint": "b", "key": ""})),
    ],
    ids=["equal", "another request", "not stated", "an error", "a replay", "no key"],
)
def test_s24_no_drift_is_no_event(runs: tuple[Recording, ...]) -> None:
    """Equal stacks, other requests, missing values, errors and replays give no event."""
    assert report(*runs).events == ()


def test_s24_replays_count_where_they_are_asked_for() -> None:
    """A live call in a replay asks the model again, so replays count if requested."""
    runs = (run(1, {"fingerprint": "a"}), run(2, {"fingerprint": "b"}, replay_of="1"))
    assert len(report(*runs, include_replays=True).events) == 1


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ({"temperature": 0.7}, {"temperature": 0.7}, "sampling"),
        ({"temperature": 0.7, "fingerprint": "a"}, {"temperature": 0.7, "fingerprint": "b"}, "sampling"),
        ({"temperature": None}, {"temperature": None}, "sampling"),
        ({"fingerprint": "a"}, {"fingerprint": "b"}, "fingerprint"),
        ({"response_model": "a"}, {"response_model": "b"}, "model"),
        ({"determinism": "a"}, {"determinism": "b"}, "determinism"),
        ({"fingerprint": "a"}, {"fingerprint": "a"}, "unexplained"),
    ],
    ids=["sampling", "sampling and fingerprint", "no temperature", "fingerprint", "model", "determinism", "same stack"],
)
def test_s25_keys_with_several_outputs_are_split_by_cause(
    first: dict[str, Any], second: dict[str, Any], cause: str
) -> None:
    """The cause is sampling above temperature zero, else another serving stack, else unexplained."""
    found = report(
        run(1, first), run(2, {**second, "output_hash": "out-2"}), run(3, {**second, "output_hash": "out-2"})
    )
    (output,) = found.outputs
    assert (output.outputs, output.answers, output.cause) == (2, 3, cause)
    assert [(a.run_id, a.call) for a in output.pair] == [(f"{1:032x}", 1), (f"{2:032x}", 1)]


def test_s25_equal_outputs_and_unknown_ones_are_not_listed() -> None:
    """An answer whose content is unknown is not a second output."""
    assert report(run(1, {}), run(2, {}), run(3, {"output_hash": ""})).outputs == ()


def test_s13_distinct_answers_of_identical_prompts_are_counted() -> None:
    """200 identical prompts at temperature zero with 80 distinct completions are reported as such."""
    calls = [{"output_hash": f"out-{n % 80}", "fingerprint": "fp_1"} for n in range(200)]
    (output,) = report(run(1, *calls)).outputs
    assert (output.answers, output.outputs, output.cause) == (200, 80, "unexplained")


def test_s25_time_and_app_restrict() -> None:
    """Runs before or after the period, and those of other agents, are left out."""
    runs = [run(n, {"fingerprint": str(n)}, app="a" if n % 2 else "b") for n in range(1, 6)]
    assert report(*runs, since_ns=2 * SECOND, until_ns=4 * SECOND).scan.runs == 3
    assert report(*runs, app="b").scan.runs == 2


def test_s25_memory_is_bounded() -> None:
    """The least recently seen requests are forgotten and counted; earlier differences are still reported."""
    drifted = [run(1, {"fingerprint": "a"}), run(2, {"fingerprint": "b"})]
    many = [run(n, {"key": f"key-{n}"}) for n in range(3, 203)]
    scan = fold_recordings([*drifted, *many], DriftQuery(), items_max=20)
    assert len(report_drift(scan).events) == 1
    assert scan.keys == 201
    assert scan.left_out == 190, "ten keys, of two items each, stay"
    assert all(isinstance(stack, StackAnswers) for stack in scan.found)
