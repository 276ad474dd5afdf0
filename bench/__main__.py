"""Measures all figures one after another and prints one table.

Run: python -m bench [--json FILE] [--keep] [NAME …]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, describe_machine, print_table, write
from bench.kept import FILE, UncommittedChangesError, insist_on_commit, keep

NAMES: Final = (
    "record_tool",
    "record_llm",
    "redact",
    "short_run",
    "first_token",
    "resolve",
    "load",
    "diff",
    "ticket",
    "vcr",
    "threads",
    "levels",
    "pools",
    "startup",
    "clock",
    "leaks",
    "half_open",
    "bodies",
    "wire",
)
NEEDS_DOWNLOADS: Final = ("corpora",)
"""Measured only if named, or if `make corpora` has downloaded the packages."""
LONG: Final = ("store", "kills", "outage", "many_calls", "replays")
"""Measured only if named: each takes many minutes, or gigabytes."""
ALL: Final = (*NAMES, *NEEDS_DOWNLOADS, *LONG)
ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 600
LONG_TIMEOUT_S: Final = 7200


def measure(name: str) -> list[Figure]:
    """Run one benchmark in its own process, so that none warms up or patches anything for another."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures.json"
        program = (
            "import importlib, json, pathlib, sys\n"
            "figures = importlib.import_module(f'bench.{sys.argv[1]}').measure()\n"
            "pathlib.Path(sys.argv[2]).write_text(json.dumps([figure.as_json() for figure in figures]))\n"
        )
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SPANREPLAY_"))}
        command = [sys.executable, "-c", program, name, str(found)]
        subprocess.run(
            command, cwd=ROOT, env=environ, check=True, timeout=LONG_TIMEOUT_S if name in LONG else TIMEOUT_S
        )
        rows: list[dict[str, Any]] = json.loads(found.read_text(encoding="utf-8"))
    return [Figure(**{k: v for k, v in row.items() if k != "verdict"}) for row in rows]


def main() -> int:
    """Measure, print and write; return 1 if a benchmark failed to run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(ALL)}; default: all but the last five"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    parser.add_argument("--keep", action="store_true", help=f"put them into {FILE.relative_to(ROOT)}")
    options = parser.parse_args()
    unknown = set(options.names) - {*ALL}
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if options.keep:
        try:
            insist_on_commit()
        except UncommittedChangesError as exc:
            parser.error(str(exc))
    machine = describe_machine()
    began = datetime.now(timezone.utc)
    figures: list[Figure] = []
    failed = []
    all_names = (*NAMES, *NEEDS_DOWNLOADS) if (ROOT / ".corpora" / "unpacked").is_dir() else NAMES
    for name in options.names or all_names:
        sys.stderr.write(f"{name} …\n")
        try:
            figures += measure(name)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
            failed.append(name)
            sys.stderr.write(f"{name} failed: {exc}\n")
    command = " ".join(["python -m bench", *options.names])
    versions = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    write(f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, load {machine['load'][0]} at the start")
    write(f"Python {machine['python']}, {versions}")
    write(f"{command}, commit {machine['commit']}, {began:%Y-%m-%d %H:%M} UTC")
    write()
    print_table(figures)
    if options.json:
        report = {
            "command": command,
            "began": began.isoformat(timespec="seconds"),
            "machine": machine,
            "load_after": [round(each, 1) for each in os.getloadavg()],
            "figures": [figure.as_json() for figure in figures],
            "failed": failed,
        }
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.keep:
        keep(figures, machine, command, began)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
