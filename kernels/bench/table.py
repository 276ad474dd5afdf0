"""The table of K1–K8 for the README and the docs, from the results of GPUs; blank where none has measured.

python kernels/bench/table.py                    # prints it
python kernels/bench/table.py --into README.md   # between <!-- kernels --> and <!-- /kernels -->
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
_MANY_ROWS = 512


class Line(NamedTuple):
    """One requirement."""

    row: str
    what: str
    figure: str
    value: Callable[[dict[str, Any]], float | None]
    """Of one measurement; None where it does not count."""


def _ratio(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda measured: measured.get("ratio", {}).get(name)


def _few(measured: dict[str, Any]) -> float | None:
    return _ratio("torch.mm")(measured) if int(measured["shape"].split()[0].removeprefix("M=")) <= 64 else None


def _of_copy(measured: dict[str, Any]) -> float | None:
    is_large = int(measured["shape"].split()[0].removeprefix("M=")) >= _MANY_ROWS
    return measured.get("of_copy") if is_large else None


LINES: Final = (
    Line("K1", "matmul, M ≥ 1024", "≥ 0.90× cuBLAS", _ratio("torch.mm")),
    Line("K2", "matmul, M ≤ 64", "≥ 0.95× torch.mm", _few),
    Line("K3", "RMSNorm, with and without residual", "≥ 90 % of copy bandwidth", _of_copy),
    Line("K4", "softmax, log-probabilities, mean", "≥ 85 % of copy bandwidth", _of_copy),
    Line("K5", "attention, decode", "≥ 0.9× SDPA", _ratio("sdpa")),
    Line("K6", "attention, prefill", "≥ 1.0× SDPA", _ratio("sdpa")),
    Line("K7", "grouped product", "≥ 0.85× torch._grouped_mm", _ratio("torch._grouped_mm")),
    Line("K8", "a decoded token, shape of an 8B model", "≥ 0.91× torch", _ratio("torch")),
)


def load_runs(folder: Path) -> list[dict[str, Any]]:
    """The results of GPUs, the newest file of each; a run on a CPU measures nothing of interest."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime):
        run = json.loads(path.read_text())
        if run["device"] != "cpu":
            newest[run["device"]] = run
    return [newest[device] for device in sorted(newest)]


def make_table(runs: list[dict[str, Any]]) -> str:
    """Geometric mean and worst of all shapes; as Markdown."""
    devices = [f"{run['device']} ({run['commit']})" for run in runs] or ["measured"]
    lines = [f"| | | wanted | {' | '.join(devices)} |", f"|---|---|---|{'---|' * len(devices)}"]
    for line in LINES:
        cells = [_cell(line, run) for run in runs] or [""]
        lines.append(f"| {line.row} | {line.what} | {line.figure} | {' | '.join(cells)} |")
    answers = [_answers(run) for run in runs] or [""]
    what = "1,000 identical requests among random neighbours"
    lines.append(f"| K8 | {what} | 1 answer | {' | '.join(answers)} |")
    return "\n".join(lines)


def _answers(run: dict[str, Any]) -> str:
    found = run["sections"].get("answers", {}).get("found")
    return f"{found['ours']['answers']} (torch: {found['torch']['answers']})" if found else ""


def _cell(line: Line, run: dict[str, Any]) -> str:
    measured = run["sections"].get(line.row, {}).get("rows", [])
    values = [value for value in map(line.value, measured) if value is not None]
    if not values:
        return ""
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return f"{mean:.2f} (worst {min(values):.2f}, {len(values)} shapes)"


def main(arguments: list[str]) -> int:
    """Print the table, or put it into a file between its marks; 2 if the file has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    table = make_table(load_runs(options.results))
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
