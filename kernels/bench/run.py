"""One run on one GPU: checks the invariants that need a GPU, then measures K1–K8 beside torch and others.

    python kernels/bench/run.py --plan                 # print five commands of at most nine minutes, for a lent GPU
    python kernels/bench/run.py                        # run everything; writes results/GPU-COMMIT-TIME.json
    python kernels/bench/run.py --resume               # measure what the newest report of this GPU and commit lacks
    python kernels/bench/run.py --device cpu --quick   # smoke test on any machine, about a minute

The run continues after failures: they are recorded in the report, which is saved before and after each case.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
# Import the kernels beside this file rather than installed ones
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402 -- after the path

from bench.checks import CHECKS, certificates  # noqa: E402
from bench.end_to_end import answers_of, decode_steps  # noqa: E402
from bench.ops import SECTIONS, Case, Place  # noqa: E402
from bench.parts import PARTS, commands  # noqa: E402
from bench.prepare import prepare  # noqa: E402
from bench.report import Fill, Report, is_broken, load_report  # noqa: E402
from bench.tiles import trials, try_tile  # noqa: E402
from bench.timing import SHORT_US, TOGETHER, Clock, Timing, ratios  # noqa: E402
from spanreplay_kernels.errors import UnsupportedInput  # noqa: E402
from spanreplay_kernels.proof.certify import certify  # noqa: E402

_MEASURED: Final = {**SECTIONS, "K8": decode_steps}
RATIO_DIGITS = 3


def certify_all(report: Report, place: Place, part: dict[str, Any]) -> None:
    """Make certificates, the most useful first."""
    made = part.setdefault("certificates", [])
    for each in report.left(part, certificates(place), lambda each: each.name):
        made.append(certify(each.op, each.shape, each.dtype, str(place.device), each.extent))


def check(report: Report, name: str, place: Place, part: dict[str, Any]) -> None:
    """Check one family of invariants; record how many were tried and which don't hold."""
    broken = part.setdefault("broken", [])
    for each in report.left(part, CHECKS[name](place), lambda each: each.what):
        if not each.holds():
            broken.append(each.what)
    part["tried"] = len(part["done"])


def measure(report: Report, name: str, place: Place, clock: Clock, copy_gb_s: float, part: dict[str, Any]) -> None:
    """Measure the cases of one requirement; a failing case doesn't end its section."""
    rows = part.setdefault("rows", [])
    for case in report.left(part, _MEASURED[name](place), lambda case: case.name):
        rows.append(_measure(case, clock, copy_gb_s))
        if "errors" in rows[-1] and clock.is_lost():
            if "ours" in rows[-1]["us"]:
                report.done(part, case.name)  # a rival's call failed, and would fail again
            report.write()
            raise SystemExit(f"{case.name}: its error ended this process's work on the GPU; --resume goes on")


def count_answers(report: Report, place: Place, part: dict[str, Any]) -> None:
    """Count the distinct answers to identical requests; with our kernels there must be one."""
    found = part.setdefault("found", {})
    for name in report.left(part, ("ours", "torch"), str):
        found[name] = answers_of(place, name)
    ours = found["ours"]
    part["broken"] = [] if (ours["answers"], ours["of"]) == (1, ours["requests"]) else [ours]


def try_tiles(report: Report, place: Place, clock: Clock, part: dict[str, Any]) -> None:
    """Measure the times of other tiles; the last section."""
    tiles = part.setdefault("tiles", [])
    for each in report.left(part, trials(place), lambda each: each.name):
        tiles.append(try_tile(each, clock))
    part["broken"] = [each for each in tiles if not each.get("holds", True)]


def _measure(case: Case, clock: Clock, copy_gb_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "row": case.row, "op": case.op, "shape": case.shape, "name": case.name, "bytes": case.bytes,
        "rivals": list(case.rivals),
    }  # fmt: skip
    times = _times(case, clock, row)
    row["us"] = {name: timing.microseconds for name, timing in times.items()}
    row["spread"] = {name: timing.spread for name, timing in times.items()}
    row["how"] = {name: timing.how for name, timing in times.items()}
    row["ratio"] = ratios(times)
    if "ours" in times:
        ours = times["ours"].microseconds
        if case.bytes:
            row["of_copy"] = round(case.bytes / ours / 1e3 / copy_gb_s, RATIO_DIGITS)
        if case.flops:
            row["tflops"] = round(case.flops / ours / 1e6, 1)
    return row


def _times(case: Case, clock: Clock, row: dict[str, Any]) -> dict[str, Timing]:
    """Time each call by itself; if one of them is short, time `TOGETHER` copies of each."""
    calls = case.build()
    times: dict[str, Timing] = {}

    def time_all(sets: list[dict[str, Any]]) -> None:
        for name in list(sets[0]):
            try:
                times[name] = clock.measure(*(each[name] for each in sets))
            except Exception as exc:  # noqa: BLE001 -- recorded beside the others' times
                row.setdefault("errors", {})[name] = f"{type(exc).__name__}: {exc}"[:500]
                times.pop(name, None)

    time_all([calls])
    if any(each.microseconds < SHORT_US for each in times.values()):
        some = {name: call for name, call in calls.items() if name in times}
        time_all([some, *(case.build() for _ in range(TOGETHER - 1))])
    return times


def _commit() -> str:
    """Return the commit of the sources; `…-dirty` if files differ from it, empty if git isn't available."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def _head(device: torch.device, commit: str, *, is_quick: bool) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        versions["triton"] = None
    both = {"commit": commit, "versions": versions, "is_quick": is_quick}
    if device.type != "cuda":
        return {"device": "cpu", **both, "threads": torch.get_num_threads()}
    known = torch.cuda.get_device_properties(device)
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        driver = "unknown"
    return {
        "device": known.name, **both, "driver, clock, power": driver,
        "multiprocessors": known.multi_processor_count, "memory_gib": round(known.total_memory / 2**30),
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few repeats: whether all of it runs")
    parser.add_argument("--seconds", type=float, default=7200, help="after which no case is begun (default: 7200)")
    parser.add_argument("--only", action="append", default=[], help="sections, e.g. K1; repeatable (default: all)")
    parser.add_argument(
        "--part", type=int, choices=range(1, len(PARTS) + 1), help="the sections of one of --plan's calls"
    )
    parser.add_argument("--plan", action="store_true", help="print the calls for a GPU that is lent, and do nothing")
    parser.add_argument(
        "--resume", action="store_true", help="measure what the report at --out, or the newest one, lacks"
    )
    parser.add_argument(
        "--compile", metavar="ARCH", help="compile for e.g. sm_90 into Triton's cache, and do nothing else"
    )
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--results", type=Path, help="folder of the reports (default: results beside this file)")
    parser.add_argument("--out", type=Path, help="the report itself (default: GPU-COMMIT-TIME.json in that folder)")
    return parser


def _place_of(options: argparse.Namespace, head: dict[str, Any]) -> Path:
    """Return the path of the report: a new file, or the one to continue."""
    if options.out:
        found: Path = options.out
        return found
    folder: Path = options.results or (HERE / "results" if head["device"] != "cpu" else Path(tempfile.gettempdir()))
    name = re.sub(r"[^a-z0-9]+", "-", f"{head['device']}-{head['commit']}".lower())
    if options.resume:
        earlier = sorted(folder.glob(f"{name}-*.json"))
        if earlier:
            return earlier[-1]
    return folder / f"{name}-{datetime.now(timezone.utc):%Y%m%dt%H%M%Sz}.json"


def main(arguments: list[str]) -> int:
    """Return 0 if every section ran and no invariant is broken, 1 if not, 2 if the run is refused; see the report."""
    options = _parser().parse_args(arguments)
    commit = options.commit or _commit()
    wanted = {*options.only, *(PARTS[options.part - 1].sections if options.part else ())}
    names = [each for part in PARTS for each in part.sections if not wanted or each in wanted]
    if options.plan:
        sys.stdout.write("\n".join(commands(commit or "COMMIT", options.results)) + "\n")
        return 0
    if options.compile:
        made = prepare(names, options.compile, is_quick=options.quick, processes=os.cpu_count() or 1)
        sys.stdout.write(f"{made['kernels']} kernels in {made['seconds']} s\n")
        sys.stderr.writelines(f"{where}: {problem}\n" for where, problem in made["failed"].items())
        return 1 if made["failed"] else 0
    device = torch.device(options.device)
    if not commit:
        sys.stderr.write("no git here: a figure without its commit is none; pass --commit HASH\n")
        return 2
    head = _head(device, commit, is_quick=options.quick)
    path = _place_of(options, head)
    try:
        earlier = load_report(path, head) if options.resume and path.exists() else None
    except ValueError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    report = Report(path, head, options.seconds, earlier)
    _fill(report, Place(device, options.quick), names)
    sys.stdout.write(f"{report.path}\n")
    return 1 if is_broken({name: report.content["sections"][name] for name in names}) else 0


def _fill(report: Report, place: Place, names: list[str]) -> None:
    """Compile, then run the sections in the order of `names`."""
    if place.device.type == "cuda" and place.arch is not None:
        made = prepare(names, place.arch.name, is_quick=place.is_quick, processes=os.cpu_count() or 1)
        report.content["compiled"] = made
    clock = Clock(place.device, 5 if place.is_quick else 50)
    report.content["copy_gb_s"] = copy_gb_s = round(clock.copy_gb_s(), 1)
    sections: dict[str, Fill] = {each: partial(check, report, each, place) for each in CHECKS}
    sections["certificates"] = partial(certify_all, report, place)
    sections |= {each: partial(measure, report, each, place, clock, copy_gb_s) for each in _MEASURED}
    sections["answers"] = partial(count_answers, report, place)
    sections["tiles"] = partial(try_tiles, report, place, clock)
    for each in names:
        report.section(each, sections[each])


if __name__ == "__main__":
    torch.manual_seed(0)
    try:
        sys.exit(main(sys.argv[1:]))
    except UnsupportedInput as refused:
        sys.exit(f"{refused}")
