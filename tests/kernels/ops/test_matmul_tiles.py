"""Tiles of products: the number of rows chooses them for speed alone; the order is the plan's, for any weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.samples import DTYPES, name_of, normal
from spanreplay_kernels.ops.matmul import matmul_triton, tile_for
from spanreplay_kernels.plans.arch import ARCHS, CPU, Arch, Mma
from spanreplay_kernels.plans.launch import Launch, captured
from spanreplay_kernels.plans.plan import MatmulPlan, plan_matmul
from support.sampling import sampled

GPUS = [arch for arch in ARCHS.values() if arch is not CPU]
SEGMENT_K_MIN = 512
SEGMENTS_MAX = 16


def launches_of(rows: int, n: int, k: int, dtype: torch.dtype, arch: Arch) -> tuple[MatmulPlan, list[Launch]]:
    """The plan and the kernels that a product of so many rows would start; nothing runs."""
    plan = plan_matmul(n, k, name_of(dtype), arch)
    x, w = (torch.empty(1, *shape, dtype=dtype, device="meta") for shape in ((rows, k), (n, k)))
    with captured() as launches:
        matmul_triton(x, w.transpose(1, 2), None, plan)
    return plan, launches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("K", "may_use_tma"), sampled([(64, True), (1024, True), (1024, False), (64, False)], 2), ids=str
)
def test_k1_a_thousand_rows_have_the_bits_of_one(K: int, may_use_tma: bool, device: str) -> None:
    """The persistent kernel for many rows gives each row the same bits as launches with one, few or some hundred."""
    N, M = 1408, 1100
    x = normal(1, M, K, dtype=torch.float16, device=device)
    w = normal(1, N, K, dtype=torch.float16, device=device, seed=1).transpose(1, 2)
    plan = plan_matmul(N, K, "float16", ARCHS["sm_90"])
    assert plan.segments == K // SEGMENT_K_MIN + (K < SEGMENT_K_MIN)
    assert tile_for(M, plan, by_tma=may_use_tma).is_persistent
    whole = matmul_triton(x, w, None, plan, may_use_tma=may_use_tma)
    for first, end in ((0, 1), (1099, 1100), (500, 516), (1030, 1095), (200, 400)):
        assert not tile_for(end - first, plan, by_tma=may_use_tma).is_persistent
        part = matmul_triton(x[:, first:end], w, None, plan, may_use_tma=may_use_tma)
        assert torch.equal(part, whole[:, first:end]), (first, end)


@pytest.mark.parametrize("arch", GPUS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("N", [4096, 14_336, 28_672])
def test_k1_many_rows_fill_the_gpu_by_tiles_alone(N: int, arch: Arch) -> None:
    """From 1,024 rows on one persistent kernel runs on most multiprocessors, and no sum leaves its block."""
    for rows in (1024, 4096, 5000):
        plan, (only,) = launches_of(rows, N, 4096, torch.bfloat16, arch)
        options = only.options
        assert options["BLOCK_M"] * options["BLOCK_N"] >= (64 * 128 if plan.segments > 1 else 128 * 128)
        tiles = -(-rows // options["BLOCK_M"]) * -(-N // options["BLOCK_N"])
        assert tiles * 4 >= arch.multiprocessors * 3
        assert tile_for(rows, plan, by_tma=arch.has_tma).is_persistent
        assert options["SEGMENTS"] == plan.segments


@pytest.mark.parametrize("arch", GPUS, ids=lambda arch: arch.name)
def test_k1_tiles_that_fill_two_fifths_of_the_gpu_add_their_own_segments(arch: Arch) -> None:
    """Above 64 rows fp32 sums go through memory only if most of the GPU would be idle otherwise."""
    for rows, is_split in ((65, True), (128, True), (1000, False), (1024, False)):
        plan, launches = launches_of(rows, 1024, 4096, torch.bfloat16, arch)
        assert plan.segments > 1
        assert tile_for(rows, plan, by_tma=arch.has_tma).is_split is is_split
        assert len(launches) == (2 if is_split else 1)
        assert launches[0].options["SEGMENTS"] == plan.segments


any_weight = st.tuples(st.integers(1, 200_000), st.integers(1, 60_000))
any_dtype = st.sampled_from(DTYPES)


@settings(max_examples=150, deadline=None)
@given(any_weight, any_dtype, st.integers(1, 64), st.sampled_from(GPUS))
@example((8065, 1024), torch.float32, 1, next(arch for arch in GPUS if arch.name == "sm_120"))  # 127 tiles of 170
def test_k2_any_weight_is_spread_over_the_gpu(
    weight: tuple[int, int], dtype: torch.dtype, rows: int, arch: Arch
) -> None:
    """For few rows and any weight shape, nearly every multiprocessor reads a part, or smaller parts would not pay."""
    plan, launches = launches_of(rows, *weight, dtype, arch)
    reading, *adding = launches
    blocks = 1
    for size in reading.grid:
        blocks *= size
    # Whole blocks of K may give one segment less than requested
    asked = 1 << (plan.segments - 1).bit_length()
    is_busy = blocks * asked >= arch.multiprocessors * 3 // 4 * plan.segments
    assert is_busy or asked == SEGMENTS_MAX or plan.k // (asked * 2) < SEGMENT_K_MIN, (blocks, plan)
    assert len(adding) == (1 if plan.segments > 1 else 0)
    wanted = next(m for m in (16, 32, 64) if rows <= m)
    assert reading.options["BLOCK_M"] == (wanted if plan.mma is not Mma.FMA else 16 if rows <= 16 else 64)


@settings(max_examples=100, deadline=None)
@given(any_weight, any_dtype, st.sampled_from(GPUS))
def test_k2_the_order_of_a_weight_is_the_same_for_every_number_of_rows(
    weight: tuple[int, int], dtype: torch.dtype, arch: Arch
) -> None:
    """The order of additions is the same in every launch from 1 row to 5,000, whatever the tile."""
    orders = set()
    for rows in (1, 16, 17, 64, 65, 200, 1024, 5000):
        _, (first, *_) = launches_of(rows, *weight, dtype, arch)
        orders.add(tuple(first.options[name] for name in ("SEGMENT_K", "SEGMENTS", "BLOCK_K")))
    assert len(orders) == 1


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 150), st.integers(1, 1300), any_dtype, st.integers(1, 64), st.booleans())
def test_k2_few_rows_have_the_bits_of_many_for_any_weight(
    N: int, K: int, dtype: torch.dtype, rows: int, is_transposed: bool
) -> None:
    """The shapes are random, with prime and odd ones, and weights as `linear` passes them and as stored."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, w = normal(1, 90, K, dtype=dtype, device=device), normal(1, K, N, dtype=dtype, device=device, seed=1)
    w = w.transpose(1, 2).contiguous().transpose(1, 2) if is_transposed else w
    plan = plan_matmul(N, K, name_of(dtype), ARCHS["sm_90"])
    few, many = (matmul_triton(each, w, None, plan) for each in (x[:, 90 - rows :], x))
    assert torch.equal(few, many[:, 90 - rows :])
