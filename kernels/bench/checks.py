"""Invariants that only a GPU can show; its times mean nothing unless they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch import Tensor

from bench.ops import Place
from spanreplay_kernels.ops.matmul import linear, matmul_ref, matmul_triton
from spanreplay_kernels.plans.arch import arch_of
from spanreplay_kernels.plans.operands import dtype_name
from spanreplay_kernels.plans.plan import plan_matmul
from spanreplay_kernels.proof.certify import FULL, QUICK, Extent

__all__ = ["CHECKS", "Certificate", "Finding", "certificates"]


class Finding(NamedTuple):
    """One comparison."""

    what: str
    holds: Callable[[], bool]
    """Compares the computed results."""


class Certificate(NamedTuple):
    """A certificate to make."""

    op: str
    shape: str
    dtype: torch.dtype
    extent: Extent

    @property
    def name(self) -> str:
        """The name, unique within the section."""
        return f"{self.op} {self.shape} {str(self.dtype).removeprefix('torch.')}"


def certificates(place: Place) -> Iterator[Certificate]:
    """Yield the certificates to make, the shapes of 8B models first."""
    subjects = (
        ("matmul", "4096x4096", torch.bfloat16),
        ("matmul", "1024x4096", torch.bfloat16),
        ("matmul", "28672x4096", torch.bfloat16),
        ("rms_norm", "4096", torch.bfloat16),
        ("grouped_mm", "16x1536x2048", torch.bfloat16),
        ("log_softmax", "151936", torch.float32),
        ("softmax", "4096", torch.bfloat16),
        ("mean", "4096", torch.float32),
        ("matmul", "6144x4096", torch.float16),
        ("matmul", "1000x1100", torch.bfloat16),
        ("matmul", "1024x1024", torch.float32),
    )
    some = (
        ("attention", "32x8x128x4096", torch.bfloat16),
        ("scaled_mm", "4096x4096", torch.bfloat16),
        ("scaled_mm_blocks", "1024x4096", torch.bfloat16),
        ("experts", "8x768x2048x2", torch.bfloat16),
        ("route", "128x8", torch.float32),
        ("gather_logprob", "151936", torch.bfloat16),
        ("silu_mul", "14336", torch.bfloat16),
        ("rope", "32x128", torch.bfloat16),
        ("sample", "151936", torch.float32),
    )
    small = (("matmul", "24x96", torch.float32), ("attention", "4x2x16x96", torch.bfloat16))
    for op, shape, dtype in () if place.is_quick else subjects:
        yield Certificate(op, shape, dtype, FULL)
    # A run has only minutes on a GPU, so these try few sizes; `certify` tries all
    for op, shape, dtype in small if place.is_quick else some:
        yield Certificate(op, shape, dtype, QUICK)


def reading_agrees(place: Place) -> Iterator[Finding]:
    """Check that loading by TMA and by pointers, and every class of tiles, give the same bits."""
    arch = place.arch
    if arch is None:
        return
    sizes = (1, 70) if place.is_quick else (1, 17, 40, 65, 129, 300, 700, 1100, 2050)
    for N, K in ((72, 136),) if place.is_quick else ((4096, 4096), (1024, 4096), (28_672, 4096), (1000, 1112)):
        for is_transposed in (True, False):
            w = place.normal(1, N, K).transpose(1, 2) if is_transposed else place.normal(1, K, N)
            x = place.normal(1, max(sizes), K)
            plan = plan_matmul(N, K, "bfloat16", arch)
            whole = matmul_triton(x, w, None, plan)
            for rows in sizes:
                for may_use_tma in (True, False):
                    part = matmul_triton(x[:, :rows], w, None, plan, may_use_tma=may_use_tma)
                    what = f"N={N} K={K} {'rows of K' if is_transposed else 'rows of N'} M={rows} tma={may_use_tma}"
                    yield Finding(what, partial(torch.equal, part, whole[:, :rows]))


def plan_is_followed(place: Place) -> Iterator[Finding]:
    """Check that products match their definition, within the rounding of one instruction."""
    for N, K in ((24, 96),) if place.is_quick else ((1024, 4096), (4096, 4096)):
        for dtype in (torch.bfloat16, torch.float32):
            x, w = place.normal(70, K, dtype=dtype), place.normal(N, K, dtype=dtype)
            expected = matmul_ref(x, w.t(), plan_matmul(N, K, dtype_name(x), arch_of(place.device)))
            yield Finding(f"N={N} K={K} {dtype_name(x)}", partial(_is_near, linear(x, w), expected))


def _is_near(found: Tensor, expected: Tensor) -> bool:
    off = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    return float(off) < 0.01


def groups_agree(place: Place) -> Iterator[Finding]:
    """Check that a row of a group has the bits of the product with its group's weight."""
    from spanreplay_kernels.ops.grouped import grouped_mm

    E, N, K, T = (3, 16, 32, 9) if place.is_quick else (16, 1536, 2048, 300)
    w, x = place.normal(E, N, K), place.normal(T, K)
    ends = [T * (e + 1) // E for e in range(E)]
    together = grouped_mm(x, w.transpose(1, 2), torch.tensor(ends, dtype=torch.int32, device=place.device))
    start = 0
    for e, end in enumerate(ends):
        yield Finding(f"group {e}", partial(torch.equal, together[start:end], linear(x[start:end], w[e])))
        start = end


def decode_agrees(place: Place) -> Iterator[Finding]:
    """Check that a sequence's last query has the same bits in a prefill and alone."""
    from spanreplay_kernels.ops.attention import attention

    heads, kv_heads, D, L = (4, 2, 16, 40) if place.is_quick else (32, 8, 128, 3000)
    q, k, v = (place.normal(L, h, D) for h in (heads, kv_heads, kv_heads))

    def ends(*lengths: int) -> Tensor:
        return torch.tensor([0, *lengths], dtype=torch.int32, device=place.device)

    whole = attention(q, k, v, cu_seqlens_q=ends(L), cu_seqlens_k=ends(L))
    for at in sorted({0, 1, L // 3, L // 2, L - 2, L - 1}):
        n = at + 1
        alone = attention(q[at:n], k[:n], v[:n], cu_seqlens_q=ends(1), cu_seqlens_k=ends(n))
        yield Finding(f"query {at} of {L}", partial(torch.equal, alone, whole[at:n]))


CHECKS: Final = MappingProxyType[str, Callable[[Place], Iterator[Finding]]](
    {
        "reading agrees": reading_agrees,
        "plan is followed": plan_is_followed,
        "groups agree": groups_agree,
        "decode agrees": decode_agrees,
    }
)
