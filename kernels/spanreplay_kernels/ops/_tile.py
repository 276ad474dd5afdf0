"""Helpers that the kernels share: products and rounding that behave the same compiled and interpreted."""

from __future__ import annotations

import triton
import triton.language as tl

from spanreplay_kernels.plans.arch import ARCHS

__all__ = ["IS_INTERPRETED", "dot", "may_overlap", "rounded", "smallest_rows"]

IS_INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""Whether this process interprets kernels on the CPU; decided by TRITON_INTERPRET before triton is imported."""


def may_overlap(arch: str) -> bool:
    """Whether a kernel may be launched before the previous one has ended, and wait for it on the device."""
    return ARCHS[arch].capability >= 90 and not IS_INTERPRETED


def smallest_rows(rows: int) -> int:
    """Return the rows of the smallest tile that holds `rows`: 16, 32 or 64; 0 if there are more."""
    return next((m for m in (16, 32, 64) if rows <= m), 0)


@triton.jit
def dot(a, b, acc, INTERPRET: tl.constexpr):
    """Return acc + a · b in fp32, without TF32.

    The interpreter of Triton 3.7 multiplies the bits of bf16 as integers, can widen fp8 only to fp32, and sums with a
    library whose order depends on the shape of the tile. In fp64, products are exact and the order of a sum disappears
    when it is rounded to fp32.
    """
    if INTERPRET:
        a, b = a.to(tl.float32).to(tl.float64), b.to(tl.float32).to(tl.float64)
        return tl.dot(a, b, acc.to(tl.float64), out_dtype=tl.float64).to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def rounded(x, dtype: tl.constexpr, INTERPRET: tl.constexpr):
    """Round fp32 to nearest, ties to even; the interpreter's own cast to bf16 truncates."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        odd = (bits >> 16) & 1
        nearest = (((bits + 0x7FFF + odd) >> 16) << 16).to(tl.float32, bitcast=True)
        return tl.where(x == x, nearest, x).to(dtype)
    return x.to(dtype)
