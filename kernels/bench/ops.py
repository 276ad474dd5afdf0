"""The measured cases: each requirement's operations at their shapes, beside those of torch and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bench.anchors import SDPA, decode_anchors, norm_anchors, product_anchors, row_anchors, sdpa_calls
from spanreplay_kernels.ops._tile import IS_INTERPRETED
from spanreplay_kernels.plans.arch import ARCHS, Arch, arch_of

__all__ = ["SECTIONS", "Case", "Place"]

Call = Callable[[], object]
Calls = dict[str, Call]


_ROWS_BYTES_MAX: Final = 6 * 2**30
"""The most bytes of a case's input; its results take twice that."""


class Case(NamedTuple):
    """One operation at one shape."""

    row: str
    """The requirement: `K1`."""
    op: str
    shape: str
    build: Callable[[], Calls]
    """Makes new operands and returns `ours` and the others' calls; allocates nothing before it is called."""
    rivals: tuple[str, ...]
    """The others of which the requirement compares with the fastest."""
    bytes: int = 0
    """The bytes that must be moved, if bandwidth is the limit."""
    flops: int = 0

    @property
    def name(self) -> str:
        """The name, unique within its section."""
        return f"{self.op} {self.shape}"


class Place(NamedTuple):
    """The device to measure on, and whether the run is quick."""

    device: torch.device
    is_quick: bool

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Return a normally distributed operand."""
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype)

    @property
    def arch(self) -> Arch | None:
        """The GPU's architecture; sm_90 if kernels are interpreted; None if none can run."""
        if self.device.type in ("cuda", "meta"):
            return arch_of(self.device)
        return ARCHS["sm_90"] if IS_INTERPRETED else None


def _products(row: str, place: Place, sizes: tuple[int, ...]) -> Iterator[Case]:
    shapes = ((4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336), (1024, 4096), (151_936, 4096))
    for N, K in ((96, 128),) if place.is_quick else shapes:
        for M in sizes:
            yield Case(
                row, "matmul", f"M={M} N={N} K={K}", partial(_product, place, M, N, K), ("torch.mm",),
                2 * (M * K + N * K + M * N), 2 * M * N * K,
            )  # fmt: skip


def _product(place: Place, M: int, N: int, K: int) -> Calls:
    from spanreplay_kernels.ops.matmul import linear

    x, w = place.normal(M, K), place.normal(N, K)
    return {"ours": partial(linear, x, w), "torch.mm": partial(torch.mm, x, w.t()), **product_anchors(x, w)}


def many_rows(place: Place) -> Iterator[Case]:
    """K1: products limited by arithmetic."""
    yield from _products("K1", place, (40,) if place.is_quick else (1024, 2048, 4096, 8192))


def few_rows(place: Place) -> Iterator[Case]:
    """K2: products limited by the weight's bytes."""
    yield from _products("K2", place, (1, 5) if place.is_quick else (1, 4, 16, 32, 64, 128, 256))


def norms(place: Place) -> Iterator[Case]:
    """K3: the norm, with and without the residual sum."""
    for width in (64,) if place.is_quick else (2048, 4096, 8192, 16_384):
        for M in (3,) if place.is_quick else (16, 512, 4096, 16_384):
            at = f"M={M} width={width}"
            moved = 2 * 4 * M * width
            yield Case("K3", "rms_norm_residual", at, partial(_norm, place, M, width, True), ("torch",), moved)
            yield Case("K3", "rms_norm", at, partial(_norm, place, M, width, False), ("torch",), moved // 2)


def _norm(place: Place, M: int, width: int, has_residual: bool) -> Calls:
    from spanreplay_kernels.ops.rms_norm import rms_norm, rms_norm_residual

    x, weight = place.normal(M, width), place.normal(width)
    if not has_residual:
        stock = partial(functional.rms_norm, x, (width,), weight, 1e-6)
        return {
            "ours": partial(rms_norm, x, weight, 1e-6),
            "torch": stock,
            **norm_anchors(x, weight, None, 1e-6),
        }
    residual = place.normal(M, width)
    ours = partial(rms_norm_residual, x, residual, weight, 1e-6)
    stock_of_sum = partial(_norm_of_sum, x, residual, weight)
    return {"ours": ours, "torch": stock_of_sum, **norm_anchors(x, weight, residual, 1e-6)}


def _norm_of_sum(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return functional.rms_norm(total, weight.shape, weight, 1e-6), total


def rows(place: Place) -> Iterator[Case]:
    """K4: softmax, log-probabilities and means."""
    for width in (100,) if place.is_quick else (4096, 32_000, 151_936):
        for M in (3,) if place.is_quick else (512, 16_384):
            size = M * width * 2
            if size > _ROWS_BYTES_MAX:
                continue
            for op, count in (("softmax", 2), ("log_softmax", 2), ("mean", 1), ("gather_logprob", 1)):
                build = partial(_row, place, op, M, width)
                yield Case("K4", op, f"M={M} width={width}", build, ("torch",), count * size)


def _row(place: Place, op: str, M: int, width: int) -> Calls:
    from spanreplay_kernels.ops.mean import mean
    from spanreplay_kernels.ops.softmax import gather_logprob, log_softmax, softmax

    x = place.normal(M, width)
    ids = torch.randint(0, width, (M, 1), device=place.device)
    ours, stock = {
        "softmax": (partial(softmax, x), partial(torch.softmax, x, -1)),
        "log_softmax": (partial(log_softmax, x), partial(torch.log_softmax, x, -1)),
        "mean": (partial(mean, x, -1), partial(torch.mean, x, -1)),
        "gather_logprob": (partial(gather_logprob, x, ids), partial(_gather, x, ids)),
    }[op]
    return {"ours": ours, "torch": stock, **row_anchors(op, x)}


def _gather(x: Tensor, ids: Tensor) -> Tensor:
    result: Tensor = torch.log_softmax(x.float(), -1).gather(-1, ids)
    return result


def decode(place: Place) -> Iterator[Case]:
    """K5: one query per sequence against pages of keys."""
    heads, kv_heads, D = (4, 2, 16) if place.is_quick else (32, 8, 128)
    for B in (1, 2) if place.is_quick else (1, 8, 64):
        for L in (40,) if place.is_quick else (4096, 16_384):
            shape = f"B={B} L={L} heads={heads}/{kv_heads} D={D}"
            build = partial(_decode, place, B, L, heads, kv_heads, D)
            rivals = ("sdpa", *SDPA, "FlashAttention-3", "FlashInfer")
            yield Case("K5", "paged_attention", shape, build, rivals, 2 * 2 * B * L * kv_heads * D)


def _decode(place: Place, B: int, L: int, heads: int, kv_heads: int, D: int, page: int = 16) -> Calls:
    from spanreplay_kernels.ops.attention import paged_attention

    pages = -(-L // page)
    keys, values = (place.normal(B * pages, page, kv_heads, D) for _ in range(2))
    table = torch.arange(B * pages, device=place.device, dtype=torch.int32).view(B, pages)
    lengths = torch.full((B,), L, device=place.device, dtype=torch.int32)
    q = place.normal(B, heads, D)
    dense = [each.view(B, pages * page, kv_heads, D)[:, :L].transpose(1, 2) for each in (keys, values)]
    return {
        "ours": partial(paged_attention, q, keys, values, table, lengths, max_len_k=L),
        **sdpa_calls(q[:, :, None], *dense, is_causal=False),
        **decode_anchors(q, (keys, values), table, lengths, L),
    }


def prefill(place: Place) -> Iterator[Case]:
    """K6: whole sequences, packed."""
    heads, kv_heads, D = (4, 2, 16) if place.is_quick else (32, 8, 128)
    for B, L in ((2, 40),) if place.is_quick else ((1, 4096), (4, 4096), (16, 1024), (1, 16_384)):
        shape = f"B={B} L={L} heads={heads}/{kv_heads} D={D}"
        build = partial(_prefill, place, B, L, heads, kv_heads, D)
        yield Case("K6", "attention", shape, build, ("sdpa", *SDPA), 0, 2 * B * L * L * heads * D)


def _prefill(place: Place, B: int, L: int, heads: int, kv_heads: int, D: int) -> Calls:
    from spanreplay_kernels.ops.attention import attention

    q, k, v = (place.normal(B * L, h, D) for h in (heads, kv_heads, kv_heads))
    ends = torch.arange(B + 1, device=place.device, dtype=torch.int32) * L
    dense = [each.view(B, L, -1, D).transpose(1, 2) for each in (q, k, v)]
    ours = partial(attention, q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, max_len_k=L)
    return {"ours": ours, **sdpa_calls(dense[0], dense[1], dense[2], is_causal=True)}


def experts(place: Place) -> Iterator[Case]:
    """K7: products of groups of rows."""
    E, N, K, top_k = (4, 32, 64, 2) if place.is_quick else (128, 1536, 2048, 8)
    for tokens in (3,) if place.is_quick else (1, 16, 64, 512, 4096):
        shape = f"tokens={tokens} experts={top_k}/{E} N={N} K={K}"
        build = partial(_experts, place, tokens, E, N, K, top_k)
        yield Case("K7", "grouped_mm", shape, build, ("torch._grouped_mm",), 0, 2 * tokens * top_k * N * K)


def _experts(place: Place, tokens: int, E: int, N: int, K: int, top_k: int) -> Calls:
    from spanreplay_kernels.ops.grouped import grouped_mm

    w = place.normal(E, N, K).transpose(1, 2)
    chosen = torch.stack([torch.randperm(E)[:top_k] for _ in range(tokens)]).flatten()
    ends = torch.bincount(chosen, minlength=E).cumsum(0).to(torch.int32).to(place.device)
    x = place.normal(tokens * top_k, K)
    return {"ours": partial(grouped_mm, x, w, ends), "torch._grouped_mm": partial(torch._grouped_mm, x, w, ends)}


def fp8(place: Place) -> Iterator[Case]:
    """fp8 products with a scale per row, with few and many rows; they have no requirement of their own."""
    if place.arch is not None and place.arch.capability < 89:
        return
    N, K = (32, 256) if place.is_quick else (4096, 4096)
    for M in (3,) if place.is_quick else (1, 16, 64, 1024, 4096):
        moved = M * K + N * K + 2 * M * N
        build = partial(_fp8, place, M, N, K)
        yield Case("fp8", "scaled_mm", f"M={M} N={N} K={K}", build, ("torch._scaled_mm",), moved, 2 * M * N * K)


def _fp8(place: Place, M: int, N: int, K: int) -> Calls:
    from spanreplay_kernels.ops.scaled import quantize, quantize_weight, scaled_mm

    w, w_scale = quantize_weight(place.normal(K, N))
    x, scale = quantize(place.normal(M, K))
    stock = partial(torch._scaled_mm, x, w, scale, w_scale.contiguous(), out_dtype=torch.bfloat16)
    return {"ours": partial(scaled_mm, x, w, scale, w_scale), "torch._scaled_mm": stock}


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
"""In the order of measurement: the requirements that are hardest to meet come first."""
