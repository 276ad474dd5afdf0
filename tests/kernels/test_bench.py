"""The script for a GPU: all of it runs here too, an error only costs its own section, and the table claims nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

BENCH = Path(__file__).parents[2] / "kernels" / "bench"


def load(name: str) -> ModuleType:
    """Load a script of the folder, which is not part of the package."""
    spec = importlib.util.spec_from_file_location(f"kernels_bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(out: Path, *arguments: str) -> list[str]:
    """The command of a quick run on the CPU."""
    given = [] if "--commit" in arguments else ["--commit", "abc"]
    return [
        sys.executable, str(BENCH / "run.py"), "--device", "cpu", "--quick", "--out", str(out), *given, *arguments,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """An environment in which kernels are compiled, not interpreted."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


def run(out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Make a quick run on the CPU; return exit status and report."""
    done = subprocess.run(
        command(out, *arguments), env=environment(), capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip
    assert done.stdout.strip() == str(out), done.stderr
    return done.returncode, json.loads(out.read_text())


@pytest.mark.slow
def test_every_section_runs_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    """Checks, certificates and measurements run: no error, nothing broken, a time for ours and each of the others."""
    status, report = run(tmp_path / "report.json", "--commit", "abc")
    sections = report["sections"]
    assert {name: part["error"] for name, part in sections.items() if "error" in part} == {}
    names = {f"K{n}" for n in range(1, 9)}
    assert names <= set(sections)
    assert all(part["is_whole"] and part["at"] for part in sections.values())
    for name in names:
        for row in sections[name]["rows"]:
            assert "errors" not in row, row
            assert {name for name in row["us"] if name != "ours" and row["how"][name] == row["how"]["ours"]} == set(
                row["ratio"]
            )
            assert any(rival in row["ratio"] for rival in row["rivals"]), row
    assert [each["differences"] for each in sections["certificates"]["certificates"]] == [0, 0]
    ours = sections["answers"]["found"]["ours"]
    assert (ours["answers"], ours["texts"], ours["of"], ours["requests"]) == (1, 1, 4, 4)
    assert (status, report["commit"], report["device"]) == (0, "abc", "cpu")


def test_what_only_kernels_can_show_runs_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of reading, and every alternative tile, give the same bits and no error."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    bench = {name: importlib.import_module(f"bench.{name}") for name in ("checks", "ops", "tiles", "timing")}
    torch = importlib.import_module("torch")
    place = bench["ops"].Place(torch.device("cpu"), True)
    found = list(bench["checks"].reading_agrees(place))
    assert len(found) == 8
    assert [each.what for each in found if not each.holds()] == []
    clock = bench["timing"].Clock(place.device, 1)
    tiles = [bench["tiles"].try_tile(each, clock) for each in bench["tiles"].trials(place)]
    assert len(tiles) == 9
    assert [each for each in tiles if not each.get("holds") or "error" in each] == []


def test_k8_a_decoded_token_is_the_same_work_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both timed variants compute the same thing: the same logits, within bf16's rounding."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    module, ops = (importlib.import_module(f"bench.{name}") for name in ("end_to_end", "ops"))
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    step = module._step(ops.Place(torch.device("cpu"), True), module.TINY, 3, 48)
    ours, stock = module.ours(step).float(), module.stock(step).float()
    assert float((ours - stock).abs().max()) < 0.02 * float(stock.abs().max())
    assert not torch.equal(ours, torch.zeros_like(ours))


def test_section_that_was_not_reached_says_so(tmp_path: Path) -> None:
    """Without time nothing is started; the report and the exit status say that it is incomplete."""
    status, report = run(tmp_path / "report.json", "--seconds", "0", "--only", "K1", "--only", "K3")
    assert status == 1
    assert {name: part["error"] for name, part in report["sections"].items()} == {
        "K1": "out of time; --resume measures what is left", "K3": "out of time; --resume measures what is left",
    }  # fmt: skip


def test_killed_call_loses_nothing_that_was_measured(tmp_path: Path) -> None:
    """After SIGKILL in the middle of a section its results are on disk; --resume measures only the rest."""
    out = tmp_path / "report.json"
    sections = ("--only", "answers", "--only", "K1")
    process = subprocess.Popen(
        command(out, *sections), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 300
    done: list[str] = []
    while done != ["ours"]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, done
        done = json.loads(out.read_text())["sections"].get("answers", {}).get("done", []) if out.exists() else []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = json.loads(out.read_text())["sections"]
    assert not before["answers"].get("is_whole")
    status, report = run(out, *sections, "--resume")
    after = report["sections"]
    assert status == 0, after
    assert [row["name"] for row in after["K1"]["rows"]] == ["matmul M=40 N=96 K=128"]
    assert after["K1"] == before["K1"]
    assert after["answers"]["found"]["ours"] == before["answers"]["found"]["ours"]
    assert (after["answers"]["done"], after["answers"]["begun"]) == (["ours", "torch"], {})


def test_report_of_another_commit_is_not_continued(tmp_path: Path) -> None:
    """A report measured at another commit is refused, and the file stays unchanged."""
    out = tmp_path / "report.json"
    run(out, "--only", "K3")
    before = out.read_text()
    other = command(out, "--only", "K3", "--resume", "--commit", "def")
    done = subprocess.run(other, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "commit: 'abc' there, 'def' here" in done.stderr
    assert out.read_text() == before


def test_case_that_ends_its_process_twice_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second time the other cases are measured, since it would end every call; the report is incomplete."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    module = importlib.import_module("bench.report")
    earlier: dict[str, Any] = {}
    for _ in range(2):
        report = module.Report(tmp_path / "report.json", {}, 60.0, earlier)
        part = report.content["sections"].setdefault("K1", {})
        next(report.left(part, ["kills", "harmless"], str))
        earlier = json.loads((tmp_path / "report.json").read_text())
    report = module.Report(tmp_path / "report.json", {}, 60.0, earlier)
    report.section("K1", lambda part: part.update(rows=list(report.left(part, ["kills", "harmless"], str))))
    found = json.loads((tmp_path / "report.json").read_text())["sections"]
    assert (found["K1"]["rows"], found["K1"]["given_up"]) == (["harmless"], ["kills"])
    assert module.is_broken(found)


def test_row_without_our_time_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours may mean that the process's GPU was lost; an error of another kernel is final."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    module = importlib.import_module("bench.report")
    rows = [
        {"name": "a", "errors": {"ours": "illegal memory access"}},
        {"name": "b", "errors": {"sdpa cuDNN": "no kernel"}},
    ]
    earlier = {"sections": {"K5": {"rows": rows, "done": ["a", "b"], "is_whole": True}}}
    report = module.Report(tmp_path / "report.json", {}, 60.0, earlier)
    asked: list[str] = []
    report.section("K5", lambda part: asked.extend(report.left(part, ["a", "b"], str)))
    assert asked == ["a"]


def test_plan_is_of_calls_that_a_lent_gpu_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each section runs once, nine minutes per call and thirty in total, each command resuming an earlier one."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    parts, run_module = importlib.import_module("bench.parts"), load("run")
    sections = [name for part in parts.PARTS for name in part.sections]
    assert sorted(sections) == sorted({*run_module.CHECKS, *run_module._MEASURED, "answers", "certificates", "tiles"})
    done = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--plan", "--commit", "abc", "--results", "out dir"],
        env=environment(), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    lines = [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("#")]
    limits = [int(line[line.index("KILL") + 1]) for line in lines]
    assert len(lines) == len(parts.PARTS) == 5
    assert max(limits) <= 9 * 60
    assert sum(limits) <= 30 * 60
    for number, (line, limit) in enumerate(zip(lines, limits, strict=True), 1):
        options = run_module._parser().parse_args(line[line.index("kernels/bench/run.py") + 1 :])
        assert (options.part, options.resume, options.commit) == (number, True, "abc")
        assert options.results == Path("out dir")
        assert options.seconds < limit


def test_without_git_a_commit_has_to_be_named(tmp_path: Path) -> None:
    """A measurement that belongs to no known sources is refused."""
    done = subprocess.run(
        command(tmp_path / "report.json", "--commit", ""),
        env={**environment(), "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pass --commit HASH" in done.stderr
    assert not (tmp_path / "report.json").exists()


def test_ratio_is_of_times_that_were_taken_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's time is not compared with one that includes Python's launches, nor one call's with twenty's."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    timing = importlib.import_module("bench.timing")
    times = {
        "ours": timing.Timing(10.0, 0.0, "graph of 20"), "torch": timing.Timing(9.0, 0.0, "graph of 20"),
        "eager": timing.Timing(90.0, 0.0, "eager of 20"), "alone": timing.Timing(12.0, 0.0, "graph"),
    }  # fmt: skip
    assert timing.ratios(times) == {"torch": 0.9}
    assert timing.ratios({"torch": times["torch"]}) == {}


def test_short_calls_are_timed_together_on_operands_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short calls use twenty sets of operands, for ours and each of the others; long calls are timed alone, on one."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    module, ops, timing = load("run"), importlib.import_module("bench.ops"), importlib.import_module("bench.timing")
    torch = importlib.import_module("torch")
    clock = timing.Clock(torch.device("cpu"), 2)
    built: list[object] = []

    def build(size: int) -> dict[str, Any]:
        x = torch.ones(size)
        built.append(x)
        return {"ours": x.clone, "torch": x.sin}

    for size, sets, how in ((1, timing.TOGETHER, "cpu of 20"), (2**22, 1, "cpu")):
        built.clear()
        case = ops.Case("K0", "copy", f"size={size}", lambda size=size: build(size), ("torch",))
        row = module._measure(case, clock, 1.0)
        assert (len(built), set(row["how"].values())) == (sets, {how})
        assert set(row["ratio"]) == {"torch"}


@pytest.mark.slow
def test_kernels_of_a_call_are_compiled_ahead(tmp_path: Path) -> None:
    """Each specialisation is compiled once, by several processes; a later compilation finds it on disk."""

    def compile_them() -> tuple[str, set[str]]:
        done = subprocess.run(
            [sys.executable, str(BENCH / "run.py"), "--compile", "sm_90", "--quick", "--only", "K1", "--only", "K2"],
            env={**environment(), "TRITON_CACHE_DIR": str(tmp_path)},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout, {str(path) for path in tmp_path.rglob("*.cubin")}

    said, made = compile_them()
    assert said.startswith(f"{len(made)} kernels in ")
    assert len(made) > 1
    assert compile_them()[1] == made


def test_error_costs_its_own_section_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that a section had before its error stay, and the next one runs."""
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
    """Without results there are no figures; those of a CPU or of tiny shapes don't count."""
    table = load("table")
    (tmp_path / "cpu.json").write_text(json.dumps({"device": "cpu", "commit": "abc", "sections": {}}))
    quick = {"device": "GPU", "commit": "abc", "is_quick": True, "sections": {}}
    (tmp_path / "quick.json").write_text(json.dumps(quick))
    lines = table.make_table(table.load_runs(tmp_path)).splitlines()
    assert lines[0] == "| | | wanted | measured |"
    assert {line.split("|")[4].strip() for line in lines[2:]} == {""}
    assert table.make_table([]) in (BENCH.parents[1] / "docs" / "kernels.md").read_text() or list(
        (BENCH / "results").glob("*.json")
    )


def row_of(shape: str, moved: int = 0, of_copy: float = 0.0, **ratio: float) -> dict[str, Any]:
    """A measurement with two rivals and an anchor."""
    return {"shape": shape, "bytes": moved, "of_copy": of_copy, "ratio": ratio, "rivals": ["torch", "other"]}


def write(folder: Path, name: str, commit: str, **sections: dict[str, Any]) -> None:
    """Write a report of one GPU."""
    (folder / name).write_text(json.dumps({"device": "GPU", "commit": commit, "sections": sections}))


def test_table_has_mean_and_worst_of_each_gpu(tmp_path: Path) -> None:
    """Each GPU has a column; the fastest rival counts, anchors don't; small batches if the requirement names them."""
    table = load("table")
    rows = [
        row_of("M=1 N=4 K=4", torch=0.5, anchor=0.1), row_of("M=64 N=4 K=4", torch=2.5, other=2.0),
        row_of("M=128 N=4 K=4", torch=9.0),
    ]  # fmt: skip
    large, small = 2**28, 2**28 - 1
    norms = [row_of("M=9", large, 0.9, torch=3.0), row_of("M=1", small, 0.1, torch=1.5)]
    found = {"ours": {"answers": 1}, "torch": {"answers": 80}}
    write(
        tmp_path, "gpu.json", "abc", K2={"rows": rows, "is_whole": True}, K3={"rows": norms},
        answers={"found": found, "is_whole": True},
    )  # fmt: skip
    text = table.make_table(table.load_runs(tmp_path))
    assert "| K2 | matmul, M ≤ 64 | ≥ 0.95× torch.mm | 1.00 (worst 0.50, 2 shapes) |" in text
    assert "≥ 256 MB moved | ≥ 90 % of copy bandwidth | 0.90 (worst 0.90, 1 shapes, others not measured) |" in text
    assert "| RMSNorm, less moved | beside torch | 1.50 (worst 1.50, 1 shapes, others not measured) |" in text
    assert "| K8 | 1,000 identical requests among random neighbours | 1 answer | 1 (torch: 80) |" in text
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- kernels -->\nold\n<!-- /kernels -->\nafter\n")
    assert table.main(["--into", str(readme), "--results", str(tmp_path)]) == 0
    assert readme.read_text() == f"before\n<!-- kernels -->\n{text}\n<!-- /kernels -->\nafter\n"


def test_table_merges_the_calls_of_one_commit_and_no_others(tmp_path: Path) -> None:
    """The newest report with a whole section wins; sections of an older commit are not shown beside newer ones."""
    table = load("table")

    def part(ratio: float, at: str, **more: Any) -> dict[str, Any]:
        return {"rows": [row_of("M=1", torch=ratio)], "at": at, **more}

    write(tmp_path, "z.json", "old", K1=part(9.0, "2026-01-01"), K6=part(9.0, "2026-01-01", is_whole=True))
    write(tmp_path, "b.json", "new", K1=part(1.0, "2026-02-01", is_whole=True))
    write(tmp_path, "c.json", "new", K1=part(2.0, "2026-02-02", is_whole=True), K5=part(3.0, "2026-02-02"))
    write(tmp_path, "a.json", "new", K1=part(4.0, "2026-02-03"))
    (run,) = table.load_runs(tmp_path)
    assert run["commit"] == "new"
    assert {name: part["rows"][0]["ratio"]["torch"] for name, part in run["sections"].items()} == {"K1": 2.0, "K5": 3.0}


@pytest.mark.parametrize("commit", ["", "unknown", "0123456789ab-dirty"])
def test_table_refuses_a_report_of_no_commit(commit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody could look up the measured sources."""
    write(tmp_path, "gpu.json", commit)
    assert load("table").main(["--results", str(tmp_path)]) == 2
    assert f"gpu.json says commit {commit!r}" in capsys.readouterr().err


def test_a_case_that_anothers_call_ends_is_not_begun_again(tmp_path: Path) -> None:
    """Our timing stays, and `--resume` continues after the case; if ours broke the GPU it is tried again."""
    run, report = load("run"), load("report")
    for ours, expected in (([1.0], ["mean"]), ([], [])):
        made = report.Report(tmp_path / f"{len(ours)}.json", {}, 60)
        clock = SimpleNamespace(measure=partial(_break_unless, ours), is_lost=lambda: True)
        case = SimpleNamespace(
            name="mean",
            row="K4",
            op="mean",
            shape="",
            bytes=0,
            flops=0,
            rivals=(),
            build=lambda: {"ours": 1, "theirs": 2},
        )
        with mock.patch.dict(run._MEASURED, {"K4": lambda place, case=case: [case]}), pytest.raises(SystemExit):
            run.measure(made, "K4", None, clock, 1.0, part := made.content["sections"].setdefault("K4", {}))
        assert part["done"] == expected


def _break_unless(left: list[float], *_calls: object) -> Any:
    if not left:
        raise RuntimeError("an illegal memory access was encountered")
    return SimpleNamespace(microseconds=100 * left.pop(), spread=0.0, how="graph")


def test_k3_k4_rows_stand_beside_the_batch_invariant_kernels_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines' kernels are called as the engines do; none is used if an engine lacks it, or for CPU operands."""
    asked: list[Any] = []

    def note(name: str) -> Any:
        return lambda *args, **kwargs: asked.append((name, args, kwargs))

    engine, file = ModuleType("engine"), ModuleType("batch_invariant_ops")
    vars(engine).update({name: note(name) for name in ("rms_norm_batch_invariant", "softmax", "log_softmax")})
    vars(file).update({name: note(f"file's {name}") for name in ("log_softmax", "mean_dim")})
    monkeypatch.setitem(sys.modules, "vllm.model_executor.determinism.batch_invariant", engine)
    monkeypatch.setitem(sys.modules, "batch_invariant_ops", file)
    anchors = load("anchors")
    gpu, here = SimpleNamespace(type="cuda"), SimpleNamespace(device=SimpleNamespace(type="cpu"))
    x = SimpleNamespace(device=gpu, numel=lambda: 2**31 - 1)
    assert anchors.norm_anchors(here, "w", None, 1e-6) == anchors.row_anchors("softmax", here) == {}
    assert set(anchors.row_anchors("softmax", x)) == {"vLLM batch invariant"}
    assert set(anchors.row_anchors("log_softmax", x)) == {"vLLM batch invariant", "batch_invariant_ops"}
    assert anchors.row_anchors("gather_logprob", x) == {}
    assert anchors.row_anchors("mean", SimpleNamespace(device=gpu, numel=lambda: 2**31)) == {}, (
        "an illegal access there"
    )
    for call in (*anchors.norm_anchors(x, "w", "r", 1e-6).values(), *anchors.row_anchors("mean", x).values()):
        call()
    assert asked == [("rms_norm_batch_invariant", (x, "w", 1e-6), {"residual": "r"}), ("file's mean_dim", (x, -1), {})]


def test_the_table_of_the_docs_is_that_of_the_reports() -> None:
    """The figures in docs/kernels.md equal those in the reports beside the benchmark."""
    table = load("table")
    text = (BENCH.parents[1] / "docs" / "kernels.md").read_text()
    assert table.make_table(table.load_runs(table.RESULTS)) in text


def test_k8_a_decoded_token_took_at_most_a_tenth_longer_on_each_gpu() -> None:
    """The reports compare it with torch's own operations in a CUDA graph, for each batch and length benchmarked."""
    table = load("table")
    runs = table.load_runs(table.RESULTS)
    assert runs, "no GPU has measured anything"
    for run in runs:
        part = run["sections"]["K8"]
        assert part["is_whole"]
        assert {row["how"][name] for row in part["rows"] for name in ("ours", "torch")} == {"graph"}
        assert min(row["ratio"]["torch"] for row in part["rows"]) >= 1 / 1.10
        found = run["sections"]["answers"]["found"]
        assert found["ours"]["answers"] == 1 < found["torch"]["answers"]
