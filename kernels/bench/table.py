"""Makes the table of K1–K8 for the README and the docs from GPU results; cells without a measurement are blank.

python kernels/bench/table.py                    # print it
python kernels/bench/table.py --into README.md   # replace it between <!-- kernels --> and <!-- /kernels -->
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

RESULTS: Final = Path(__file__).resolve().parent / "results"
BEGIN, END = "<!-- kernels -->", "<!-- /kernels -->"
LARGE_BYTES: Final = 256 * 2**20
"""Cases count towards copy bandwidth from this many bytes on: smaller ones fit into caches or are over too soon."""
Row = dict[str, Any]
Run = dict[str, Any]


class NoCommit(ValueError):
    """A report without a usable commit."""


class Line(NamedTuple):
    """One requirement."""

    row: str
    what: str
    figure: str
    value: Callable[[Row], float | None]
    """The value of one measurement; None if it doesn't count."""


def _fastest(row: Row) -> float | None:
    """Return the ratio to the fastest of the requirement's rivals that were timed the same way."""
    return min((row["ratio"][name] for name in row["rivals"] if name in row["ratio"]), default=None)


def _few(row: Row) -> float | None:
    return _fastest(row) if int(row["shape"].split()[0].removeprefix("M=")) <= 64 else None


def _of_copy(row: Row) -> float | None:
    return row.get("of_copy") if row["bytes"] >= LARGE_BYTES else None


def _small(row: Row) -> float | None:
    return _fastest(row) if row["bytes"] < LARGE_BYTES else None


LINES: Final = (
    Line("K1", "matmul, M ≥ 1024", "≥ 0.95× cuBLAS", _fastest),
    Line("K2", "matmul, M ≤ 64", "≥ 0.95× torch.mm", _few),
    Line("K3", "RMSNorm, with and without residual, ≥ 256 MB moved", "≥ 90 % of copy bandwidth", _of_copy),
    Line("K3", "RMSNorm, less moved", "beside torch", _small),
    Line("K4", "softmax, log-probabilities, mean, ≥ 256 MB moved", "≥ 85 % of copy bandwidth", _of_copy),
    Line("K4", "softmax, log-probabilities, mean, less moved", "beside torch", _small),
    Line("K5", "attention, decode", "≥ 0.9× the fastest of SDPA's kernels, FA3, FlashInfer", _fastest),
    Line("K6", "attention, prefill", "≥ 1.0× the fastest of SDPA's kernels", _fastest),
    Line("K7", "grouped product", "≥ 0.85× torch._grouped_mm", _fastest),
    Line("K8", "a decoded token, shape of an 8B model", "≥ 0.91× the faster of torch and torch.compile", _fastest),
)


def load_runs(folder: Path) -> list[Run]:
    """Return one run per GPU, of the newest commit measured on it; each section from its newest complete report.

    Runs on a CPU and quick runs are ignored.
    Raises: NoCommit for a report whose sources can't be looked up.
    """
    merged: dict[tuple[str, str], Run] = {}
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        if report["device"] == "cpu" or report.get("is_quick"):
            continue
        commit = report.get("commit", "")
        if commit in ("", "unknown") or commit.endswith("-dirty"):
            raise NoCommit(f"{path.name} says commit {commit!r}: measure at a commit, or pass run.py --commit")
        run = merged.setdefault(
            (report["device"], commit), {"device": report["device"], "commit": commit, "sections": {}}
        )
        for name, part in report["sections"].items():
            known = run["sections"].get(name)
            if known is None or _rank(part) > _rank(known):
                run["sections"][name] = part
    newest: dict[str, Run] = {}
    for run in sorted(merged.values(), key=_measured_at):
        newest[run["device"]] = run
    return [newest[device] for device in sorted(newest)]


def _rank(part: dict[str, Any]) -> tuple[bool, str]:
    return bool(part.get("is_whole")), str(part.get("at", ""))


def _measured_at(run: Run) -> str:
    return max((str(part.get("at", "")) for part in run["sections"].values()), default="")


def make_table(runs: list[Run]) -> str:
    """Return the table as Markdown: geometric mean and worst value of all shapes."""
    devices = [f"{run['device']} ({run['commit']})" for run in runs] or ["measured"]
    lines = [f"| | | wanted | {' | '.join(devices)} |", f"|---|---|---|{'---|' * len(devices)}"]
    for line in LINES:
        cells = [_cell(line, run) for run in runs] or [""]
        lines.append(f"| {line.row} | {line.what} | {line.figure} | {' | '.join(cells)} |")
    answers = [_answers(run) for run in runs] or [""]
    what = "1,000 identical requests among random neighbours"
    lines.append(f"| K8 | {what} | 1 answer | {' | '.join(answers)} |")
    return "\n".join(lines)


def _answers(run: Run) -> str:
    found = run["sections"].get("answers", {}).get("found", {})
    if "ours" not in found:
        return ""
    torch = found.get("torch", {}).get("answers", "not run")
    return f"{found['ours']['answers']} (torch: {torch})"


def _cell(line: Line, run: Run) -> str:
    part = run["sections"].get(line.row, {})
    values = [value for value in map(line.value, part.get("rows", [])) if value is not None]
    if not values:
        return ""
    mean = math.exp(sum(map(math.log, values)) / len(values))
    more = "" if part.get("is_whole") else ", others not measured"
    return f"{mean:.2f} (worst {min(values):.2f}, {len(values)} shapes{more})"


def main(arguments: list[str]) -> int:
    """Print the table, or write it between a file's marks; return 2 if the file has none or a report no commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    try:
        table = make_table(load_runs(options.results))
    except NoCommit as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    if options.into is None:
        sys.stdout.write(f"{table}\n")
        return 0
    text = options.into.read_text()
    if BEGIN not in text or END not in text:
        sys.stderr.write(f"{options.into}: no place for the table; write {BEGIN} and {END} where it goes\n")
        return 2
    before, after = text.split(BEGIN, 1)[0], text.split(END, 1)[1]
    options.into.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
