"""The script for a GPU: all of it runs here too, an error costs its own section alone, and the table claims nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "kernels" / "bench"


def load(name: str) -> ModuleType:
    """A script of the folder, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(f"kernels_bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of a quick run on the CPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(BENCH / "run.py"), "--device", "cpu", "--quick", "--out", str(out), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == str(out), done.stderr
    return done.returncode, json.loads(out.read_text())


@pytest.mark.slow
def test_every_section_runs_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    """Checks, certificates and measurements: no error, nothing broken, a time for ours and for each of the others."""
    status, report = run(tmp_path / "report.json", "--commit", "abc")
    sections = report["sections"]
    assert {name: part["error"] for name, part in sections.items() if "error" in part} == {}
    names = {f"K{n}" for n in range(1, 9)}
    assert names <= set(sections)
    for name in names:
        for row in sections[name]["rows"]:
            assert "errors" not in row, row
            assert set(row["ratio"]) == set(row["us"]) - {"ours"}
    assert [each["differences"] for each in sections["certificates"]["certificates"]] == [0, 0]
    assert sections["answers"]["found"]["ours"] == {"answers": 1, "texts": 1, "of": 4}
    assert (status, report["commit"], report["device"]) == (0, "abc", "cpu")


def test_what_only_kernels_can_show_runs_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading by either way, and every tile that could be taken instead: the same bits, and no error."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    bench = {name: importlib.import_module(f"bench.{name}") for name in ("checks", "ops", "tiles", "timing")}
    torch = importlib.import_module("torch")
    place = bench["ops"].Place(torch.device("cpu"), True)
    found = list(bench["checks"].reading_agrees(place))
    assert len(found) == 8
    tiles = list(bench["tiles"].measure_tiles(place, bench["timing"].Clock(place.device, 1)))
    assert len(tiles) == 6
    assert [each for each in (*found, *tiles) if not each.get("holds") or "error" in each] == []


def test_k8_a_decoded_token_is_the_same_work_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed beside each other computes one thing: the same logits, within bf16's rounding."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    module, ops = (importlib.import_module(f"bench.{name}") for name in ("end_to_end", "ops"))
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    step = module._step(ops.Place(torch.device("cpu"), True), module.TINY, 3, 48)
    ours, stock = module.ours(step).float(), module.stock(step).float()
    assert float((ours - stock).abs().max()) < 0.02 * float(stock.abs().max())
    assert not torch.equal(ours, torch.zeros_like(ours))


def test_section_that_was_not_reached_says_so(tmp_path: Path) -> None:
    """Without time nothing is begun; the report and the exit status say that it is not whole."""
    status, report = run(tmp_path / "report.json", "--seconds", "0", "--only", "K1", "--only", "K3")
    assert status == 1
    assert {name: part["error"] for name, part in report["sections"].items()} == {
        "K1": "not run: out of time", "K3": "not run: out of time",
    }  # fmt: skip


def test_error_costs_its_own_section_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a section had found before its error stays, and the next one runs."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    module = load("run")
    report = module.Report(tmp_path / "report.json", {}, 60.0)

    def breaks(part: dict[str, Any]) -> None:
        part["rows"] = [1]
        raise ValueError("no such kernel")

    report.section("first", breaks)
    report.section("second", lambda part: part.update(rows=[2]))
    sections = json.loads((tmp_path / "report.json").read_text())["sections"]
    assert sections["first"]["error"] == "ValueError: no such kernel"
    assert (sections["first"]["rows"], sections["second"]["rows"]) == ([1], [2])


def test_table_is_blank_where_no_gpu_measured(tmp_path: Path) -> None:
    """No results, no figures; a CPU's are none."""
    table = load("table")
    (tmp_path / "cpu.json").write_text(json.dumps({"device": "cpu", "commit": "abc", "sections": {}}))
    lines = table.make_table(table.load_runs(tmp_path)).splitlines()
    assert lines[0] == "| | | wanted | measured |"
    assert [line.split("|")[4].strip() for line in lines[2:]] == [""] * 9


def test_table_has_mean_and_worst_of_each_gpu(tmp_path: Path) -> None:
    """One column a GPU; small batches count where the requirement names them."""
    table = load("table")
    rows = [
        {"shape": "M=1 N=4 K=4", "ratio": {"torch.mm": 0.5}},
        {"shape": "M=64 N=4 K=4", "ratio": {"torch.mm": 2.0}},
        {"shape": "M=128 N=4 K=4", "ratio": {"torch.mm": 9.0}},
    ]
    found = {"ours": {"answers": 1}, "torch": {"answers": 80}}
    run_of_gpu = {"device": "GPU", "commit": "abc", "sections": {"K2": {"rows": rows}, "answers": {"found": found}}}
    (tmp_path / "gpu.json").write_text(json.dumps(run_of_gpu))
    text = table.make_table(table.load_runs(tmp_path))
    assert "| K2 | matmul, M ≤ 64 | ≥ 0.95× torch.mm | 1.00 (worst 0.50, 2 shapes) |" in text
    assert "| K8 | 1,000 identical requests among random neighbours | 1 answer | 1 (torch: 80) |" in text
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- kernels -->\nold\n<!-- /kernels -->\nafter\n")
    assert table.main(["--into", str(readme), "--results", str(tmp_path)]) == 0
    assert readme.read_text() == f"before\n<!-- kernels -->\n{text}\n<!-- /kernels -->\nafter\n"
