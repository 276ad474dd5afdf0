"""One run on one GPU: checks what only a GPU can show, then measures K1–K8 beside torch, within a few minutes.

    python kernels/bench/run.py                        # about 8 minutes on an H100; writes results/GPU-COMMIT.json
    python kernels/bench/run.py --device cpu --quick   # a minute anywhere: whether all of it runs

Nothing stops the run: what fails is recorded where it failed, and the file is written again after every section.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
# The kernels beside this file, and not those that may be installed
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402 -- after the path

from bench.checks import CHECKS, certificates  # noqa: E402
from bench.end_to_end import answers_of, decode_steps  # noqa: E402
from bench.ops import SECTIONS, Case, Place  # noqa: E402
from bench.tiles import measure_tiles  # noqa: E402
from bench.timing import Clock, Timing  # noqa: E402

_MEASURED: Final = {**SECTIONS, "K8": decode_steps}
Fill = Callable[[dict[str, Any]], None]
"""Fills a section's part of the report, so that what it found before an error is in it."""
RATIO_DIGITS = 3
_TRACE_LINES = 12


class Report:
    """What was found so far; on disk after every section."""

    def __init__(self, path: Path, head: dict[str, Any], seconds_max: float) -> None:
        self.path = path
        self.content: dict[str, Any] = {"format": 1, **head, "sections": {}}
        self._started = time.monotonic()
        self._seconds_max = seconds_max

    @property
    def seconds_left(self) -> float:
        """Of those that the run may take."""
        return self._seconds_max - (time.monotonic() - self._started)

    def section(self, name: str, fill: Fill) -> None:
        """Run one section; its error is part of the report, and so is that there was no time for it."""
        part: dict[str, Any] = {}
        self.content["sections"][name] = part
        if self.seconds_left <= 0:
            part["error"] = "not run: out of time"
            self.write()
            return
        started = time.monotonic()
        try:
            fill(part)
        except Exception as exc:  # noqa: BLE001 -- a GPU's minutes are not lost to one section
            part["error"] = f"{type(exc).__name__}: {exc}"[:2000]
            part["trace"] = traceback.format_exc().splitlines()[-_TRACE_LINES:]
        part["seconds"] = round(time.monotonic() - started, 1)
        self.write()
        sys.stderr.write(f"{name}: {part['seconds']} s{', ' + part['error'] if 'error' in part else ''}\n")

    def write(self) -> None:
        """The whole file, anew."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n")


def certify_all(report: Report, place: Place, part: dict[str, Any]) -> None:
    """Certificates, as many as a third of the time allows."""
    part["certificates"] = []
    least_left = report.seconds_left * 2 / 3
    for each in certificates(place):
        part["certificates"].append(each)
        report.write()
        if report.seconds_left < least_left:
            part["stopped"] = "the other sections need the time that is left"
            return


def check(name: str, place: Place, part: dict[str, Any]) -> None:
    """One family of invariants: how many were tried, and those that do not hold."""
    found = list(CHECKS[name](place))
    part["tried"] = len(found)
    part["broken"] = [each for each in found if not each["holds"]]


def measure(name: str, place: Place, clock: Clock, copy_gb_s: float, part: dict[str, Any]) -> None:
    """The cases of one requirement; a case that fails does not end its section."""
    part["rows"] = []
    for case in _MEASURED[name](place):
        part["rows"].append(_measure(case, clock, copy_gb_s))


def count_answers(place: Place, part: dict[str, Any]) -> None:
    """How many answers identical requests have; ours are one."""
    part["found"] = found = answers_of(place)
    ours = found["ours"]
    part["broken"] = [] if (ours["answers"], ours["of"]) == (1, found["requests"]) else [ours]


def try_tiles(place: Place, clock: Clock, part: dict[str, Any]) -> None:
    """The last section: what other tiles would take."""
    part["tiles"] = []
    for each in measure_tiles(place, clock):
        part["tiles"].append(each)
    part["broken"] = [each for each in part["tiles"] if not each.get("holds", True)]


def _measure(case: Case, clock: Clock, copy_gb_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {"row": case.row, "op": case.op, "shape": case.shape}
    times: dict[str, Timing] = {}
    for name, call in {"ours": case.ours, **case.others}.items():
        try:
            times[name] = clock.measure(call)
        except Exception as exc:  # noqa: BLE001 -- recorded beside the others' times
            row.setdefault("errors", {})[name] = f"{type(exc).__name__}: {exc}"[:500]
    row["us"] = {name: timing.microseconds for name, timing in times.items()}
    row["spread"] = {name: timing.spread for name, timing in times.items()}
    row["how"] = {name: timing.how for name, timing in times.items()}
    if "ours" in times:
        ours = times["ours"].microseconds
        row["ratio"] = {
            name: round(each.microseconds / ours, RATIO_DIGITS) for name, each in times.items() if name != "ours"
        }
        if case.bytes:
            row["of_copy"] = round(case.bytes / ours / 1e3 / copy_gb_s, RATIO_DIGITS)
        if case.flops:
            row["tflops"] = round(case.flops / ours / 1e6, 1)
    return row


def _commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=HERE, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _head(device: torch.device, commit: str) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        versions["triton"] = None
    if device.type != "cuda":
        return {"device": "cpu", "commit": commit, "versions": versions, "threads": torch.get_num_threads()}
    known = torch.cuda.get_device_properties(device)
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        driver = "unknown"
    return {
        "device": known.name, "commit": commit, "versions": versions, "driver, clock, power": driver,
        "multiprocessors": known.multi_processor_count, "memory_gib": round(known.total_memory / 2**30),
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """0 if every section ran, and nothing that has to hold is broken; the report says the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few repeats: whether all of it runs")
    parser.add_argument("--seconds", type=float, default=480, help="after which no section is begun (default: 480)")
    parser.add_argument("--only", action="append", default=[], help="sections, e.g. K1; repeatable (default: all)")
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--out", type=Path, help="default: results/GPU-COMMIT.json beside this file")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    head = _head(device, options.commit or _commit())
    name = re.sub(r"[^a-z0-9]+", "-", f"{head['device']}-{head['commit']}".lower())
    folder = HERE / "results" if device.type == "cuda" else Path(tempfile.gettempdir())
    report = Report(options.out or folder / f"{name}.json", head, options.seconds)
    place = Place(device, options.quick)
    clock = Clock(device, 5 if options.quick else 50)
    report.content["copy_gb_s"] = copy_gb_s = round(clock.copy_gb_s(), 1)
    sections: dict[str, Fill] = {each: partial(check, each, place) for each in CHECKS}
    sections["certificates"] = partial(certify_all, report, place)
    sections |= {each: partial(measure, each, place, clock, copy_gb_s) for each in _MEASURED}
    sections["answers"] = partial(count_answers, place)
    sections["tiles"] = partial(try_tiles, place, clock)
    for each, fill in sections.items():
        if not options.only or each in options.only:
            report.section(each, fill)
    report.content["seconds"] = round(options.seconds - report.seconds_left, 1)
    report.write()
    sys.stdout.write(f"{report.path}\n")
    return 1 if _is_broken(report.content["sections"]) else 0


def _is_broken(sections: dict[str, Any]) -> bool:
    """Whether a section did not end, an invariant does not hold, or a certificate failed."""
    failed = [
        each for part in sections.values() for each in part.get("certificates", []) if each["verdict"] == "failed"
    ]
    return bool(failed) or any("error" in part or part.get("broken") for part in sections.values())


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(main(sys.argv[1:]))
