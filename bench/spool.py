"""Prints the cost of recording a span: encoding, appending, and both together.

python bench/spool.py [--spans 20000]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from spanreplay.recording.spool.encode import encode_span
from spanreplay.recording.spool.processor import SpoolSpanProcessor
from spanreplay.recording.spool.writer import SpoolWriter

RUN = "0192f0000000700080000000000000aa"


def make_span(body_bytes: int) -> ReadableSpan:
    """Return a boundary span with 16 attributes, two of them bodies."""
    provider = TracerProvider(resource=Resource({"service.name": "trader", "spanreplay.run_id": RUN}))
    with provider.get_tracer("spanreplay").start_as_current_span("call") as span:
        for n in range(9):
            span.set_attribute(f"spanreplay.text{n}", "openai.chat.completions")
        for n in range(5):
            span.set_attribute(f"spanreplay.number{n}", n)
        span.set_attribute("spanreplay.request", "x" * (body_bytes // 2))
        span.set_attribute("spanreplay.response", "y" * (body_bytes // 2))
    assert isinstance(span, ReadableSpan)
    provider.shutdown()
    return span


def measure(work: Callable[[], object], spans: int) -> tuple[float, float]:
    """Return the median and 99th percentile in microseconds."""
    times = []
    for _ in range(spans):
        start = perf_counter_ns()
        work()
        times.append(perf_counter_ns() - start)
    times.sort()
    return statistics.median(times) / 1000, times[int(len(times) * 0.99)] / 1000


def say(text: str) -> None:
    """Print one line of the table."""
    sys.stdout.write(text + "\n")


def measure_body(body_bytes: int, spans: int, folder: Path) -> None:
    """Print the lines for one body size."""
    span = make_span(body_bytes)
    payload = encode_span(span)
    count = max(200, min(spans, 200_000_000 // body_bytes))
    plain = SpoolWriter(folder / "never", RUN)
    synced = SpoolWriter(folder / "always", RUN, fsync="always")
    processor = SpoolSpanProcessor(plain)
    steps: list[tuple[str, Callable[[], object], int]] = [
        ("encode", lambda: encode_span(span), count),
        ("append", lambda: plain.append(payload), count),
        ("append, fsync always", lambda: synced.append(payload), 200),
        ("processor.on_end", lambda: processor.on_end(span), count),
    ]
    for name, work, times in steps:
        p50, p99 = measure(work, times)
        say(f"{body_bytes:>10} {name:<22} {p50:>9.1f} {p99:>9.1f}")
    if plain.dropped or synced.dropped:
        sys.exit("appends were dropped")
    plain.close()
    synced.close()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=20_000)
    spans = parser.parse_args().spans
    say(f"python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {spans} spans")
    say(f"{'body':>10} {'step':<22} {'p50 us':>9} {'p99 us':>9}")
    for body_bytes in (200, 4_000, 40_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            measure_body(body_bytes, spans, Path(folder))


if __name__ == "__main__":
    main()
