"""The verdict: one golden file for each kind of divergence, and `identical` only if everything is."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Coroutine, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import spanreplay
from spanreplay.model import config
from spanreplay.model.call import CallRecord, Outcome, Recording
from spanreplay.replayer.resolve.plan import Plan
from spanreplay.replayer.resolve.session import Session
from spanreplay.replayer.verdict import EXIT_CODES, build_verdict, compare_stdout
from support.in_process import MemoryProcessor, Replayed, make_run, recorded, replayed
from support.replay_calls import Asked, Asker, record_calls, seal

GOLDEN = Path(__file__).with_name("golden")
VOLATILE = (
    "replay_run_id",
    "run_id",
    "duration_ms",
    "recorded_duration_ms",
    "recorded_span_id",
    "replay_span_id",
    "span_id",
)


@spanreplay.boundary("tool", name="place_order", effect="irreversible")
def place_order(notional: int, note: str = "") -> dict[str, Any]:
    """A tool."""
    return {"state": "filled", "notional": notional, "luck": os.environ.get("LUCK", "good")}


@spanreplay.boundary("tool", name="quotes", effect="read")
def quotes() -> Iterator[int]:
    """A stream."""
    yield from range(10)


@spanreplay.boundary("tool", name="ask_human", effect="read")
async def ask_human() -> str:
    """A call that is cancelled."""
    raise asyncio.CancelledError


async def _asked() -> None:
    with pytest.raises(asyncio.CancelledError):
        await ask_human()


def _two_orders(*notionals: int) -> Callable[[], Any]:
    return lambda: [place_order(n) for n in notionals]


def _read(items: int) -> Callable[[], Any]:
    def main() -> list[int]:
        stream = quotes()
        return [next(stream) for _ in range(items)]

    return main


def _moved() -> Replayed:
    def first() -> None:
        place_order(1)
        place_order(2, "b")

    def second() -> None:
        place_order(2, "b")
        place_order(1)

    return replayed(second, recorded(first))


def _skipped() -> Replayed:
    def first() -> None:
        for n in (1, 2, 3):
            place_order(n)

    def second() -> None:
        for n in (1, 3):
            place_order(n)

    return replayed(second, recorded(first))


@spanreplay.boundary("tool", name="submit_order", effect="irreversible")
def submit_order(notional: int, note: str = "") -> dict[str, Any]:
    """`place_order` under another name."""
    return {}


class Opaque:
    """A value without a codec."""


@spanreplay.boundary("tool", name="draw", effect="read")
async def draw() -> int:
    """A call with a different answer each time."""
    return next(_numbers)


async def _first() -> int:
    return await draw()


async def _second() -> int:
    return await draw()


async def _other() -> int:
    return await draw()


def _in_tasks(*functions: Callable[[], Coroutine[Any, Any, int]]) -> Callable[[], Any]:
    """Make the same call in tasks of these functions, so that only their lanes differ."""

    async def main() -> None:
        await asyncio.gather(*(function() for function in functions))

    return main


_numbers = itertools.count(1)


def _output_changed() -> Replayed:
    recording = recorded(_two_orders(1))
    os.environ["LUCK"] = "bad"
    return replayed(_two_orders(1), recording, Plan(live=("tool:place_order",)))


def _effect_blocked() -> Replayed:
    replay = replayed(_two_orders(1), recorded(_two_orders(1)))
    replay.session.deny_socket("203.0.113.7:443")
    return replay


SCENARIOS: dict[str, Callable[[], Replayed]] = {
    "identical": lambda: replayed(_two_orders(1, 2), recorded(_two_orders(1, 2))),
    "changed_call": lambda: replayed(_two_orders(1, 190_000), recorded(_two_orders(1, 2))),
    "extra_call": lambda: replayed(_two_orders(1, 2), recorded(_two_orders(1))),
    "missing_call": lambda: replayed(_two_orders(1), recorded(_two_orders(1, 2, 3))),
    "moved": _moved,
    "skipped_call": _skipped,
    "ambiguous": lambda: replayed(_in_tasks(_other), recorded(_in_tasks(_first, _second))),
    "boundary_renamed": lambda: replayed(lambda: submit_order(1), recorded(_two_orders(1))),
    "type_changed": lambda: replayed(lambda: place_order("1"), recorded(_two_orders(1))),  # type: ignore[arg-type]  # wrong on purpose
    "unserializable": lambda: replayed(lambda: place_order(Opaque()), recorded(_two_orders(1))),  # type: ignore[arg-type]  # wrong on purpose
    "output_changed": _output_changed,
    "stream_underrun": lambda: replayed(_read(1), recorded(_read(3))),
    "stream_overrun": lambda: replayed(_read(3), recorded(_read(2))),
    "order_stall": lambda: replayed(_asked, recorded(_asked)),
    "effect_blocked": _effect_blocked,
}


def _settled(verdict: dict[str, Any]) -> Any:
    """The verdict without the parts that change in every run."""

    def clean(value: Any, name: str = "") -> Any:
        if name in VOLATILE and (value or isinstance(value, int)):
            return f"<{name}>"
        if isinstance(value, dict):
            return {k: clean(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [clean(v) for v in value]
        if isinstance(value, str):
            for found, name in known.items():
                value = value.replace(found, f"<{name}>")
            return value
        return value

    known = {verdict["run_id"]: "run_id"}
    for divergence in verdict["divergences"]:
        if divergence["code"]:
            known[divergence["code"]] = "code"
        if divergence.pop("stack", None):
            divergence["stack"] = "<stack>"
    return clean(verdict)


@pytest.mark.parametrize("kind", SCENARIOS)
def test_s65_verdict_of_each_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of divergence has the verdict of its golden file, which fits the schema."""
    monkeypatch.setattr(config, "CANCEL_WAIT_MS", 1)
    verdict = SCENARIOS[kind]().verdict
    schema = json.loads((files("spanreplay.report") / "divergence-1.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(verdict)))
    path = GOLDEN / f"{kind}.json"
    if os.environ.get("SPANREPLAY_TEST_WRITE_GOLDEN"):
        path.write_text(json.dumps(_settled(verdict), indent=1) + "\n", encoding="utf-8")
    assert _settled(verdict) == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({"request": '{"arguments":{"notional":3}}'}, True),
        ({"response": '{"value":{"state":"filled","notional":1,"luck":"gooe"}}'}, True),
        ({"key": "0" * 64}, True),
        ({"lane": "main/t:x#1"}, True),
        ({"index": 1}, True),
        ({"name": "place_ordes"}, True),
        ({"kind": "llm"}, True),
        ({"outcome": "error"}, True),
        ({"end_seq": 99}, True),
        ({"call_id": "call_1"}, True),
        ({"parent": 7}, True),
        ({"effect": "read"}, True),
        ({"keyspec": "mcp/1"}, True),
        ({"meta": {"tokens_in": 1}}, True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_n15_one_changed_byte_of_a_call_is_tampering(change: dict[str, Any], is_found: bool) -> None:
    """If anything that a replay reads of a call changed after the recording, the verdict is `tampered`."""
    recording = recorded(_two_orders(1, 2))
    forged = dataclasses.replace(recording.calls[0], **change)
    replay = replayed(_two_orders(1, 2), Recording(recording.root, (forged, recording.calls[1])))
    assert (replay.verdict["verdict"] == "tampered") is is_found
    assert EXIT_CODES[replay.verdict["verdict"]] == 5
    assert "hash" in replay.verdict["reasons"][0]


def test_n15_swapped_and_added_calls_are_tampering() -> None:
    """Exchanged or inserted calls do not fit the manifest's root hash."""
    recording = recorded(_two_orders(1, 2))
    first, second = recording.calls
    swapped = (dataclasses.replace(second, seq=first.seq), dataclasses.replace(first, seq=second.seq))
    added = (*recording.calls, dataclasses.replace(second, seq=9, index=2))
    for calls in (swapped, added):
        assert replayed(_two_orders(1, 2), Recording(recording.root, calls)).verdict["verdict"] == "tampered"


def test_call_that_is_not_there_is_incompleteness() -> None:
    """A recording that lacks a call is incomplete by its counts; it is not called tampered."""
    recording = recorded(_two_orders(1, 2))
    replay = replayed(_two_orders(1), Recording(recording.root, recording.calls[:1]))
    assert (replay.verdict["verdict"], replay.verdict["reasons"]) == ("incomplete", ["1 of 2 calls are here"])


def _ended(recorded_end: dict[str, Any], stdout: dict[str, Any], exit_status: int | None) -> dict[str, Any]:
    recording = record_calls([Asked(1)])
    manifest = {**recording.root.manifest, **recorded_end}
    asker = Asker(seal(recording, manifest))
    asker.ask(Asked(1))
    return build_verdict(asker.session, asker.run, stdout=stdout, exit_status=exit_status, ended_ns=asker.run.start_ns)


OUT = {"bytes": 3, "sha256": "a" * 64, "text": "abc"}
OTHER = {"bytes": 3, "sha256": "b" * 64, "text": "abd"}


@pytest.mark.parametrize(
    ("recorded_end", "stdout", "status", "boundaries"),
    [
        ({"stdout": OUT, "exit": 0}, OUT, 0, []),
        ({"stdout": OUT, "exit": 0}, OTHER, 0, ["process:stdout"]),
        ({"stdout": OUT, "exit": 0}, OUT, 1, ["process:exit"]),
        ({"stdout": OUT, "exit": 1}, OUT, 0, ["process:exit"]),
        ({"stdout": OUT, "exit": 0}, OTHER, 1, ["process:stdout", "process:exit"]),
    ],
    ids=["equal", "stdout", "fails_now", "failed_then", "both"],
)
def test_s20_identical_only_if_output_and_exit_are(
    recorded_end: dict[str, Any], stdout: dict[str, Any], status: int, boundaries: list[str]
) -> None:
    """Even if all calls are exact, another output or exit status is a divergence with one cause."""
    verdict = _ended(recorded_end, stdout, status)
    assert [d["boundary"] for d in verdict["divergences"]] == boundaries
    assert verdict["verdict"] == ("diverged" if boundaries else "identical")
    assert [d["downstream"] for d in verdict["divergences"]] == [False, True][: len(boundaries)]


def test_output_that_was_not_captured_is_said_to_be_not_compared() -> None:
    """If one side has no output, the verdict says that it was not compared."""
    assert compare_stdout(None, OUT)["compared"] is False
    assert compare_stdout(OUT, {})["compared"] is False


def test_difference_of_outputs_is_shown_shortly() -> None:
    """Differing outputs give a unified diff of at most 40 lines."""
    then = {"bytes": 1, "sha256": "a", "text": "\n".join(map(str, range(1000)))}
    now = {"bytes": 1, "sha256": "b", "text": "\n".join(map(str, range(0, 2000, 2)))}
    found = compare_stdout(then, now)
    assert found["equal"] is False
    assert len(found["diff"].splitlines()) == 40
    assert found["diff"].startswith("--- recorded\n+++ now\n")


def test_stopped_replay_says_nothing_of_its_output() -> None:
    """An agent that was stopped at its first divergence has no divergence for the output that it could not print."""
    asker = Asker(seal(record_calls([Asked(1), Asked(2)]), {"calls": 2, "stdout": OUT, "exit": 0}))
    with pytest.raises(spanreplay.ReplayMiss):
        asker.ask(Asked(9))
    verdict = build_verdict(asker.session, asker.run, stdout=OTHER, exit_status=1, ended_ns=asker.run.start_ns)
    causes = [d["boundary"] for d in verdict["divergences"] if not d["downstream"]]
    assert causes == ["tool:f"]
    assert "process:stdout" not in [d["boundary"] for d in verdict["divergences"]]


def test_failure_of_ours_is_an_error_and_never_identical() -> None:
    """If the replay itself fails, the verdict is `error` with the reason."""
    recording = record_calls([Asked(1)])
    calls = (dataclasses.replace(recording.calls[0], response="not json"),)
    session = Session(seal(Recording(recording.root, calls)), Plan())
    run = make_run(MemoryProcessor(), session)
    session.broken("the response of call 1 is not JSON")
    verdict = build_verdict(session, run, stdout={}, exit_status=0, ended_ns=run.start_ns)
    assert (verdict["verdict"], verdict["error"]) == ("error", "the response of call 1 is not JSON")
    assert EXIT_CODES["error"] == 1


def test_s48_incomplete_recording_is_never_identical() -> None:
    """If all calls were served but the run was killed, the verdict is incomplete, with the reason."""
    asker = Asker(record_calls([Asked(1)], manifest={}))
    asker.ask(Asked(1))
    verdict = build_verdict(asker.session, asker.run, stdout=OUT, exit_status=0, ended_ns=asker.run.start_ns)
    assert (verdict["verdict"], EXIT_CODES[verdict["verdict"]]) == ("incomplete", 4)
    assert verdict["reasons"] == ["the run did not end: its process was killed or is still running"]


def test_n3_every_hole_is_a_reason() -> None:
    """Open calls, lost calls, drops, truncations and named holes are all listed as reasons."""
    recording = record_calls([Asked(1), Asked(2)])
    calls = (recording.calls[0], dataclasses.replace(recording.calls[1], outcome=Outcome.OPEN.value))
    manifest = {"calls": 3, "dropped": 1, "truncated": 2, "holes": ["the process forked at agent.py:3"]}
    reasons = seal(Recording(recording.root, calls), manifest).completeness().reasons
    assert reasons == (
        "call 2 (tool:f) was started and never finished",
        "2 of 3 calls are here",
        "1 calls dropped",
        "2 calls truncated",
        "the process forked at agent.py:3",
    )


def test_tokens_are_counted() -> None:
    """Recorded tokens are the sum over all recorded calls; served calls use none."""
    recording = record_calls([Asked(1)], meta={"tokens_in": 10, "tokens_out": 5})
    asker = Asker(recording)
    asker.ask(Asked(1))
    verdict = build_verdict(asker.session, asker.run, stdout={}, exit_status=None, ended_ns=asker.run.start_ns)
    assert verdict["tokens"] == {"recorded": 15, "live": 0}


def test_long_list_of_divergences_is_counted_whole() -> None:
    """`divergences_total` counts all divergences, even if the list is cut."""
    asker = Asker(record_calls([]))
    for _ in range(5):
        with pytest.raises(spanreplay.ReplayMiss):
            asker.ask(Asked(1))
    asker.session.findings.divergences_total = 5000
    verdict = build_verdict(asker.session, asker.run, stdout={}, exit_status=None, ended_ns=asker.run.start_ns)
    assert verdict["divergences_total"] == 5000


def test_records_of_a_replay_name_what_they_replay() -> None:
    """A replay's own spans form a run that names the recording it replays."""
    recording = recorded(_two_orders(1))
    replay = replayed(_two_orders(1), recording)
    own = replay.memory.recording(replay.run.run_id)
    assert own.root.replay_of == recording.run_id
    assert [_outline(c) for c in own.calls] == [_outline(c) for c in recording.calls]


def _outline(call: CallRecord) -> tuple[Any, ...]:
    return call.boundary, call.lane, call.index, call.key, call.request, call.response, call.outcome
