"""Run by test_aot.py in a process that compiles: counts the specialisations of two kernels over three batches."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
import triton.language as tl

from spanreplay_kernels.plans.arch import ARCHS
from spanreplay_kernels.plans.launch import captured, launch
from spanreplay_kernels.proof.aot import specialisation


@triton.jit
def specialised(x_ptr: Any, M: Any) -> None:
    """Triton compiles it again if M is 1, and if it is a multiple of 16."""
    tl.store(x_ptr, M)


@triton.jit(do_not_specialize=["M"])
def general(x_ptr: Any, M: Any) -> None:
    """A single binary for every M."""
    tl.store(x_ptr, M)


def count(kernel: object) -> int:
    """The number of specialisations of a kernel over 1, 2 and 16 rows."""
    x = torch.empty(1, dtype=torch.int32, device="meta")
    with captured() as launches:
        for rows in (1, 2, 16):
            launch(kernel, (1,), x, rows)
    return len({specialisation(each, ARCHS["sm_90"]) for each in launches})


sys.stdout.write(json.dumps({"specialised": count(specialised), "not specialised": count(general)}))
