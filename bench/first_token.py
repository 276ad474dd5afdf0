"""Delay of the first token while a call is recorded.

The OpenAI SDK streams from a real server in another process; live and recorded calls take turns.

Run: python -m bench.first_token
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench.figures import Figure, main, make_text, recording
from bench.record_llm import recorded_by_us

GOAL_MS = 2.0
ROUNDS = 150
MESSAGES = 12
MESSAGE_CHARACTERS = 3_000
START_TIMEOUT_S = 20
ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def provider() -> Iterator[str]:
    """Run the tests' model provider in its own process and yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        command = [sys.executable, "-m", "support.provider", "--port-file", str(port_file)]
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not (port_file.exists() and port_file.read_text().strip()):
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError("the provider did not start")
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port_file.read_text().strip()}/v1"
        finally:
            process.terminate()
            process.wait()


def time_first_token(client: Any, messages: list[dict[str, str]]) -> float:
    """Return the milliseconds from the call to the first text; the stream is read to its end."""
    start = perf_counter_ns()
    first = 0
    for chunk in client.chat.completions.create(model="gpt-x", messages=messages, stream=True):
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = perf_counter_ns()
    if not first:
        raise RuntimeError("the stream had no text")
    return (first - start) / 1e6


def measure() -> Sequence[Figure]:
    """Measure the delay of the first text, as the median of pairs."""
    import openai

    rng = random.Random(5)  # noqa: S311 - a corpus, no key
    history = [{"role": "user", "content": make_text(rng, MESSAGE_CHARACTERS)} for _ in range(MESSAGES)]
    live: list[float] = []
    recorded: list[float] = []
    with provider() as url, recording() as installed:
        installed.seams.uninstall()
        client = openai.OpenAI(api_key="sk-bench", base_url=url)
        for number in range(ROUNDS + 5):
            messages = [*history, {"role": "user", "content": make_text(rng, MESSAGE_CHARACTERS)}]
            from spanreplay.runtime.run import set_process_run

            set_process_run(None)
            plain_ms = time_first_token(client, messages)
            with recorded_by_us(installed.run):
                recorded_ms = time_first_token(client, messages)
            if number >= 5:
                live.append(plain_ms)
                recorded.append(recorded_ms)
        if installed._spool._writer.appended < ROUNDS:
            raise RuntimeError("the calls were not recorded")
    before, after = statistics.median(live), statistics.median(recorded)
    later = statistics.median(b - a for a, b in zip(live, recorded, strict=True))
    quick = min(recorded) - min(live)
    detail = (
        f"live {before:.2f} ms, recorded {after:.2f} ms, median wall of {ROUNDS} pairs; best against best"
        f" {quick:+.2f} ms; request {MESSAGES * 3 + 3} KB, 3 KB new"
    )
    return [Figure("first token while recording, later than live", later, "ms", GOAL_MS, detail)]


if __name__ == "__main__":
    main(measure)
