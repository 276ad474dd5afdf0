"""Gated activations: silu(gate) · up.

There is no sum over elements, and yet a library's silu won't do: on the CPU, torch's fp32 silu uses a different exp for
the last few elements of a tensor, so a row's bits depend on where the batch ends.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._rows import exp_cpu, in_chunks
from spanreplay_kernels.ops._tile import IS_INTERPRETED, rounded
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import check_dtype

__all__ = ["silu_mul", "silu_mul_ref", "silu_mul_triton"]

_BLOCK = 1024


def silu_mul_ref(gate: Tensor, up: Tensor) -> Tensor:
    """Return gate / (1 + exp(-gate)) · up, each step in fp32, rounded once: the definition."""
    wide = gate.float()
    return (wide / (1.0 + torch.exp(-wide)) * up.float()).to(gate.dtype)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up elementwise; bitwise batch-invariant.

    Shapes: gate and up (…, N) of any strides, e.g. the halves of one product; result as gate, contiguous.
    Dtypes: bf16, fp16, fp32; each step in fp32, rounded once; result has gate's dtype.
    Invariance: an element depends only on its own gate and up, with the same instructions at every position.
    Raises: UnsupportedInput if shapes, dtypes or devices differ, or there are no kernels for the device.
    Source: Shazeer 2020, arXiv:2002.05202, eq. 6 (SwiGLU) before its last product.
    """
    if gate.shape != up.shape:
        raise UnsupportedInput("silu_mul", "the shapes differ", gate, up, hint="pass two tensors of one shape")
    check_dtype("silu_mul", gate, up)
    arch = arch_of(gate.device)
    if gate.numel() == 0:
        return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if arch is CPU:
        return _silu_mul_cpu(gate, up)
    return silu_mul_triton(gate, up)


def _silu_mul_cpu(gate: Tensor, up: Tensor) -> Tensor:
    def step(gate: Tensor, up: Tensor) -> Tensor:
        wide = gate.float()
        return wide.div(exp_cpu(-wide).add_(1.0)).mul_(up.float())

    rows = [_as_rows(each) for each in (gate, up)]
    out = torch.empty(rows[0].shape, dtype=gate.dtype)
    return in_chunks(step, *rows, out=out).reshape(gate.shape)


def _as_rows(x: Tensor) -> Tensor:
    """Return x as (M, N) with contiguous columns; half of a wider tensor is not copied."""
    rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    return rows if rows.stride(1) == 1 else rows.contiguous()


@triton.jit
def silu_mul_kernel(
    gate_ptr, up_ptr, out_ptr, N, stride_gate, stride_up,
    BLOCK: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    gate = tl.load(gate_ptr + row * stride_gate + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * stride_up + columns, mask=mask, other=0.0).to(tl.float32)
    result = tl.math.div_rn(gate, 1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * N + columns, rounded(result, out_ptr.dtype.element_ty, INTERPRET), mask=mask)


def silu_mul_triton(gate: Tensor, up: Tensor) -> Tensor:
    """Run `silu_mul` with the kernel; the caller has checked the operands."""
    gate_rows, up_rows = _as_rows(gate), _as_rows(up)
    M, N = gate_rows.shape
    out = torch.empty((M, N), dtype=gate.dtype, device=gate.device)
    block = min(_BLOCK, triton.next_power_of_2(N))
    # The stride of a single row is meaningless, and must not trigger a recompilation
    strides = (N if M == 1 else each.stride(0) for each in (gate_rows, up_rows))
    launch(
        silu_mul_kernel, (M, triton.cdiv(N, block)), gate_rows, up_rows, out, N, *strides,
        BLOCK=block, INTERPRET=IS_INTERPRETED, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out.reshape(gate.shape)
