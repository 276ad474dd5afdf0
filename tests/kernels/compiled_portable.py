"""The floating-point instructions of kernels that must agree with the CPU, as JSON; a program of its own, since a
process that interprets kernels compiles none.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from spanreplay_kernels.ops.activation import silu_mul_triton
from spanreplay_kernels.ops.permute import combine_triton
from spanreplay_kernels.ops.route import route_triton
from spanreplay_kernels.ops.sampling import sample_triton
from spanreplay_kernels.plans.arch import ARCHS, CPU, Arch
from spanreplay_kernels.plans.launch import captured
from spanreplay_kernels.plans.plan import plan_rows
from spanreplay_kernels.proof.aot import targeting


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _route(arch: Arch) -> object:
    return route_triton(_empty(9, 128), 8, True, plan_rows("softmax", 128, "float32", arch))


def _combine(_arch: Arch) -> object:
    return combine_triton(_empty(72, 2048), _empty(9, 8, dtype=torch.int64), _empty(9, 8))


def _sample(_arch: Arch) -> object:
    rows = _empty(9, dtype=torch.int64)
    return sample_triton(_empty(9, 32_000), rows, rows, _empty(9), rows, _empty(9))


def _silu_mul(_arch: Arch) -> object:
    """Negative control: it uses the GPU's own exponential."""
    return silu_mul_triton(_empty(9, 2048), _empty(9, 2048))


STARTS: dict[str, Callable[[Arch], object]] = {
    "route": _route,
    "combine": _combine,
    "sample": _sample,
    "silu_mul": _silu_mul,
}


def instructions(start: Callable[[Arch], object], arch: Arch, *, is_fused: bool = False) -> list[str]:
    """The fp32 instructions of all kernels that an operation starts: `add.f32`, `div.rn.f32`."""
    with captured() as launches:
        start(arch)
    found: set[str] = set()
    for each in launches:
        options = {**each.options, "enable_fp_fusion": True} if is_fused else each.options
        with targeting(arch):
            made = each.kernel.warmup(*each.args, grid=each.grid, **options)
        found.update(re.findall(r"\b([a-z][a-z0-9.]*\.f32)\b", made.asm["ptx"]))
    return sorted(found)


def main() -> None:
    """Write one JSON document: operation → architecture → instructions."""
    archs = [arch for arch in ARCHS.values() if arch is not CPU]
    document = {name: {arch.name: instructions(start, arch) for arch in archs} for name, start in STARTS.items()}
    document["fused"] = {"sm_90": instructions(_sample, ARCHS["sm_90"], is_fused=True)}
    sys.stdout.write(json.dumps(document))


if __name__ == "__main__":
    main()
