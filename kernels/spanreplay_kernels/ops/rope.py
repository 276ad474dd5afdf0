"""Rotary position embedding in the convention of transformers: the halves of a head are rotated against each other.

Every step is a product or a sum with exactly one IEEE 754 rounding, and none are contracted, so the CPU and every GPU
give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._tile import IS_INTERPRETED, rounded
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import FLOATS, check_dtype

__all__ = ["rope", "rope_ref", "rope_triton"]

_TILE_ELEMENTS = 2048
"""Elements of half heads that one program rotates: the heads share the cosines it loads."""


def rope_ref(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x · cos + rotate_half(x) · sin in fp32, rounded once: the definition. Shapes: as in `rope`."""
    wide, half = x.float(), x.shape[-1] // 2
    rotated = torch.cat((-wide[..., half:], wide[..., :half]), -1)
    return (wide * cos.float()[:, None] + rotated * sin.float()[:, None]).to(x.dtype)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q and k by the angles of their positions; bitwise batch-invariant.

    Element d of a head becomes x[d] · cos[d] - x[d + D/2] · sin[d] in the first half, and
    x[d] · cos[d] + x[d - D/2] · sin[d] in the second.

    Shapes: q (B, H, S, D), k (B, H_k, S, D) of any strides, cos and sin (B, S, D) or (1, S, D); D even; results
    contiguous. A model that rotates only part of a head passes that part.
    Dtypes: bf16, fp16, fp32, the same for q and k; cos and sin in that dtype or fp32; each product and the sum in fp32,
    rounded to q's dtype once (transformers rounds bf16 after each step).
    Invariance: an element depends only on its pair and its angle; the same bits on the CPU and on every GPU.
    Raises: UnsupportedInput if shapes, dtypes or devices don't fit, or there are no kernels for the device.
    Source: Su et al. 2021, arXiv:2104.09864, eq. 34, with the pairs of transformers' `apply_rotary_pos_emb`.
    """
    _check(q, k, cos, sin)
    if arch_of(q.device) is CPU:
        return _rope_cpu(q, cos, sin), _rope_cpu(k, cos, sin)
    return rope_triton(q, cos, sin), rope_triton(k, cos, sin)


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    hint = "pass q (B, H, S, D), k (B, H_k, S, D), cos and sin (B, S, D), D even"
    if q.dim() != 4 or k.dim() != 4 or cos.dim() != 3 or cos.shape != sin.shape:
        raise UnsupportedInput("rope", "these are not heads and angles", q, k, cos, sin, hint=hint)
    B, _, S, D = q.shape
    if k.shape[0] != B or k.shape[2:] != q.shape[2:] or tuple(cos.shape) not in ((B, S, D), (1, S, D)) or D % 2:
        raise UnsupportedInput("rope", "these shapes do not fit", q, k, cos, sin, hint=hint)
    check_dtype("rope", q, k)
    if any(each.dtype not in (q.dtype, torch.float32) or each.device != q.device for each in (cos, sin)):
        hint = "bring cos and sin to q's device, and to its dtype or fp32"
        raise UnsupportedInput("rope", "cos or sin do not fit", q, cos, sin, hint=hint)
    if cos.dtype not in FLOATS or cos.dtype != sin.dtype:
        raise UnsupportedInput("rope", "cos and sin differ in dtype", cos, sin, hint="bring them to one")


def _rope_cpu(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rope_ref(x, cos, sin).contiguous()


# Triton may specialise on strides, although they contain S: the width of a load doesn't change any element
@triton.jit(do_not_specialize=["H", "S"])
def rope_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, H, S, stride_b, stride_h, stride_s,
    IS_ANGLE_SHARED: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    INTERPRET: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_H heads of one token; HALF columns make half a head, BLOCK is the next power of two."""
    b, s = (tl.program_id(0) // S).to(tl.int64), (tl.program_id(0) % S).to(tl.int64)
    heads = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    angle = (s if IS_ANGLE_SHARED else b * S + s) * (2 * HALF) + columns
    cos_low = tl.load(cos_ptr + angle, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(sin_ptr + angle, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos_ptr + angle + HALF, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(sin_ptr + angle + HALF, mask=columns < HALF, other=0.0).to(tl.float32)[None, :]
    mask = (heads[:, None] < H) & (columns[None, :] < HALF)
    at = x_ptr + b * stride_b + heads[:, None] * stride_h + s * stride_s + columns[None, :]
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    to = out_ptr + ((b * H + heads[:, None]) * S + s) * (2 * HALF) + columns[None, :]
    dtype = out_ptr.dtype.element_ty
    tl.store(to, rounded(low * cos_low - high * sin_low, dtype, INTERPRET), mask=mask)
    tl.store(to + HALF, rounded(high * cos_high + low * sin_high, dtype, INTERPRET), mask=mask)


def rope_triton(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (B, H, S, D) with the kernel; the caller has checked the operands."""
    B, H, S, D = x.shape
    x = x if x.stride(3) == 1 else x.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    out = torch.empty((B, H, S, D), dtype=x.dtype, device=x.device)
    if D == 0:
        return out
    block = triton.next_power_of_2(D // 2)
    block_h = max(1, min(triton.next_power_of_2(H), _TILE_ELEMENTS // block))
    launch(
        rope_kernel, (B * S, triton.cdiv(H, block_h)), x, cos, sin, out, H, S, *x.stride()[:3],
        IS_ANGLE_SHARED=cos.shape[0] == 1, HALF=D // 2, BLOCK_H=block_h, BLOCK=block, INTERPRET=IS_INTERPRETED,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
