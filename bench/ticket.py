"""Time from a support ticket ("user u-17, 9:04") to the reproduced failure, out of a store with many other runs.

The run that failed and the others are in the store of `spanreplay up`. The engineer's machine has the agent's code and
nothing else. Run: python -m bench.ticket
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figure, main
from bench.first_token import provider

RUNS: Final = 2_000
CALLS: Final = 5
GOAL_SECONDS: Final = 60.0
USER: Final = "u-17"
INSTRUMENTORS: Final = "langchain,openai,anthropic"
BIN: Final = Path(sys.executable).parent
WAIT_S: Final = 300
AGENT: Final = """
import spanreplay
from openai import OpenAI

@spanreplay.boundary("tool", effect="irreversible")
def delete_accounts(names):
    raise PermissionError(f"may not delete {len(names)} accounts")

asked = [{"role": "user", "content": "tidy up"}]
text = OpenAI().chat.completions.create(model="gpt-x", messages=asked).choices[0].message.content
delete_accounts(text.split())
"""


@contextmanager
def _up(folder: Path) -> Iterator[dict[str, str]]:
    """Run collector, store and replay service; yield the settings with which others reach them."""
    ports = ("--http-port", "0", "--grpc-port", "0", "--port", "0")
    command = [str(BIN / "spanreplay"), "up", "--data-dir", str(folder), "--json", "--no-phoenix", *ports]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield {"SPANREPLAY_ENDPOINT": told["endpoint"], "OTEL_EXPORTER_OTLP_ENDPOINT": told["otlp_endpoint"]}
    finally:
        process.terminate()
        process.wait()


def _record_others(folder: Path, runs: int) -> None:
    import spanreplay

    @spanreplay.boundary("tool", name="quote", effect="read")
    def quote(symbol: str, amount: int) -> dict[str, float]:
        return {"price": 190.25 + amount}

    for number in range(runs):
        os.environ["SPANREPLAY_USER_ID"] = f"u-{1000 + number}"
        with spanreplay.record(name="others", directory=folder):
            for call in range(CALLS):
                quote("ACME", call)
    del os.environ["SPANREPLAY_USER_ID"]


def _run(folder: Path, environ: dict[str, str], *command: str, status: int = 0) -> str:
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != status:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def measure(runs: int = RUNS) -> Sequence[Figure]:
    """Record a failure among other runs, and time the two commands that find and reproduce it."""
    spanreplay, python = str(BIN / "spanreplay"), sys.executable
    with tempfile.TemporaryDirectory() as name, _up(Path(name) / "server") as settings, provider() as url:
        service, laptop = Path(name) / "service", Path(name) / "laptop"
        for folder in (service, laptop):
            folder.mkdir()
            (folder / "agent.py").write_text(AGENT, encoding="utf-8")
        plain = {
            "PATH": f"{BIN}{os.pathsep}{os.defpath}",
            "HOME": name,
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": INSTRUMENTORS,
        }
        there = {**plain, **settings, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-bench", "SPANREPLAY_USER_ID": USER}
        _record_others(service / ".spanreplay", runs)
        at = time.localtime()
        _run(service, there, str(BIN / "opentelemetry-instrument"), python, "agent.py", status=1)
        _run(service, there, spanreplay, "ship")
        here = {**plain, "SPANREPLAY_ENDPOINT": settings["SPANREPLAY_ENDPOINT"]}
        _await_runs(laptop, here, runs + 1)
        begun = time.perf_counter()
        minute = time.strftime("%Y-%m-%dT%H:%M", at)
        told = _run(laptop, here, spanreplay, "ls", "--user", USER, "--around", minute, "--json")
        (run_id,) = [row["run_id"] for row in json.loads(told)]
        found = time.perf_counter()
        _run(laptop, here, spanreplay, "replay", "--json", "verdict.json", run_id, "--", python, "agent.py")
        ended = time.perf_counter()
        verdict = json.loads((laptop / "verdict.json").read_text(encoding="utf-8"))
    if verdict["verdict"] != "identical" or verdict["exit"]["now"] != 1:
        raise RuntimeError(f"the failure was not reproduced: {verdict['verdict']}")
    detail = f"found in {found - begun:.2f} s among {runs + 1:,} runs, reproduced in {ended - found:.2f} s; wall clock"
    return [Figure("from a ticket to the reproduced failure", ended - begun, "s", GOAL_SECONDS, detail)]


def _await_runs(folder: Path, environ: dict[str, str], count: int) -> None:
    """Wait until the failed run, which was shipped last, and all others can be found."""
    spanreplay, deadline = str(BIN / "spanreplay"), time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        told = json.loads(_run(folder, environ, spanreplay, "ls", "--limit", "1000", "--json"))
        if len(told) >= min(count, 1000) and any(row["app"] == "agent" for row in told):
            return
        time.sleep(0.2)
    raise RuntimeError("the store does not show all runs")


if __name__ == "__main__":
    main(measure)
