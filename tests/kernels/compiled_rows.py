"""Compiled forms of the launches over rows on sm_90, as JSON; a separate program, since a process that interprets
kernels compiles none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.rows import plan_of
from spanreplay_kernels.ops.activation import silu_mul_triton
from spanreplay_kernels.ops.mean import sum_kernel, sum_triton
from spanreplay_kernels.ops.rms_norm import rms_norm_triton
from spanreplay_kernels.ops.rope import rope_triton
from spanreplay_kernels.ops.softmax import gather_logprob_triton, softmax_triton
from spanreplay_kernels.plans.arch import ARCHS
from spanreplay_kernels.plans.launch import Launch, captured, launch
from spanreplay_kernels.proof.aot import compile_launch, specialisation

ARCH = ARCHS["sm_90"]
# Above the number of rows up to which blocks are split
MANY = 80
ROWS, OFFSETS = (1, 2, 3, 15, 16, 17, 64, 129), (0, 1, 3)
Start = Callable[[Tensor], object]


def started(start: Start, x: Tensor) -> Launch:
    """The launch in which an operation on x reads its rows: the first, if another one finishes them."""
    with captured() as found:
        start(x)
    return found[0]


def _norm(x: Tensor) -> object:
    return rms_norm_triton(x, x[0], 1e-6, plan_of("rms_norm", x))


def _norm_residual(x: Tensor) -> object:
    return rms_norm_triton(x, x[0], 1e-6, plan_of("rms_norm", x), x)


def _log_softmax(x: Tensor) -> object:
    return softmax_triton(x, plan_of("log_softmax", x), torch.float32)


def _gather(x: Tensor) -> object:
    ids = torch.empty(x.shape[0], 3, dtype=torch.int64, device=x.device)
    return gather_logprob_triton(x, ids, plan_of("log_softmax", x))


def _mean(x: Tensor) -> object:
    return sum_triton(x, plan_of("mean", x), x.dtype)


def _unaligned_mean(x: Tensor) -> None:
    """Negative control: the compiler gets the real address of its rows."""
    plan = plan_of("mean", x)
    launch(
        sum_kernel, (1,), x, torch.empty(x.shape[0], device=x.device), x.shape[0], plan.width, 1.0,
        BLOCK_ROWS=plan.block_rows, BLOCK=plan.block, INTERPRET=False, num_warps=plan.warps,
    )  # fmt: skip


def _gate(x: Tensor) -> object:
    return silu_mul_triton(x.contiguous(), x.contiguous())


def _rope(x: Tensor) -> object:
    cos = torch.empty(1, x.shape[0], 32, device=x.device)
    return rope_triton(x[:, :96].reshape(1, -1, 3, 32).transpose(1, 2), cos, cos)


STARTS: dict[str, Start] = {
    "rms_norm": _norm,
    "rms_norm_residual": _norm_residual,
    "log_softmax": _log_softmax,
    "gather_logprob": _gather,
    "mean": _mean,
    "silu_mul": _gate,
    "rope": _rope,
    "unaligned_mean": _unaligned_mean,
}


def count_specialisations(start: Start, width: int) -> int:
    """The number of binaries that serve all numbers of rows from all places of a batch."""
    x = torch.empty(200, width, dtype=torch.bfloat16, device="meta")
    launches = [started(start, x[o : o + rows]) for rows in ROWS for o in OFFSETS]
    # One kernel for few rows and one for many make two, each of which is compiled once
    kernels = {(each.kernel.fn.__name__, each.options.get("HAS_PAIRS")) for each in launches}
    return len({specialisation(each, ARCH) for each in launches}) - len(kernels) + 1


def reductions(start: Start, width: int, rows: int = MANY) -> tuple[str, ...]:
    """How a launch distributes its sums over threads."""
    x = torch.empty(rows, width, dtype=torch.bfloat16, device="meta")
    return compile_launch(started(start, x), ARCH).reductions


def main() -> None:
    """Write one JSON document."""
    alike = ("rms_norm", "rms_norm_residual"), ("log_softmax", "gather_logprob")
    found = {
        "specialisations": {
            f"{name} {width}": count_specialisations(start, width)
            for name, start in STARTS.items()
            # For single elements an address may change the width of loads, which affects no sum
            for width in ((96, 4096) if name in ("silu_mul", "rope") else (96, 101, 4096, 40_001))
        },
        "reductions": {
            f"{pair} {width}": [reductions(STARTS[name], width) for name in pair]
            for pair in alike
            for width in (101, 4096, 40_001)
        }
        | {"few and many rows": [reductions(_log_softmax, 40_001, rows) for rows in (1, MANY)]},
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
