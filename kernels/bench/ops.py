"""What is measured: each requirement's operations at their shapes, beside what torch and others offer for the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from spanreplay_kernels.arch import ARCHS, Arch, arch_of
from spanreplay_kernels.ops._tile import IS_INTERPRETED

__all__ = ["SECTIONS", "Case", "Place"]

Call = Callable[[], object]
Calls = dict[str, Call]


class Case(NamedTuple):
    """One operation at one shape."""

    row: str
    """Of the requirements: `K1`."""
    op: str
    shape: str
    ours: Call
    others: Calls
    """Name → the same by another library; the first is what the requirement compares with."""
    bytes: int = 0
    """That have to be moved, where that is what limits."""
    flops: int = 0


class Place(NamedTuple):
    """Where it is measured, and how much."""

    device: torch.device
    is_quick: bool

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Normally distributed operands."""
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype)

    @property
    def arch(self) -> Arch | None:
        """Of the GPU; one that has all where kernels are interpreted; None where none can run."""
        if self.device.type == "cuda":
            return arch_of(self.device)
        return ARCHS["sm_90"] if IS_INTERPRETED else None


def _persistent() -> Callable[..., Tensor] | None:
    """thinking-machines-lab/batch_invariant_ops, where it is installed."""
    try:
        found: Callable[..., Tensor] = importlib.import_module("batch_invariant_ops").matmul_persistent
    except ImportError:
        return None
    return found


def _products(row: str, place: Place, sizes: tuple[int, ...]) -> Iterator[Case]:
    from spanreplay_kernels.ops.matmul import linear

    persistent = _persistent()
    shapes = ((4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336), (1024, 4096), (151_936, 4096))
    for N, K in ((96, 128),) if place.is_quick else shapes:
        w = place.normal(N, K)
        for M in sizes:
            x = place.normal(M, K)
            others: Calls = {"torch.mm": partial(torch.mm, x, w.t())}
            if persistent is not None:
                others["batch_invariant_ops"] = partial(persistent, x, w.t())
            yield Case(
                row, "matmul", f"M={M} N={N} K={K}", partial(linear, x, w), others,
                2 * (M * K + N * K + M * N), 2 * M * N * K,
            )  # fmt: skip


def many_rows(place: Place) -> Iterator[Case]:
    """K1: products that are limited by arithmetic."""
    yield from _products("K1", place, (40,) if place.is_quick else (1024, 2048, 4096, 8192))


def few_rows(place: Place) -> Iterator[Case]:
    """K2: products that are limited by the weight's bytes."""
    yield from _products("K2", place, (1, 5) if place.is_quick else (1, 4, 16, 32, 64, 128, 256))


def norms(place: Place) -> Iterator[Case]:
    """K3: the norm with its residual sum."""
    from spanreplay_kernels.ops.rms_norm import rms_norm, rms_norm_residual

    for width in (64,) if place.is_quick else (2048, 4096, 8192, 16_384):
        weight = place.normal(width)
        for M in (3,) if place.is_quick else (16, 512, 4096, 16_384):
            x, residual = place.normal(M, width), place.normal(M, width)
            at = f"M={M} width={width}"
            yield Case(
                "K3", "rms_norm_residual", at, partial(rms_norm_residual, x, residual, weight, 1e-6),
                {"torch": partial(_norm_of_sum, x, residual, weight)}, 2 * 4 * M * width,
            )  # fmt: skip
            stock: Calls = {"torch": partial(functional.rms_norm, x, (width,), weight, 1e-6)}
            yield Case("K3", "rms_norm", at, partial(rms_norm, x, weight, 1e-6), stock, 2 * 2 * M * width)


def _norm_of_sum(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return functional.rms_norm(total, weight.shape, weight, 1e-6), total


def rows(place: Place) -> Iterator[Case]:
    """K4: softmax, log-probabilities and means."""
    from spanreplay_kernels.ops.mean import mean
    from spanreplay_kernels.ops.softmax import gather_logprob, log_softmax, softmax

    for width in (100,) if place.is_quick else (4096, 32_000, 151_936):
        M = 3 if place.is_quick else 512
        x = place.normal(M, width)
        ids = torch.randint(0, width, (M, 1), device=place.device)
        at, size = f"M={M} width={width}", x.numel() * 2
        pairs: dict[str, tuple[Call, Call, int]] = {
            "softmax": (partial(softmax, x), partial(torch.softmax, x, -1), 2 * size),
            "log_softmax": (partial(log_softmax, x), partial(torch.log_softmax, x, -1), 2 * size),
            "mean": (partial(mean, x, -1), partial(torch.mean, x, -1), size),
            "gather_logprob": (partial(gather_logprob, x, ids), partial(_gather, x, ids), size),
        }
        for op, (ours, stock, count) in pairs.items():
            yield Case("K4", op, at, ours, {"torch": stock}, count)


def _gather(x: Tensor, ids: Tensor) -> Tensor:
    result: Tensor = torch.log_softmax(x.float(), -1).gather(-1, ids)
    return result


def decode(place: Place) -> Iterator[Case]:
    """K5: one query a sequence against pages of keys."""
    from spanreplay_kernels.ops.attention import paged_attention

    heads, kv_heads, D, page = (4, 2, 16, 16) if place.is_quick else (32, 8, 128, 16)
    for B in (1, 2) if place.is_quick else (1, 8, 64):
        for L in (40,) if place.is_quick else (4096, 16_384):
            pages = -(-L // page)
            cache = [place.normal(B * pages, page, kv_heads, D) for _ in range(2)]
            table = torch.arange(B * pages, device=place.device, dtype=torch.int32).view(B, pages)
            lengths = torch.full((B,), L, device=place.device, dtype=torch.int32)
            q = place.normal(B, heads, D)
            dense = [each.view(B, pages * page, kv_heads, D)[:, :L].transpose(1, 2) for each in cache]
            others: Calls = {"sdpa": partial(_sdpa, q[:, :, None], *dense, is_causal=False)}
            ours = partial(paged_attention, q, cache[0], cache[1], table, lengths, max_len_k=L)
            shape = f"B={B} L={L} heads={heads}/{kv_heads} D={D}"
            yield Case("K5", "paged_attention", shape, ours, others, 2 * 2 * B * L * kv_heads * D)


def prefill(place: Place) -> Iterator[Case]:
    """K6: whole sequences, packed."""
    from spanreplay_kernels.ops.attention import attention

    heads, kv_heads, D = (4, 2, 16) if place.is_quick else (32, 8, 128)
    for B, L in ((2, 40),) if place.is_quick else ((1, 4096), (4, 4096), (16, 1024), (1, 16_384)):
        q, k, v = (place.normal(B * L, h, D) for h in (heads, kv_heads, kv_heads))
        ends = torch.arange(B + 1, device=place.device, dtype=torch.int32) * L
        dense = [each.view(B, L, -1, D).transpose(1, 2) for each in (q, k, v)]
        others: Calls = {"sdpa": partial(_sdpa, *dense, is_causal=True)}
        ours = partial(attention, q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, max_len_k=L)
        shape = f"B={B} L={L} heads={heads}/{kv_heads} D={D}"
        yield Case("K6", "attention", shape, ours, others, 0, 2 * B * L * L * heads * D)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    result: Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    return result


def experts(place: Place) -> Iterator[Case]:
    """K7: products of groups of rows."""
    from spanreplay_kernels.ops.grouped import grouped_mm

    E, N, K, top_k = (4, 32, 64, 2) if place.is_quick else (128, 1536, 2048, 8)
    w = place.normal(E, N, K).transpose(1, 2)
    for tokens in (3,) if place.is_quick else (1, 16, 64, 512, 4096):
        chosen = torch.stack([torch.randperm(E)[:top_k] for _ in range(tokens)]).flatten()
        ends = torch.bincount(chosen, minlength=E).cumsum(0).to(torch.int32).to(place.device)
        x = place.normal(tokens * top_k, K)
        others: Calls = {"torch._grouped_mm": partial(torch._grouped_mm, x, w, ends)}
        shape = f"tokens={tokens} experts={top_k}/{E} N={N} K={K}"
        yield Case("K7", "grouped_mm", shape, partial(grouped_mm, x, w, ends), others, 0, 2 * x.shape[0] * N * K)


def fp8(place: Place) -> Iterator[Case]:
    """Products of fp8 with a scale for each row, few and many; of no requirement of their own."""
    from spanreplay_kernels.ops.scaled import quantize, quantize_weight, scaled_mm

    if place.arch is not None and place.arch.capability < 89:
        return
    N, K = (32, 256) if place.is_quick else (4096, 4096)
    w, w_scale = quantize_weight(place.normal(K, N))
    for M in (3,) if place.is_quick else (1, 16, 64, 1024, 4096):
        x, scale = quantize(place.normal(M, K))
        stock = partial(torch._scaled_mm, x, w, scale, w_scale.contiguous(), out_dtype=torch.bfloat16)
        ours = partial(scaled_mm, x, w, scale, w_scale)
        moved = M * K + N * K + 2 * M * N
        yield Case("fp8", "scaled_mm", f"M={M} N={N} K={K}", ours, {"torch._scaled_mm": stock}, moved, 2 * M * N * K)


SECTIONS: Final = MappingProxyType(
    {
        "K2": few_rows,
        "K1": many_rows,
        "K5": decode,
        "K6": prefill,
        "K3": norms,
        "K4": rows,
        "K7": experts,
        "fp8": fp8,
    }
)
"""In the order in which they are measured: what is hardest to reach comes first."""
