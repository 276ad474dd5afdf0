"""Matrix products: a row's bits don't depend on its batch, on the CPU and in the kernels."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, EDGES, name_of, normal, ulps_from, with_hostile_neighbours
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops import _matmul_tma as tma
from spanreplay_kernels.ops.matmul import bmm, linear, matmul, matmul_ref, matmul_triton, tile_for
from spanreplay_kernels.plans.arch import ARCHS, CPU
from spanreplay_kernels.plans.plan import plan_matmul

SHAPES = ((72, 1100), (64, 96))
"""(N, K): two segments and two tiles with ragged ends; exactly one tile."""


def by_kernels(x: Tensor, w: Tensor, bias: Tensor | None = None, arch: str = "sm_90") -> Tensor:
    """The product by the Triton kernels."""
    plan = plan_matmul(w.shape[1], x.shape[1], name_of(x.dtype), ARCHS[arch])
    return matmul_triton(x[None], w[None], bias, plan)[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_k9_kernels_give_a_row_its_bits_in_every_batch(N: int, K: int, dtype: torch.dtype, device: str) -> None:
    """For all numbers of rows around tile sizes, a part of a batch has the bits of the whole."""
    x, w = normal(130, K, dtype=dtype, device=device), normal(N, K, dtype=dtype, device=device, seed=1).t()
    whole = by_kernels(x, w)
    for rows in EDGES if K < 1000 else (1, 16, 33, 65, 129):
        start = (130 - rows) // 2
        assert torch.equal(by_kernels(x[start : start + rows], w), whole[start : start + rows]), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k9_hostile_neighbours_change_nothing(dtype: torch.dtype, device: str) -> None:
    """NaN, Inf, huge and denormal rows beside a row don't change its bits, in the kernels and on the CPU."""
    x, w = normal(20, 1100, dtype=dtype), normal(1100, 72, dtype=dtype, seed=1)
    for row in (0, 7, 19):
        hostile = with_hostile_neighbours(x, row)
        assert torch.equal(matmul(hostile, w)[row], matmul(x, w)[row])
        kernels = [by_kernels(each.to(device), w.to(device))[row] for each in (hostile, x)]
        assert torch.equal(*kernels)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_k9_kernels_follow_the_plan(N: int, K: int, dtype: torch.dtype, device: str) -> None:
    """The kernels add in the order of the definition."""
    x, w = normal(70, K, dtype=dtype, device=device), normal(K, N, dtype=dtype, device=device, seed=1)
    bias = normal(N, dtype=dtype, device=device, seed=2)
    expected = matmul_ref(x, w, plan_matmul(N, K, name_of(dtype), ARCHS["sm_90"]), bias)
    # The interpreter's cast is ours; a GPU's single-instruction product has its own rounding
    torch.testing.assert_close(by_kernels(x, w, bias), expected, rtol=torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k9_product_is_within_one_ulp(dtype: torch.dtype, device: str) -> None:
    """Sums are in fp32 and rounded once: within 1 ulp of fp64 if the dtype is narrower than the sum."""
    x, w = normal(33, 512, dtype=dtype).abs(), normal(512, 48, dtype=dtype, seed=1).abs()
    exact = x.double() @ w.double()
    limit = 1.0 if dtype is not torch.float32 else 8.0
    assert ulps_from(exact, by_kernels(x.to(device), w.to(device)).cpu()) <= limit
    assert ulps_from(exact, matmul(x, w)) <= limit


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_k11_cpu_gives_a_row_its_bits_in_every_batch(N: int, K: int, dtype: torch.dtype) -> None:
    """All numbers of rows from 1 to 130 are tried, from every tenth place of the batch."""
    x, w = normal(140, K, dtype=dtype), normal(N, K, dtype=dtype, seed=1).t()
    whole = matmul(x, w)
    for rows in range(1, 131):
        start = rows % 10
        assert torch.equal(matmul(x[start : start + rows], w), whole[start : start + rows]), rows


def test_k9_stock_product_is_caught_by_the_same_check() -> None:
    """Negative control: torch's own product fails the check that ours passes."""
    x, w = normal(140, 2048, dtype=torch.float32), normal(2048, 2048, dtype=torch.float32, seed=1)
    whole = x @ w
    assert not all(torch.equal(x[:rows] @ w, whole[:rows]) for rows in (1, 2, 7, 33))


@pytest.mark.parametrize("M", [5, 70])
def test_k9_another_order_gives_other_bits(M: int, device: str) -> None:
    """Negative control: the same kernels with a plan of one segment differ, so the order does matter."""
    x, w = (
        normal(1, M, 1100, dtype=torch.float32, device=device),
        normal(1, 1100, 8, dtype=torch.float32, device=device),
    )
    plan = plan_matmul(8, 1100, "float32", ARCHS["sm_90"])
    other = dataclasses.replace(plan, segments=1, segment_k=1120)
    assert plan.segments == 2
    assert not torch.equal(matmul_triton(x, w, None, plan), matmul_triton(x, w, None, other))


def test_k9_layout_of_operands_changes_nothing(device: str) -> None:
    """Transposed, strided and unaligned operands with the same values give the same bits."""
    x = normal(40, 300, dtype=torch.float32, device=device)
    w = normal(300, 70, dtype=torch.float32, device=device, seed=1)
    strided, transposed = torch.empty(40, 600, device=device)[:, ::2], torch.empty(300, 40, device=device).t()
    unaligned = torch.empty(40 * 300 + 1, device=device)[1:].view(40, 300)
    expected, expected_kernels = matmul(x, w), by_kernels(x, w)
    for other in (strided, transposed, unaligned):
        other.copy_(x)
        assert torch.equal(matmul(other, w), expected)
        assert torch.equal(by_kernels(other, w), expected_kernels)


def test_k9_batched_product_is_that_of_each(device: str) -> None:
    """A batch of products has the bits of each product alone."""
    x = normal(5, 9, 130, dtype=torch.float32, device=device)
    w = normal(5, 130, 70, dtype=torch.float32, device=device, seed=1)
    together = bmm(x, w)
    plan = plan_matmul(70, 130, "float32", ARCHS["sm_90"])
    together_kernels = matmul_triton(x, w, None, plan)
    for b in range(5):
        assert torch.equal(together[b], bmm(x[b : b + 1], w[b : b + 1])[0])
        assert torch.equal(together_kernels[b], by_kernels(x[b], w[b]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("is_transposed", [True, False], ids=["rows of K", "rows of N"])
@pytest.mark.parametrize("M", [3, 65])
def test_k9_reading_by_the_copy_engine_changes_nothing(
    M: int, is_transposed: bool, dtype: torch.dtype, device: str
) -> None:
    """Pointers and descriptors give the same result, with ragged ends of N and K too."""
    x, w = normal(1, M, 1112, dtype=dtype, device=device), normal(1, 1112, 72, dtype=dtype, device=device, seed=1)
    w = w.transpose(1, 2).contiguous().transpose(1, 2) if is_transposed else w
    plan = plan_matmul(72, 1112, name_of(dtype), ARCHS["sm_90"])
    assert plan.segments == 2
    assert tma.is_readable(w, plan)
    by_pointers = matmul_triton(x, w, None, plan, may_use_tma=False)
    assert torch.equal(matmul_triton(x, w, None, plan), by_pointers)


@pytest.mark.parametrize("is_transposed", [True, False], ids=["rows of K", "rows of N"])
def test_k9_copy_engine_keeps_products_of_a_batch_apart(is_transposed: bool, device: str) -> None:
    """Though weights are read as one matrix, no product sees another's rows or weight, even hostile ones."""
    w = normal(3, 128, 72, dtype=torch.float16, device=device, seed=1)
    x = normal(3, 70, 128, dtype=torch.float16, device=device)
    x[2], w[2] = float("nan"), float("inf")
    w = w.transpose(1, 2).contiguous().transpose(1, 2) if is_transposed else w
    plan = plan_matmul(72, 128, "float16", ARCHS["sm_90"])
    assert tma.is_readable(w, plan)
    together = matmul_triton(x, w, None, plan)
    for b in (0, 1):
        alone = matmul_triton(x[b : b + 1], w[b : b + 1], None, plan, may_use_tma=False)
        assert torch.equal(together[b : b + 1], alone)


def test_k9_weight_alone_says_how_it_is_read() -> None:
    """TMA reads it if its rows are whole 16 bytes, the dtype is narrow and the architecture able; else pointers do."""

    def is_readable(w: Tensor, arch: str = "sm_90") -> bool:
        return tma.is_readable(w, plan_matmul(w.shape[2], w.shape[1], name_of(w.dtype), ARCHS[arch]))

    w = torch.empty(1, 64, 72, dtype=torch.bfloat16)
    assert is_readable(w)
    assert is_readable(torch.empty(1, 72, 64, dtype=torch.bfloat16).transpose(1, 2))
    assert not is_readable(w, "sm_80")
    assert not is_readable(w.float())
    assert not is_readable(w[:, :, ::2])
    assert not is_readable(torch.empty(1, 64, 71, dtype=torch.bfloat16))
    assert not is_readable(torch.empty(1, 63, 72, dtype=torch.bfloat16))
    # After the first weight's last row of K comes the second weight
    assert not is_readable(torch.empty(2, 104, 72, dtype=torch.bfloat16))


def test_large_batch_of_products_fits_into_a_grid() -> None:
    """A grid's last dimension is limited to 65535: with more products than that, none is split."""
    for dtype in ("bfloat16", "float32"):
        plan = plan_matmul(64, 4096, dtype, ARCHS["sm_90"])
        for rows in (1, 16, 64, 100):
            assert tile_for(rows, plan).is_split is (rows <= 64 or dtype == "bfloat16")
            assert not tile_for(rows, plan, batch=65_536).is_split


@pytest.mark.parametrize("rows", [5, 70])
def test_bias_is_added_once_before_rounding(rows: int, device: str) -> None:
    """A bias for all rows, one per row, and a single value follow the definition, in both kernels."""
    x, w = normal(rows, 1112, dtype=torch.float32, device=device), normal(1112, 8, dtype=torch.float32, device=device)
    plan = plan_matmul(8, 1112, "float32", ARCHS["sm_90"])
    for shape in ((8,), (rows, 8), (1, 8), ()):
        bias = normal(*(shape or (1,)), dtype=torch.float32, device=device, seed=2).reshape(shape)
        result = matmul_triton(x[None], w[None], bias, plan, alpha=0.5, beta=2.0)[0]
        expected = (x.double() @ w.double()) * 0.5 + bias.double() * 2
        torch.testing.assert_close(result, expected.float(), rtol=1e-5, atol=1e-4)


def test_linear_takes_any_leading_dimensions() -> None:
    """`linear` behaves like `torch.nn.functional.linear`, with a bias."""
    x, weight, bias = (normal(*s, dtype=torch.float32) for s in ((2, 3, 40), (24, 40), (24,)))
    result = linear(x, weight, bias)
    torch.testing.assert_close(result, torch.nn.functional.linear(x, weight, bias))
    assert result.shape == (2, 3, 24)


def test_no_rows_give_no_rows() -> None:
    """An empty batch is valid: the result is empty too, as in torch."""
    w = normal(8, 4, dtype=torch.float32)
    assert matmul(torch.empty(0, 8), w).shape == (0, 4)
    assert bmm(torch.empty(2, 0, 8), w.expand(2, 8, 4)).shape == (2, 0, 4)


def test_wrong_operands_are_refused() -> None:
    """The message names the operation, both shapes and what to pass."""
    x, w = torch.ones(2, 8), torch.ones(9, 4)
    with pytest.raises(UnsupportedInput, match=r"matmul: these shapes.*float32\[2, 8\] cpu, float32\[9, 4\] cpu.*pass"):
        matmul(x, w)
    with pytest.raises(UnsupportedInput, match=r"int64.*use bfloat16"):
        matmul(x.long(), w[:8].long())
    with pytest.raises(UnsupportedInput, match="differ in dtype"):
        matmul(x, w[:8].bfloat16())
    with pytest.raises(UnsupportedInput, match="bias does not fit"):
        matmul(x, w[:8], torch.ones(3))
    with pytest.raises(UnsupportedInput, match="k is 0"):
        plan_matmul(4, 0, "float32", CPU)
