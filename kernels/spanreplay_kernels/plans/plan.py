"""Reduction plans: everything that decides the order in which a result is added up.

Floating-point addition is not associative, so a row keeps its bits in every batch if, and only if, its terms are
always added in the same order. That order is a plan. A plan is made from the shape of the *weights* and from the
processor; its type has no field for the number of rows, so no batch can change it. Parameters outside the plan (rows
per program, pipeline stages, number of programs) don't affect the order of additions, and may be tuned freely.

One plan drives the reference, the CPU kernel and the Triton kernel of an operation.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plans.arch import CPU, Arch, Mma

__all__ = ["AttentionPlan", "MatmulPlan", "Plan", "RowPlan", "hash_plans", "plan"]

DTYPES: Final = ("bfloat16", "float16", "float32")
FP8: Final = "float8_e4m3fn"
FP8_GROUP: Final = 128
"""Elements of K that are multiplied before scaling: one tensor core sum, with at most one scale."""
_ROW_REGISTERS_MAX: Final = 32_768
"""Elements of one row that 32 warps hold in registers, 32 per thread; with twice as many every architecture spills."""
_ROW_BLOCK: Final = 16_384
"""The block of longer rows: two programs of 16 warps fit a multiprocessor, so one can read while the other adds."""
_TILE_ELEMENTS: Final = 2048
"""Elements in a tile of short rows: 16 per thread of 4 warps."""
_CPU_ROWS: Final = 16
_CPU_QUERY_ROWS: Final = 32
_SEGMENT_K_MIN: Final = 512
_SEGMENTS_MAX: Final = 16


@dataclass(frozen=True)
class MatmulPlan:
    """x (·, K) times w (K, N), added up as `segments` sums of `segment_k` terms each; these are added in order.

    Within a segment the products are added `block_k` at a time, from the first to the last, in fp32.
    """

    n: int
    k: int
    dtype: str
    arch: str
    mma: Mma
    tile_n_min: int
    """The fewest columns of w in a tile of this instruction class; tiles have multiples of it."""
    block_k: int
    segment_k: int
    segments: int
    cpu_rows: int = 0
    """Rows of the one shape that the CPU's library is called with; 0 on a GPU."""


@dataclass(frozen=True)
class RowPlan:
    """Reduces a row of `width` elements to a value or a row: added up in blocks, from the first to the last."""

    op: str
    width: int
    dtype: str
    arch: str
    block: int
    block_rows: int
    """Rows of a tile: with few columns, several rows keep the threads busy."""
    warps: int
    """Part of the order, like `block_rows`: a block is summed as a tree over the threads that hold it."""

    @property
    def passes(self) -> int:
        """The number of times a row is read: once if it fits into registers, else twice."""
        return 1 if self.width <= self.block else 2


@dataclass(frozen=True)
class AttentionPlan:
    """One query against the keys of its own sequence, in blocks counted from the sequence's first token.

    Blocks of `block_kv` keys form splits of `split_kv` keys; each split starts from zero; splits are merged in order.
    """

    head_dim: int
    dtype: str
    arch: str
    mma: Mma
    block_q: int
    """Query rows of a tile, for prefill and decode alike: one instruction class, one order."""
    block_kv: int
    split_kv: int
    warps: int


Plan = MatmulPlan | RowPlan | AttentionPlan


def plan(op: str, *, dtype: str, arch: Arch = CPU, n: int = 0, k: int = 0, width: int = 0, head_dim: int = 0) -> Plan:
    """Return the reduction plan of an operation.

    op: `matmul` (n, k), `scaled_mm` (n, k) of fp8, `attention` (head_dim), or one of ROW_OPS (width).
    dtype: as torch spells it, e.g. `bfloat16`.
    Raises: UnsupportedInput for an unknown op, dtype or size.
    """
    if op == "matmul":
        return plan_matmul(n, k, dtype, arch)
    if op == "scaled_mm":
        return plan_scaled(n, k, dtype, arch)
    if op == "attention":
        return plan_attention(head_dim, dtype, arch)
    if op in ROW_OPS:
        return plan_rows(op, width, dtype, arch)
    known = ", ".join(("matmul", "scaled_mm", "attention", *ROW_OPS))
    raise UnsupportedInput(op, "no plan for this operation", hint=f"plans exist for {known}")


@functools.lru_cache(maxsize=4096)
def plan_matmul(n: int, k: int, dtype: str, arch: Arch) -> MatmulPlan:
    """Return the plan of x (·, k) times w (k, n)."""
    _check("matmul", dtype, n=n, k=k)
    if arch is CPU:
        # The library sums all of K in its own order, which stays the same because the shape of the call is fixed
        return MatmulPlan(n, k, dtype, arch.name, Mma.VENDOR, n, k, k, 1, _CPU_ROWS)
    mma = Mma.FMA if dtype == "float32" else arch.tensor_core
    # wgmma and tcgen05 take 64 or 128 rows of their left operand; that is why w is on the left rather than the tokens
    tile_n_min = 128 if mma is Mma.TCGEN05 else 64
    block_k = 32 if mma is Mma.FMA else 64
    segments = _count_segments(_divide_up(n, tile_n_min), k, arch)
    segment_k = _round_up(_divide_up(k, segments), block_k)
    return MatmulPlan(n, k, dtype, arch.name, mma, tile_n_min, block_k, segment_k, _divide_up(k, segment_k))


@functools.lru_cache(maxsize=4096)
def plan_scaled(n: int, k: int, dtype: str, arch: Arch) -> MatmulPlan:
    """Return the plan of scaled fp8 x (·, k) times w (k, n): each block of K is summed by itself, then scaled."""
    _check("scaled_mm", dtype, (FP8,), n=n, k=k)
    if arch is CPU:
        return MatmulPlan(n, k, dtype, arch.name, Mma.VENDOR, n, k, k, 1, _CPU_ROWS)
    if arch.capability < 89:
        problem = f"{arch.name} multiplies no fp8"
        raise UnsupportedInput("scaled_mm", problem, hint="load the model dequantised, or use sm_89 and later")
    tile_n_min = 128 if arch.tensor_core is Mma.TCGEN05 else 64
    segments = _count_segments(_divide_up(n, tile_n_min), k, arch)
    segment_k = _round_up(_divide_up(k, segments), FP8_GROUP)
    segments = _divide_up(k, segment_k)
    return MatmulPlan(n, k, dtype, arch.name, arch.tensor_core, tile_n_min, FP8_GROUP, segment_k, segments)


def _count_segments(tiles: int, k: int, arch: Arch) -> int:
    """Return enough segments to give nearly every multiprocessor a tile when rows are few, none too short to pay."""
    segments = 1
    while segments < _SEGMENTS_MAX and tiles * segments < arch.multiprocessors * 3 // 4:
        if k // (segments * 2) < _SEGMENT_K_MIN:
            break
        segments *= 2
    return segments


ROW_OPS: Final = ("rms_norm", "softmax", "log_softmax", "mean", "sum")


@functools.lru_cache(maxsize=4096)
def plan_rows(op: str, width: int, dtype: str, arch: Arch) -> RowPlan:
    """Return the plan of a reduction over rows of `width` elements."""
    _check(op, dtype, width=width)
    block = _power_of_two(width)
    if arch is CPU:
        # One block, added up by halves; no compiler distributes it over threads
        return RowPlan(op, width, dtype, arch.name, block, 1, 1)
    # A norm also holds weights and a residual
    held = _ROW_BLOCK if op == "rms_norm" else _ROW_REGISTERS_MAX
    block = block if block <= held else _ROW_BLOCK
    warps = 4 if block <= 2048 else 8 if block <= 8192 else 16 if block <= 16_384 else 32
    return RowPlan(op, width, dtype, arch.name, block, max(1, _TILE_ELEMENTS // block), warps)


@functools.lru_cache(maxsize=256)
def plan_attention(head_dim: int, dtype: str, arch: Arch) -> AttentionPlan:
    """Return the plan of attention over heads of `head_dim` elements."""
    _check("attention", dtype, head_dim=head_dim)
    if head_dim > 256:
        raise UnsupportedInput("attention", f"head_dim {head_dim} is above 256", hint="no kernel holds such a head")
    if arch is CPU:
        return AttentionPlan(head_dim, dtype, arch.name, Mma.VENDOR, _CPU_QUERY_ROWS, 64, 512, 0)
    mma = Mma.FMA if dtype == "float32" else arch.tensor_core
    block_q, block_kv, warps = _attention_tile(mma, head_dim)
    return AttentionPlan(head_dim, dtype, arch.name, mma, block_q, block_kv, 512, warps)


def _attention_tile(mma: Mma, head_dim: int) -> tuple[int, int, int]:
    """Return (block_q, block_kv, warps): the largest whose sums, weights and addresses stay in registers."""
    size = 0 if head_dim <= 64 else 1 if head_dim <= 128 else 2
    return {
        Mma.FMA: ((16, 16, 4), (16, 32, 8), (16, 32, 8)),
        Mma.MMA_SYNC: ((64, 64, 4), (64, 32, 4), (32, 32, 4)),
        Mma.WGMMA: ((64, 64, 4), (64, 64, 4), (64, 32, 8)),
        Mma.TCGEN05: ((64, 64, 4), (64, 32, 4), (64, 16, 8)),
    }[mma][size]


def hash_plans(*plans: Plan) -> str:
    """Hash plans, in any order; equal hashes mean equal orders of addition. 16 hexadecimal digits."""
    texts = sorted(json.dumps(asdict(each), sort_keys=True, default=_name) for each in plans)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _name(value: object) -> str:
    return value.name if isinstance(value, Enum) else str(value)


def _check(op: str, dtype: str, dtypes: tuple[str, ...] = DTYPES, **sizes: int) -> None:
    if dtype not in dtypes:
        raise UnsupportedInput(op, f"dtype {dtype} has no plan", hint=f"use {', '.join(dtypes)}")
    for name, size in sizes.items():
        if size < 1:
            raise UnsupportedInput(op, f"{name} is {size}", hint=f"{name} must be at least 1")


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _divide_up(a, b) * b


def _power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least `value` and at least 16."""
    return max(16, 1 << (value - 1).bit_length())
