"""Exponential and logarithm made of additions and multiplications: the same bits on every device.

The functions of a library or GPU are accurate to one or two units in the last place, but differ from each other. These
use only operations with exactly one IEEE 754 rounding (+, −, ×, floor, bit moves), in a fixed order. Each is written
twice, for torch and for kernels. Kernels that call them are launched with `enable_fp_fusion=False`, since a fused
multiply-add rounds once where torch rounds twice.

Source: Moshier, Cephes Mathematical Library 2.8, single/expf.c and single/logf.c (polynomials and splits of ln 2).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["exp", "exp_in_kernel", "log", "log_in_kernel", "sum_in_kernel"]

_EXP_MIN, _EXP_MAX = -87.0, 88.0
"""Outside these the result is 0 or infinite: subnormal numbers are never produced."""


def exp(x: Tensor) -> Tensor:
    """Return exp(x) in fp32, within 2 ulp; 0 below −87, infinite above 88."""
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
    """Compute `exp` in a kernel."""
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
    """Return the natural logarithm of positive, finite, normal fp32 numbers, within 2 ulp."""
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
    """Compute `log` in a kernel."""
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
    """Sum a row whose width is a power of two, by halves, like `sum_cpu`.

    Each step adds two numbers, which has only one order, whichever threads hold them.
    """
    size: tl.constexpr = WIDTH
    for step in tl.static_range(STEPS):
        x = tl.sum(tl.reshape(x, (2, size >> (step + 1))), 0)
    return tl.sum(x, 0)
