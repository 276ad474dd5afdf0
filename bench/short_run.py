"""Wall-clock time of replaying a script of 30 model calls, as `SPANREPLAY_MODE=replay` does: from its start to its end.

The script uses the OpenAI SDK, and its provider is stopped. Run: python -m bench.short_run
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure, main
from bench.first_token import provider

CALLS: Final = 30
GOAL_SECONDS: Final = 1.0
REPEATS: Final = 7
AGENT: Final = f"""
from openai import OpenAI

client = OpenAI()
for number in range({CALLS}):
    asked = [{{"role": "user", "content": f"question {{number}}"}}]
    print(client.chat.completions.create(model="gpt-x", messages=asked).choices[0].message.content)
"""


def _run(folder: Path, environ: Mapping[str, str]) -> tuple[float, str]:
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, "agent.py"]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"the agent ended with {done.returncode}: {done.stderr}")
    return took_s, done.stdout


def measure() -> Sequence[Figure]:
    """Record the script once, then replay it without its provider."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT, encoding="utf-8")
        plain = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}", "HOME": name}
        with provider() as url:
            environ = {**plain, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-bench"}
            recorded_s, recorded = _run(folder, environ)
        replays = [_run(folder, {**environ, "SPANREPLAY_MODE": "replay"}) for _ in range(REPEATS)]
    if {text for _, text in replays} != {recorded}:
        raise RuntimeError("a replay printed something else")
    times = [took_s for took_s, _ in replays]
    detail = (
        f"from the start of `opentelemetry-instrument` to its end, median of {REPEATS}, best {min(times):.2f} s;"
        f" recorded in {recorded_s:.2f} s"
    )
    return [Figure(f"replay a script of {CALLS} model calls", statistics.median(times), "s", GOAL_SECONDS, detail)]


if __name__ == "__main__":
    main(measure)
