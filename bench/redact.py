"""The cost of redaction: new text, history seen before, one small body, one span.

`python -m bench redact` measures the two figures with goals; `python -m bench.redact [--rounds 20]` prints all parts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any, Final

from bench.figures import Figure
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from spanreplay.redact import RedactingSpanProcessor, Redactor, RunRedactor

ROUNDS: Final = 20
GOAL_NEW: Final = 50.0
GOAL_SEEN: Final = 200.0
_WORDS = (
    "the", "order", "was", "placed", "at", "the", "market", "and", "the",
    "agent", "asked", "for", "a", "quote", "before", "it", "called", "the",
    "tool", "that", "returns", "the", "position", "of", "the", "account", "in",
    "USD", "because", "a", "limit", "of", "$190,000", "had", "been", "set",
    "on", "2026-11-21", "by", "the", "risk", "desk", "for", "id", "0192f0c1-d2e3-74a5-b6c7-d8e9f0a1b2c3",
    "max_tokens", "key", "value", "token_count", "result:", "None", "https://example.com/a", "schlüssel",
    "call_abc123DEF456ghi789JKL",
    "def", "run(self,", "query):", "return", "self.client.search(query,", "limit=10)",
)  # fmt: skip
_SECRET = "password=hunter2secret Bearer "  # noqa: S105 - made up


def make_prose(rng: random.Random, size: int) -> str:
    """Return text like an agent's prompts and tool results, without secrets."""
    words: list[str] = []
    length = 0
    while length < size:
        words.append(rng.choice(_WORDS) + rng.choice(("", "", "", ",", ".", "\n", str(rng.randrange(1000)))))
        length += len(words[-1]) + 1
    return " ".join(words)


def make_chat(rng: random.Random, messages: int, size: int) -> dict[str, Any]:
    """Return a chat request."""
    roles = ("user", "assistant", "tool")
    return {
        "model": "gpt-4o",
        "messages": [{"role": roles[n % 3], "content": make_prose(rng, size)} for n in range(messages)],
        "max_tokens": 4096,
    }


def time_micros(work: Callable[[], object], rounds: int) -> float:
    """Return the median thread CPU time of one call, in microseconds."""
    times = []
    for _ in range(rounds):
        start = thread_time_ns()
        work()
        times.append(thread_time_ns() - start)
    return statistics.median(times) / 1000


def say(what: str, size: int, micros: float) -> None:
    """Print one line of the table."""
    sys.stdout.write(f"{what:<58}{size / 1000:>9.1f} KB{micros:>11.0f} µs{size / micros:>9.0f} MB/s\n")


def measure_text(fresh: Callable[[], RunRedactor], rng: random.Random, rounds: int) -> None:
    """Measure texts and documents, new and seen before."""
    clean = make_prose(rng, 1_000_000)
    say("new text, 1 MB, clean", len(clean), time_micros(lambda: fresh().text(clean), rounds))
    small = make_prose(rng, 4_000)
    say("new text, 4 KB, clean", len(small), time_micros(lambda: fresh().text(small), rounds * 20))
    dense = make_prose(rng, 4_000)[:4000] + _SECRET + "a1B2c3D4" * 4
    say("new text, 4 KB, two secrets", len(dense), time_micros(lambda: fresh().text(dense), rounds * 20))
    chat = make_chat(rng, 13, 3_000)
    text = json.dumps(chat)
    say("new chat request as a value", len(text), time_micros(lambda: fresh().value(chat), rounds * 5))
    say("new chat request as JSON text", len(text), time_micros(lambda: fresh().json_text(text), rounds * 5))
    run = fresh()
    run.value(chat)
    say("the same request again, as a value", len(text), time_micros(lambda: run.value(json.loads(text)), rounds * 5))
    parsed = json.loads(text)
    say("  without the json.loads that gave it", len(text), time_micros(lambda: run.value(parsed), rounds * 5))
    say("the same request again, as JSON text", len(text), time_micros(lambda: run.json_text(text), rounds * 5))
    grown = [{"role": "user", "content": make_prose(rng, 3_000)} for _ in range(rounds * 5)]
    new = iter(grown)
    messages = parsed["messages"]
    say(
        "the same request with one new message of 3 KB",
        len(text) + 3_000,
        time_micros(lambda: run.value({**parsed, "messages": [*messages, next(new)]}), rounds * 5),
    )
    words = make_prose(rng, 4_000).split(" ")
    events = [json.dumps({"choices": [{"index": 0, "delta": {"content": word + " "}}]}) for word in words]
    stream = "".join(f"data: {event}\n\n" for event in events)
    say("new event stream, 4 KB of answer", len(stream), time_micros(lambda: fresh().text(stream), rounds * 5))


def measure_span(run: RunRedactor, rng: random.Random, rounds: int) -> None:
    """Measure a foreign span with ten small attributes and a 4 KB body, from start to end."""
    body = json.dumps(make_chat(rng, 2, 2_000))
    for what, processor in (
        ("span with a 4 KB body, no processor", None),
        ("span with a 4 KB body, redacted (body seen before)", RedactingSpanProcessor(run, [SpanProcessor()])),
    ):
        provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
        if processor is not None:
            provider.add_span_processor(processor)
        tracer = provider.get_tracer("bench")

        def work(tracer: Any = tracer) -> None:
            with tracer.start_as_current_span("llm") as span:
                for n in range(10):
                    span.set_attribute(f"llm.attribute.{n}", "openai.chat.completions")
                span.set_attribute("input.value", body)

        say(what, len(body), time_micros(work, rounds * 20))


def measure() -> Sequence[Figure]:
    """Measure new text and a request seen before, in thread CPU time."""
    fresh = Redactor(b"k" * 32, "k").run
    rng = random.Random(7)  # noqa: S311 - a corpus, no key
    clean = make_prose(rng, 1_000_000)
    new = len(clean) / time_micros(lambda: fresh().text(clean), ROUNDS)
    text = json.dumps(make_chat(rng, 13, 3_000))
    run = fresh()
    run.value(json.loads(text))
    seen = len(text) / time_micros(lambda: run.value(json.loads(text)), ROUNDS * 20)
    return [
        Figure("redact new text", new, "MB/s", GOAL_NEW, "1 MB without secrets", is_more_better=True),
        Figure(
            "redact a request seen before",
            seen,
            "MB/s",
            GOAL_SEEN,
            f"13 messages, {len(text) / 1000:.0f} KB of JSON text, parsing included",
            is_more_better=True,
        ),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):  # noqa: PTH110 - no path is kept
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    sys.stdout.write(
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()};"
        " thread CPU time, median\n"
    )
    redactor = Redactor(b"k" * 32, "k")
    rng = random.Random(7)  # noqa: S311 - a corpus, no key
    measure_text(redactor.run, rng, rounds)
    measure_span(redactor.run(), rng, rounds)


if __name__ == "__main__":
    main()
