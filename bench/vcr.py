"""Speed of replaying a run of 1,000 model calls, beside vcrpy with body matching on the same calls.

Both replay `chat.completions.create` of the OpenAI SDK. vcrpy compares each request with every earlier one, so a whole
replay would take minutes; only some calls, spread evenly over the run, are timed.

Run: python -m bench.vcr
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import thread_time_ns
from typing import Any

from bench.figures import Figure, main
from bench.record_llm import make_client

CALLS = 1_000
SAMPLES = 10
GOAL_TIMES_FASTER = 50.0
_MATCH_ON = ("method", "scheme", "host", "port", "path", "query", "body")


def _ask(client: Any, number: int) -> str:
    question = f"Question {number}: what is in stock of item {number * 7919 % 10_007}, and at what price?"
    messages = [
        {"role": "system", "content": "You answer questions on the stock."},
        {"role": "user", "content": question},
    ]
    answer = client.chat.completions.create(model="gpt-x", messages=messages, temperature=0)
    return str(answer.choices[0].message.content)


def _time_vcr(client: Any, folder: Path) -> list[float]:
    """Return the microseconds of calls spread over a replay by vcrpy."""
    import vcr

    path = str(folder / "cassette.yaml")
    # Recording searches too; matching on the method alone, where all requests are alike, avoids taking minutes
    with vcr.use_cassette(path, record_mode="all", match_on=("method",)):
        for number in range(CALLS):
            _ask(client, number)
    found = []
    with vcr.use_cassette(path, record_mode="none", match_on=_MATCH_ON, allow_playback_repeats=False) as cassette:
        if len(cassette) != CALLS:
            raise RuntimeError(f"{len(cassette)} of {CALLS} calls are in the cassette")
        step = CALLS // SAMPLES
        for position in range(CALLS):
            if position % step != step // 2:
                cassette.play_counts[position] += 1  # mark as played
                continue
            start = thread_time_ns()
            _ask(client, position)
            found.append((thread_time_ns() - start) / 1000)
        if not cassette.all_played:
            raise RuntimeError(f"{cassette.play_count} of {CALLS} calls were played")
    return found


def _time_ours(client: Any, folder: Path) -> Iterator[float]:
    """Yield the microseconds of every call of a replay."""
    import spanreplay

    with spanreplay.record(name="bench", directory=folder) as block:
        for number in range(CALLS):
            _ask(client, number)
    recording = block.save(folder / "run.replay")
    with spanreplay.replay(recording) as session:
        for number in range(CALLS):
            start = thread_time_ns()
            _ask(client, number)
            yield (thread_time_ns() - start) / 1000
    if session.served != CALLS or session.divergences:
        raise RuntimeError(f"{session.served} of {CALLS} calls were served")


def measure() -> Sequence[Figure]:
    """Measure vcrpy's mean over ours, in one process, with one client."""
    client = make_client()
    with tempfile.TemporaryDirectory() as folder:
        ours = list(_time_ours(client, Path(folder)))
        theirs = _time_vcr(client, Path(folder))
    mean, vcr_mean = statistics.fmean(ours), statistics.fmean(theirs)
    detail = f"{mean:,.0f} µs a call, vcrpy {vcr_mean:,.0f} µs ({min(theirs):,.0f} to {max(theirs):,.0f}); thread CPU"
    return [
        Figure(f"replay {CALLS:,} model calls, times faster than vcrpy with body matching",
               vcr_mean / mean, "x", GOAL_TIMES_FASTER, detail, is_more_better=True)
    ]  # fmt: skip


if __name__ == "__main__":
    main(measure)
