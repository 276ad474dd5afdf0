"""Compiles kernels for every architecture without a GPU, and checks them against their plans.

A launcher is called on tensors of device `meta`, and each kernel that it would launch is compiled with the same
specialisation and options as in a real launch. `python -m spanreplay_kernels aot` does this for every kernel.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spanreplay_kernels.plans.arch import Arch, Mma
from spanreplay_kernels.plans.launch import Launch, captured

__all__ = ["Compiled", "compile_launch", "compile_op", "find_problems", "specialisation", "targeting"]

TENSOR_CORES: Final = (Mma.MMA_SYNC, Mma.WGMMA, Mma.TCGEN05)
TMA: Final = "cp.async.bulk.tensor"
_INSTRUCTIONS = ("wgmma.mma_async", "mma.sync", "tcgen05.mma", "fma.rn.f32", TMA, "cp.async.cg")
_PTXAS_TIMEOUT_S = 120


@dataclass(frozen=True)
class Compiled:
    """The properties of one compiled kernel."""

    kernel: str
    arch: str
    shared_bytes: int
    spilled_bytes: int
    registers: int
    warps: int
    instructions: dict[str, int]
    """The number of occurrences of each instruction that plans name."""
    shapes: tuple[str, ...]
    """Shapes of matrix instructions: `m64n128k16`."""
    claims_tma: bool
    """Its launch passes tensor descriptors, for TMA."""
    claims_warp_specialized: bool
    """Its launch says `WARP_SPECIALIZE=True`, which Triton ignores if it can't do it."""
    is_warp_specialized: bool
    awaited: int = 0
    """Tiles that are loaded just before they are multiplied, so the code waits for them, instead of prefetched."""
    reductions: tuple[str, ...] = ()
    """Shape and layout of each reduction, in code order: kernels with equal ones add up in the same order."""


class _Target:
    """A stand-in for the GPU driver that answers the queries Triton makes before it compiles."""

    def __init__(self, arch: Arch) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", arch.capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return int(self._target.arch)

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def targeting(arch: Arch) -> Iterator[None]:
    """Make Triton compile for this architecture, whatever GPU is present."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_Target(arch))
    try:
        yield
    finally:
        driver._active = before


def compile_op(call: Callable[[], object], arch: Arch) -> list[Compiled]:
    """Compile every kernel that `call` would launch; `call` uses tensors of device `meta`."""
    with captured() as launches:
        call()
    return [compile_launch(each, arch) for each in launches]


def specialisation(each: Launch, arch: Arch) -> str:
    """Return a hash of the key by which Triton decides whether to recompile; compiles nothing. 16 hexadecimal digits.

    Launches with the same specialisation run the same machine code.
    """
    with targeting(arch):
        *_, binder = each.kernel.device_caches[arch.capability]
        _, specialization, options = binder(*each.args, **each.options)
    text = f"{each.kernel.fn.__name__} {specialization} {options}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compile_launch(each: Launch, arch: Arch) -> Compiled:
    """Compile the kernel of one launch for an architecture; takes about a second.

    Raises: Triton's own exceptions if the kernel can't be compiled, e.g. OutOfResources.
    """
    with targeting(arch):
        made = each.kernel.warmup(*each.args, grid=each.grid, **each.options)
        ptx = made.asm["ptx"]
    counts = {name: len(re.findall(re.escape(name), ptx)) for name in _INSTRUCTIONS}
    spilled, registers = _assemble(ptx, arch, is_fused=bool(made.metadata.enable_fp_fusion))
    return Compiled(
        kernel=each.kernel.fn.__name__,
        arch=arch.name,
        shared_bytes=int(made.metadata.shared),
        spilled_bytes=spilled,
        registers=registers,
        warps=int(made.metadata.num_warps),
        instructions={name: count for name, count in counts.items() if count},
        shapes=tuple(sorted(set(re.findall(r"\.(m\d+n\d+k\d+)", ptx)))),
        claims_tma=any(type(arg).__name__ == "TensorDescriptor" for arg in each.args),
        claims_warp_specialized=bool(each.options.get("WARP_SPECIALIZE")),
        is_warp_specialized="ttg.warp_specialize(" in made.asm["ttgir"],
        awaited=_count_awaited(made.asm["ttgir"]),
        reductions=_reductions(made.asm["ttgir"]),
    )


def _count_awaited(code: str) -> int:
    """Count tiles in TTGIR that are not prefetched: those are loaded into a value before they are multiplied."""
    loaded = re.findall(r"(%\w+) = tt\.load .*: tensor<\d+x\d+x!tt\.ptr", code)
    return sum(bool(re.search(rf"(local_alloc|convert_layout) {re.escape(name)} ", code)) for name in loaded)


def _reductions(code: str) -> tuple[str, ...]:
    """Return the reductions in TTGIR: a layout says which thread holds which element, and so the tree of a sum."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    reduced = re.findall(r'"tt\.reduce"[\s\S]*?\}\) : \((.*?)\) ->', code)
    return tuple(re.sub(r"#\w+", lambda name: layouts.get(name[0], name[0]), each) for each in reduced)


def find_problems(made: Compiled, planned: Mma | None, arch: Arch) -> list[str]:
    """Return violations of the architecture's limits, the plan or the launch options; empty if there are none.

    planned: the instruction of the operation's plan; None for an operation without matrix products.
    """
    found = []
    if made.shared_bytes > arch.shared_bytes_max:
        found.append(f"takes {made.shared_bytes} bytes of shared memory, of {arch.shared_bytes_max}")
    if made.spilled_bytes:
        found.append(f"spills {made.spilled_bytes} bytes of registers")
    others = [mma.value for mma in TENSOR_CORES if mma is not planned and mma.value in made.instructions]
    if others:
        found.append(f"multiplies by {', '.join(others)}, its plan says {planned.value if planned else 'by none'}")
    if made.claims_tma and TMA not in made.instructions:
        found.append(f"is given descriptors, and has no {TMA}")
    if made.claims_warp_specialized and not made.is_warp_specialized:
        found.append("is not warp-specialised, as its launch asks")
    return found


def _assemble(ptx: str, arch: Arch, *, is_fused: bool) -> tuple[int, int]:
    """Return (bytes spilled, registers per thread), as reported by ptxas."""
    from triton.backends.nvidia.compiler import get_ptxas

    path = get_ptxas(arch.capability).path
    target = re.search(r"\.target (sm_\w+)", ptx)
    assert target is not None
    # The options that Triton 3.7 itself passes; without the second, ptxas 13 spills unnecessarily
    options = ["-v", "--regAllocOptLevel=2", *([] if is_fused else ["--fmad=false"]), f"--gpu-name={target[1]}"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        done = subprocess.run(
            [path, *options, str(source), "-o", str(Path(folder) / "kernel.cubin")],
            capture_output=True,
            text=True,
            timeout=_PTXAS_TIMEOUT_S,
            check=True,
        )
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", done.stderr))
    used = re.search(r"Used (\d+) registers", done.stderr)
    return spilled, int(used[1]) if used else 0
