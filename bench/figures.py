"""Helpers that the benchmarks share: figures, timing, the description of the machine, and the table."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import thread_time_ns
from typing import Any, Final

PACKAGES: Final = (
    "spanreplay",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation",
    "openinference-instrumentation-openai",
    "openai",
    "httpx2",
    "httpx",
    "langchain-core",
    "vcrpy",
    "protobuf",
    "wrapt",
)


@dataclass(frozen=True)
class Figure:
    """One measured number and its goal; without a goal it is only for comparison."""

    name: str
    measured: float
    unit: str
    goal: float | None = None
    detail: str = ""
    is_more_better: bool = False

    @property
    def verdict(self) -> str:
        """`pass`, `miss`, or empty if there is no goal."""
        if self.goal is None:
            return ""
        is_met = self.measured >= self.goal if self.is_more_better else self.measured <= self.goal
        return "pass" if is_met else "miss"

    def as_json(self) -> dict[str, Any]:
        """Return the figure with its verdict."""
        return {**asdict(self), "verdict": self.verdict}


def time_interleaved(
    cases: Mapping[str, Callable[[], object]], *, rounds: int, calls: int, between: Callable[[], object] | None = None
) -> dict[str, list[float]]:
    """Return thread CPU time of one call in microseconds, per case and round; the cases take turns.

    Each round runs each case `calls` times in a row. Garbage collection stays on, as it is in agents.
    """
    found: dict[str, list[float]] = {name: [] for name in cases}
    for work in cases.values():  # imports, caches, first allocations
        for _ in range(min(calls, 50)):
            work()
    for _ in range(rounds):
        for name, work in cases.items():
            gc.collect(0)
            start = thread_time_ns()
            for _ in range(calls):
                work()
            found[name].append((thread_time_ns() - start) / calls / 1000)
            if between is not None:
                between()
    return found


def lower_quartile(values: Sequence[float]) -> float:
    """Return the lower quartile: steadier than the minimum, less noisy than the median."""
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


@contextmanager
def recording(mode: str = "record", **environ: str) -> Iterator[Any]:
    """Record in this process as `opentelemetry-instrument` would, into a folder that is deleted afterwards."""
    from spanreplay.activate.install import Installation
    from spanreplay.runtime.run import set_process_run

    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"SPANREPLAY_DIR": folder, "SPANREPLAY_MODE": mode, **environ})
        installation = Installation(mode)
        installation.install()
        try:
            yield installation
        finally:
            installation.finish()
            set_process_run(None)
            if installation.seams is not None:
                installation.seams.uninstall()
            installation.patches.undo()


def make_text(rng: Any, size: int) -> str:
    """Return English-like text of about `size` characters, with numbers and without secrets."""
    words: list[str] = []
    length = 0
    while length < size:
        word = rng.choice(_WORDS)
        word += str(rng.randrange(10_000)) if rng.random() < 0.1 else ""
        words.append(word)
        length += len(word) + 1
    return " ".join(words)


_SENTENCES: Final = (
    "the order was placed at market and agent asked for a quote before it called tool that returns position of "
    "account in USD because limit had been set on Monday by risk desk; please check inventory, invoice, refund, "
    "customer said: delivery is late again. Total: number item"
)
_WORDS: Final = _SENTENCES.split()


def describe_machine() -> dict[str, Any]:
    """Return hardware, versions, load and commit, without which a figure is meaningless."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "commit": _read_commit(),
        "packages": _read_versions(),
    }


def _read_versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _read_commit() -> str:
    root = Path(__file__).resolve().parent.parent
    result = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def write(line: str = "") -> None:
    """Write one line to standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_table(figures: Sequence[Figure]) -> None:
    """Print one row per figure."""
    write(f"{'figure':<66} {'measured':>12} {'goal':>9} {'ratio':>6}  verdict")
    for figure in figures:
        goal = f"{figure.goal:g}" if figure.goal is not None else ""
        ratio = f"{figure.measured / figure.goal:.2f}" if figure.goal else ""
        measured = f"{figure.measured:.2f} {figure.unit}"
        write(f"{figure.name:<66} {measured:>12} {goal:>9} {ratio:>6}  {figure.verdict}")
        if figure.detail:
            write(f"    {figure.detail}")


def main(measure: Callable[[], Sequence[Figure]]) -> None:
    """Run one benchmark and print its table."""
    print_table(measure())
