"""Kernels that must agree with the CPU to the bit contain no instruction whose rounding is specific to a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

COMPILE_TIMEOUT_S = 300
EXACT = {
    "add.rn.f32", "sub.rn.f32", "mul.rn.f32", "div.rn.f32", "max.f32", "min.f32", "redux.sync.max.f32", "selp.f32",
    "setp.eq.f32", "setp.gt.f32", "setp.lt.f32", "setp.num.f32", "cvt.rn.f32", "cvt.rzi.s32.f32",
    # For floor: it flushes numbers below the smallest normal one, and a sum with ½ is never one of them
    "cvt.rmi.ftz.f32.f32",
}  # fmt: skip
"""IEEE 754 defines one result for each; none may be contracted, because the rounding is explicit (PTX ISA, `.rn`)."""


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, list[str]]]:
    """The result of `compiled_portable`, from a process that compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "kernels.compiled_portable"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("op", ["route", "combine", "sample"])
def test_k7_kernel_rounds_as_the_cpu_does(op: str, compiled: dict[str, dict[str, list[str]]]) -> None:
    """On every architecture each instruction has one possible result: no approximation, nothing fused."""
    assert len(compiled[op]) == 5
    for arch, instructions in compiled[op].items():
        assert "mul.rn.f32" in instructions, arch
        assert set(instructions) <= EXACT, arch


def test_k7_roundings_of_the_gpus_own_are_caught(compiled: dict[str, dict[str, list[str]]]) -> None:
    """Negative control: the GPU's own exponential, and the same kernel with fusion enabled."""
    assert "ex2.approx.f32" in set(compiled["silu_mul"]["sm_90"]) - EXACT
    assert "fma.rn.f32" in set(compiled["fused"]["sm_90"]) - EXACT
