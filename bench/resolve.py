"""Cost of resolving one call of a replay, and its growth with the length of the run.

Run: python -m bench.resolve
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import thread_time_ns
from typing import Any

from bench.figures import Figure, lower_quartile, main

GOAL_MICROS = 60.0
GOAL_WITHOUT_RECORD_MICROS = 40.0
GOAL_GROWTH = 1.3
FEW = 100
MANY = 100_000


def quote(symbol: str, amount: int) -> dict[str, Any]:
    """The function behind the boundary."""
    return {"symbol": symbol, "amount": amount, "price": 190.25}


class _Kept:
    """A span processor that keeps only the spans' attributes."""

    dropped = 0

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_end(self, span: Any) -> None:
        self.spans.append(span.attributes)


def record(calls: int) -> Any:
    """Make a recording of `calls` calls of one declared boundary in one lane."""
    from spanreplay.model import attributes as names
    from spanreplay.model.call import CallRecord, Recording, RootRecord

    kept = _Kept()
    run = _make_run([kept], None)
    for _ in _call_all(run, calls):
        pass
    spans = [s for s in kept.spans if s[names.KIND] != names.KIND_RUN and s[names.OUTCOME] != "open"]
    records = tuple(
        CallRecord(
            run_id=run.run_id,
            **{
                field.name: span[getattr(names, field.name.upper())]
                for field in dataclasses.fields(CallRecord)
                if field.name in _FIELDS
            },
        )
        for span in spans
    )
    run.finish()
    return Recording(RootRecord(run.run_id, "bench", manifest={"calls": calls}), records)


_NAMES = "seq kind name lane index key keyspec request response outcome effect end_seq code"
_FIELDS = frozenset(_NAMES.split())


def _make_run(processors: Sequence[Any], session: Any) -> Any:
    from opentelemetry.sdk.resources import Resource

    from spanreplay.redact import Redactor
    from spanreplay.runtime.emit import Emitter
    from spanreplay.runtime.run import Run

    redactor = Redactor(b"k" * 32, "k").run()
    return Run(app="bench", emitter=Emitter(processors, Resource({})), redactor=redactor, session=session)


def _call_all(run: Any, calls: int) -> Iterator[float]:
    """Make the calls; yield thread CPU time per call in microseconds, one value per hundred calls."""
    import spanreplay
    from spanreplay.runtime.run import set_process_run

    boundary = spanreplay.boundary("tool", name="quote", effect="read")(quote)
    for first in range(0, calls, FEW):
        set_process_run(run)
        try:
            start = thread_time_ns()
            for number in range(first, first + FEW):
                boundary("ACME", number)
            micros = (thread_time_ns() - start) / FEW / 1000
        finally:
            set_process_run(None)
        yield micros


def _replay(recording: Any, calls: int, folder: Path | None) -> Iterator[float]:
    """Yield times per call of a replay, through the whole crossing, with a real spool or none."""
    from spanreplay.recording.spool import SpoolWriter
    from spanreplay.recording.spool.processor import SpoolSpanProcessor
    from spanreplay.replayer.resolve.plan import read_plan
    from spanreplay.replayer.resolve.session import Session

    session = Session(recording, read_plan(""))
    run = _make_run([] if folder is None else [SpoolSpanProcessor(SpoolWriter(folder, _run_id()))], session)
    yield from _call_all(run, calls)
    if session.counts["exact"] != calls or session.divergences:
        raise RuntimeError(f"the replay was not exact: {session.counts}")
    run.finish()


def _take_turns(many: Iterator[float], few: Callable[[], Iterator[float]]) -> tuple[list[float], list[float]]:
    """Return the times of a long run's second half, where growth shows, and of short runs in between."""
    found_many: list[float] = []
    found_few: list[float] = []
    for number, micros in enumerate(many):
        found_many.append(micros)
        if number % 3 == 0:  # in turn, so that a busy machine slows both
            found_few += few()
    return found_many[len(found_many) // 2 :], found_few


def _run_id() -> str:
    from spanreplay.model import ids

    return ids.new_run_id()


class _Asked:
    """A stand-in for a crossing with the attributes that the session reads; it may set any."""


def _time_resolve(recording: Any) -> Callable[[], Iterator[float]]:
    """Return a function that yields the times of `Session.resolve` alone, one value per hundred calls."""
    from spanreplay.replayer.resolve.plan import read_plan
    from spanreplay.replayer.resolve.session import Session
    from spanreplay.runtime.calls.spec import Spec
    from spanreplay.runtime.lanes import Lane

    lane, of_run = Lane("main"), _make_run([], None)
    asked = []
    for call in recording.calls:
        each: Any = _Asked()
        each.run, each.seq, each.code = of_run, call.seq, call.code
        each.boundary, each.index, each.key_hex, each.lane = call.boundary, call.index, call.key, lane
        each.spec = Spec("tool", "quote", "read", "tool/1", {}, call.request)
        asked.append(each)

    def run() -> Iterator[float]:
        session: Any = Session(recording, read_plan(""))
        for first in range(0, len(asked), FEW):
            hundred = asked[first : first + FEW]
            start = thread_time_ns()
            for each in hundred:
                session.resolve(each)
            yield (thread_time_ns() - start) / FEW / 1000

    return run


def measure(calls: int = MANY) -> Sequence[Figure]:
    """Measure the cost of a resolved call, and its growth from 100 to `calls` calls."""
    os.environ.pop("SPANREPLAY_MODE", None)
    few, many = record(FEW), record(calls)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(10):  # warm up
            list(_replay(few, FEW, Path(folder)))
        whole_many, whole_few = _take_turns(_replay(many, calls, Path(folder)), lambda: _replay(few, FEW, Path(folder)))
    unrecorded = [micros for _ in range(30) for micros in _replay(few, FEW, None)]
    pure_many, pure_few = _take_turns(_time_resolve(many)(), _time_resolve(few))
    growth = lower_quartile(whole_many) / lower_quartile(whole_few)
    pure_growth = lower_quartile(pure_many) / lower_quartile(pure_few)
    return [
        Figure("resolve one call: whole crossing, declared boundary served", min(whole_few), "µs", GOAL_MICROS,
               f"lower quartile {lower_quartile(whole_few):.1f} µs; thread CPU, replay record to the spool included"),
        Figure("resolve one call: the same without the replay's own record", min(unrecorded), "µs",
               GOAL_WITHOUT_RECORD_MICROS, f"lower quartile {lower_quartile(unrecorded):.1f} µs; no span processor"),
        Figure("resolve one call: Session.resolve alone", min(pure_few), "µs", GOAL_MICROS,
               f"lower quartile {lower_quartile(pure_few):.1f} µs"),
        Figure("the same at 100,000 calls, over 100 calls: whole crossing", growth, "x", GOAL_GROWTH,
               f"lower quartiles of hundreds: {lower_quartile(whole_many):.1f} µs, "
               f"{lower_quartile(whole_few):.1f} µs"),
        Figure("the same at 100,000 calls, over 100 calls: Session.resolve", pure_growth, "x", GOAL_GROWTH,
               f"{lower_quartile(pure_many):.2f} µs, {lower_quartile(pure_few):.2f} µs"),
    ]  # fmt: skip


if __name__ == "__main__":
    main(measure)
