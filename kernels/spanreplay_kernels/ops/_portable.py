"""Exponential and logarithm made of additions and multiplications: the same bits on every device.

A library's or a GPU's own function is right to a unit or two in the last place, each in its own way. These are made
of operations that IEEE 754 rounds in one way only (+, −, ×, floor, and moving bits), in a fixed order. Each is written
twice, for torch and for kernels. Kernels that call them are started with `enable_fp_fusion=False`: a multiplication
and an addition that are fused round once where torch rounds twice.

Source: Moshier, Cephes Mathematical Library 2.8, single/expf.c and single/logf.c (polynomials and splits of ln 2).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["exp", "exp_in_kernel", "log", "log_in_kernel", "sum_in_kernel"]

_EXP_MIN, _EXP_MAX = -87.0, 88.0
"""Beyond them the result is 0 or infinite: numbers below the smallest normal one are not made."""


def exp(x: Tensor) -> Tensor:
    """e to the power of x, fp32, within 2 ulp; 0 below −87, infinite above 88."""
    z = x.clamp(_EXP_MIN, _EXP_MAX)
    z = torch.where(x == x, z, 0.0)
    n = torch.floor(z * 1.44269504088896341 + 0.5)
    r = z - n * 0.693359375
    r = r - n * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * (r * r)
    p = (p + r) + 1.0
    scale = ((n.to(torch.int32) + 127) << 23).view(torch.float32)
    y = torch.where(x < _EXP_MIN, 0.0, p * scale)
    y = torch.where(x > _EXP_MAX, float("inf"), y)
    return torch.where(x == x, y, x)


@triton.jit
def exp_in_kernel(x):
    """`exp` in a kernel."""
    z = tl.where(x > -87.0, x, -87.0)
    z = tl.where(z < 88.0, z, 88.0)
    z = tl.where(x == x, z, 0.0)
    n = tl.floor(z * 1.44269504088896341 + 0.5)
    r = z - n * 0.693359375
    r = r - n * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * (r * r)
    p = (p + r) + 1.0
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    y = tl.where(x < -87.0, 0.0, p * scale)
    y = tl.where(x > 88.0, float("inf"), y)
    return tl.where(x == x, y, x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm of fp32 numbers that are positive, finite and normal; within 2 ulp."""
    bits = x.view(torch.int32)
    e = (bits >> 23) - 126
    m = ((bits & 0x007FFFFF) | 0x3F000000).view(torch.float32)
    is_low = m < 0.707106781186547524
    e = torch.where(is_low, e - 1, e).to(torch.float32)
    f = torch.where(is_low, (m + m) - 1.0, m - 1.0)
    z = f * f
    p = f * 7.0376836292e-2 + -1.1514610310e-1
    p = p * f + 1.1676998740e-1
    p = p * f + -1.2420140846e-1
    p = p * f + 1.4249322787e-1
    p = p * f + -1.6668057665e-1
    p = p * f + 2.0000714765e-1
    p = p * f + -2.4999993993e-1
    p = p * f + 3.3333331174e-1
    y = (p * f) * z
    y = y + e * -2.12194440e-4
    y = y - z * 0.5
    return (f + y) + e * 0.693359375


@triton.jit
def log_in_kernel(x):
    """`log` in a kernel."""
    bits = x.to(tl.int32, bitcast=True)
    e = (bits >> 23) - 126
    m = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    is_low = m < 0.707106781186547524
    e = tl.where(is_low, e - 1, e).to(tl.float32)
    f = tl.where(is_low, (m + m) - 1.0, m - 1.0)
    z = f * f
    p = f * 7.0376836292e-2 + -1.1514610310e-1
    p = p * f + 1.1676998740e-1
    p = p * f + -1.2420140846e-1
    p = p * f + 1.4249322787e-1
    p = p * f + -1.6668057665e-1
    p = p * f + 2.0000714765e-1
    p = p * f + -2.4999993993e-1
    p = p * f + 3.3333331174e-1
    y = (p * f) * z
    y = y + e * -2.12194440e-4
    y = y - z * 0.5
    return (f + y) + e * 0.693359375


@triton.jit
def sum_in_kernel(x, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """The sum of a row whose width is a power of two, by halves, as `sum_cpu`'s.

    Each step is a sum of two, which has one order, whatever threads hold them.
    """
    size: tl.constexpr = WIDTH
    for step in tl.static_range(STEPS):
        x = tl.sum(tl.reshape(x, (2, size >> (step + 1))), 0)
    return tl.sum(x, 0)
