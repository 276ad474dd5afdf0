"""Every kernel compiled for every architecture without a GPU: within its limits, with the instructions of its plan."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plans.arch import ARCHS, Mma
from spanreplay_kernels.plans.launch import Launch
from spanreplay_kernels.proof.aot import Compiled, find_problems
from spanreplay_kernels.proof.aot_matrix import CASES, DTYPES, GPUS, _find_respecialised

IS_WHOLE = os.environ.get("SPANREPLAY_TEST_MATRIX") == "1"
TIMEOUT_S = 3600 if IS_WHOLE else 600
GOOD = Compiled(
    kernel="matmul_tma_kernel", arch="sm_90", shared_bytes=200_000, spilled_bytes=0, registers=200, warps=8,
    instructions={"wgmma.mma_async": 4, "cp.async.bulk.tensor": 8}, shapes=("m64n128k16",),
    claims_tma=True, claims_warp_specialized=False, is_warp_specialized=False,
)  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a process that compiles kernels, whereas this one interprets them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )  # fmt: skip


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """The command's facts about every kernel: of the sample, or of all with SPANREPLAY_TEST_MATRIX=1."""
    sample = [] if IS_WHOLE else ["--sample"]
    done = run("-m", "spanreplay_kernels", "aot", "--json", "--jobs", "2", *sample)
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["kernels"]
    assert done.returncode == (1 if any(each["problems"] for each in found) else 0), done.stderr
    return found


@pytest.mark.slow
def test_k11_every_kernel_keeps_its_limits_and_its_plan(records: list[dict[str, Any]]) -> None:
    """Shared memory, no spills, only the planned instruction, and TMA and specialised warps if claimed."""
    broken = {f"{each['op']} {each['shape']} {each['dtype']} {each['arch']}": each["problems"] for each in records}
    assert not {where: problems for where, problems in broken.items() if problems}


@pytest.mark.slow
def test_k11_every_operation_is_compiled_for_every_architecture(records: list[dict[str, Any]]) -> None:
    """Each operation, architecture and dtype of the table is compiled, over all numbers of rows."""
    compiled = {(each["op"], each["arch"]) for each in records}
    assert compiled == {(case.op, arch.name) for case in CASES for arch in GPUS if arch.capability >= case.since}
    assert {each["arch"] for each in records} == {"sm_80", "sm_89", "sm_90", "sm_100", "sm_120"}
    assert {each["dtype"] for each in records} == {str(dtype)[6:] for dtype in DTYPES}


@pytest.mark.slow
def test_k11_products_read_by_the_copy_engine_where_there_is_one(records: list[dict[str, Any]]) -> None:
    """bf16 weights with aligned rows are read by TMA on every architecture that has it, and on no other."""
    products = [each for each in records if each["op"] == "matmul" and each["shape"] == "4096x4096"]
    reading = [each for each in products if each["dtype"] == "bfloat16" and each["kernel"] != "add_segments_kernel"]
    assert {each["arch"] for each in reading} == {arch.name for arch in GPUS}
    for each in reading:
        assert ("cp.async.bulk.tensor" in each["instructions"]) == ARCHS[each["arch"]].has_tma, each


@pytest.mark.slow
def test_k1_large_products_keep_the_tensor_cores_fed(records: list[dict[str, Any]]) -> None:
    """For 4,096 rows: the widest instruction of its class, with at least two steps of operands in flight."""
    found = [
        each for each in records
        if each["op"] == "matmul" and each["shape"] == "4096x4096" and each["dtype"] == "bfloat16"
        and 4096 in each["rows"] and each["kernel"].startswith("matmul")
    ]  # fmt: skip
    assert {each["arch"] for each in found} == {arch.name for arch in GPUS}
    for each in found:
        arch = ARCHS[each["arch"]]
        if arch.tensor_core is Mma.WGMMA:
            assert "m64n128k16" in each["shapes"], each
        # At least two steps of 128 × 64 and 64 × 64 elements of two bytes, with one more in use
        assert each["shared_bytes"] >= 2 * (128 + 64) * 64 * 2, each


@pytest.mark.slow
def test_k1_k2_operands_are_copied_ahead_of_their_product(records: list[dict[str, Any]]) -> None:
    """If rows are multiples of 16 elements, no kernel waits for a tile that it loads right before multiplying it."""
    found = set()
    for each in records:
        if each["op"] in ("matmul", "bmm", "grouped_mm", "scaled_mm"):
            n, k = (int(size) for size in re.findall(r"\d+", each["shape"].partition(",")[0])[-2:])
            if n % 16 == 0 and k % 16 == 0:
                found.add((each["op"], each["arch"]))
                assert each["awaited"] == 0, each
    wanted = {(op, arch.name) for op in ("matmul", "bmm", "grouped_mm", "scaled_mm") for arch in GPUS}
    assert found == wanted - {("scaled_mm", "sm_80")}


@pytest.mark.slow
def test_k6_prefill_multiplies_by_the_planned_instruction(records: list[dict[str, Any]]) -> None:
    """Both products, queries by keys and weights by values, use tensor cores without a spill on every architecture."""
    prefill = [each for each in records if each["kernel"] == "attention_kernel" and each["dtype"] == "bfloat16"]
    assert {each["arch"] for each in prefill} == {arch.name for arch in GPUS}
    for each in prefill:
        assert each["planned"] == ARCHS[each["arch"]].tensor_core.value
        assert each["instructions"][each["planned"]] >= 2, each
        assert each["spilled_bytes"] == 0, each
        assert each["shared_bytes"] <= ARCHS[each["arch"]].shared_bytes_max


@pytest.mark.slow
def test_k5_prefill_and_decode_add_up_in_one_order(records: list[dict[str, Any]]) -> None:
    """Both attention kernels distribute a tile over threads in one way, and contract the same products and sums."""
    found: dict[tuple[str, ...], dict[str, tuple[set[str], int]]] = {}
    for each in records:
        if each["op"] == "attention":
            of_shape = found.setdefault((each["shape"], each["dtype"], each["arch"]), {})
            # fp32 multiplies tiles by the same instruction, one or two at a time
            contracted = 0 if each["dtype"] == "float32" else each["instructions"].get("fma.rn.f32", 0)
            before = of_shape.setdefault(each["kernel"], (set(each["reductions"]), contracted))
            assert before == (set(each["reductions"]), contracted), each
    assert found
    for where, kernels in found.items():
        assert set(kernels) == {"attention_kernel", "split_kernel", "merge_kernel"}, where
        assert kernels["attention_kernel"] == kernels["split_kernel"], where
        assert len(kernels["split_kernel"][0]) == 1, where
        assert kernels["merge_kernel"] == (set(), 0), where


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shared_bytes": 232_449}, "takes 232449 bytes of shared memory, of 232448"),
        ({"spilled_bytes": 4}, "spills 4 bytes"),
        ({"instructions": {"mma.sync": 1, "cp.async.bulk.tensor": 1}}, r"multiplies by mma\.sync, its plan says wgmma"),
        ({"instructions": {"wgmma.mma_async": 1}}, "is given descriptors, and has no cp.async.bulk.tensor"),
        ({"claims_warp_specialized": True}, "is not warp-specialised, as its launch asks"),
    ],
    ids=["shared", "spills", "instruction", "tma", "specialised"],
)
def test_k11_what_breaks_a_limit_is_named(change: dict[str, Any], message: str) -> None:
    """Negative control: the check finds each kind of problem, and none in a good kernel."""
    assert find_problems(GOOD, Mma.WGMMA, ARCHS["sm_90"]) == []
    problems = find_problems(dataclasses.replace(GOOD, **change), Mma.WGMMA, ARCHS["sm_90"])
    assert len(problems) == 1
    assert re.search(message, problems[0])


def test_k11_a_kernel_that_tells_batches_apart_is_caught() -> None:
    """Negative control: a kernel that Triton compiles again for 1 and for 16 rows is reported by the same command."""
    done = run(str(Path(__file__).parent / "aot_control.py"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"specialised": 3, "not specialised": 1}


def test_k11_same_options_twice_are_a_kernel_that_tells_batches_apart() -> None:
    """Negative control: two specialisations with equal options are reported; two tile sizes are not."""

    def kernel() -> None:
        """Stands in for a kernel under triton.jit."""

    started = SimpleNamespace(fn=kernel)
    launches = {key: Launch(started, (1,), (), {"BLOCK_M": m}) for key, m in (("a", 16), ("b", 64), ("c", 64))}
    found = _find_respecialised(launches, {"a": [1], "b": [17], "c": [32]})
    assert found == {"c": "is compiled anew for [32] rows, beside [17]"}


def test_interpreting_process_compiles_nothing() -> None:
    """If TRITON_INTERPRET is set the command says so, instead of passing."""
    from spanreplay_kernels.proof.aot_matrix import main

    with pytest.raises(UnsupportedInput, match="TRITON_INTERPRET is set, nothing would be compiled; unset it"):
        main([])
