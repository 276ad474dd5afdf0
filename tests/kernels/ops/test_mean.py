"""Means and sums: a result's bits depend only on its own elements, whatever else is reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.rows import BATCH, WIDTHS, assert_neighbours_change_nothing, assert_rows_keep_their_bits, batch, plan_of
from kernels.samples import DTYPES, name_of, normal, ulps_from
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.mean import mean, mean_ref, sum_rows, sum_triton

WIDE = 32_769
"""One element more than one block."""


def by_kernel(x: Tensor) -> Tensor:
    return sum_triton(x, plan_of("mean", x), x.dtype)


def by_cpu(x: Tensor) -> Tensor:
    return mean(x, -1)


@pytest.mark.parametrize("width", tuple(BATCH))
def test_k4_mean_kernel_gives_a_row_its_bits_in_every_batch(width: int, device: str) -> None:
    """All numbers of rows around tile sizes are tried, each at another place of the batch."""
    assert_rows_keep_their_bits(by_kernel, batch(width, torch.float32, device))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k9_hostile_neighbours_do_not_reach_a_mean(dtype: torch.dtype, device: str) -> None:
    """Hostile neighbours change nothing, either in the kernel or on the CPU."""
    x = normal(20, 100, dtype=dtype)
    assert_neighbours_change_nothing(by_cpu, x)
    assert_neighbours_change_nothing(by_kernel, x.to(device))


@pytest.mark.parametrize("width", WIDTHS)
def test_k11_cpu_mean_gives_a_row_its_bits_in_every_batch(width: int) -> None:
    """All numbers of rows from 1 to 130 are tried."""
    assert_rows_keep_their_bits(by_cpu, normal(140, width, dtype=torch.float32), range(1, 131))


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_k11_cpu_mean_does_not_depend_on_threads(threads: int) -> None:
    """Any number of threads gives the bits of two, in rows long enough to be divided among threads."""
    x = normal(5, 70_001, dtype=torch.float32)
    expected = by_cpu(x)
    torch.set_num_threads(threads)
    assert torch.equal(by_cpu(x), expected)
    assert_rows_keep_their_bits(by_cpu, x, (1, 2, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("width", [1, 7, 257, 4097, WIDE])
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_k4_mean_follows_its_definition(op: str, width: int, dtype: torch.dtype, device: str) -> None:
    """Kernel, CPU and definition are within one ulp of fp64 if the dtype is narrower than the steps."""
    x = normal(3, width, dtype=dtype).abs()
    exact = x.double().mean(-1) if op == "mean" else x.double().sum(-1)
    plan = plan_of(op, x)
    ours: Callable[..., Tensor] = mean if op == "mean" else sum_rows
    for result in (mean_ref(x, plan), sum_triton(x.to(device), plan, dtype).cpu(), ours(x, -1)):
        assert ulps_from(exact, result) <= (1.0 if dtype is not torch.float32 else 4.0)


def test_k9_mean_whose_block_depends_on_the_batch_is_caught(device: str) -> None:
    """Negative control: the same kernel with a plan that depends on the number of rows does not pass."""

    def variant(x: Tensor) -> Tensor:
        plan = plan_of("mean", x)
        return sum_triton(x, plan if x.shape[0] > 8 else replace(plan, block=32, block_rows=1), x.dtype)

    with pytest.raises(AssertionError):
        assert_rows_keep_their_bits(variant, normal(33, 1000, dtype=torch.float32, device=device), (1, 2, 7))


@pytest.mark.parametrize("keepdim", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("dim", [0, 1, -1, (0, 2), (-1, 0), (2, 1, 0, 3), None, ()], ids=str)
def test_k4_mean_takes_any_dimensions(dim: int | Sequence[int] | None, keepdim: bool) -> None:
    """Shape and value match torch's, for one, several and all dimensions, and for a scalar."""
    x = normal(3, 4, 5, 6, dtype=torch.float32)
    for ours, torchs in ((mean, torch.mean), (sum_rows, torch.sum)):
        torch.testing.assert_close(ours(x, dim, keepdim), torchs(x, dim, keepdim), rtol=1e-5, atol=1e-6)
        assert ours(x[0, 0, 0, 0]).shape == ()


def test_k4_mean_over_a_dimension_does_not_see_the_others() -> None:
    """In a mean over a middle dimension each sample has the same bits as alone, whatever its strides."""
    x = normal(6, 50, 7, dtype=torch.float32)
    whole = mean(x, 1)
    for b in range(6):
        assert torch.equal(mean(x[b : b + 1], 1)[0], whole[b])
        assert torch.equal(mean(x[b], 0), whole[b])
    assert torch.equal(mean(x.transpose(1, 2), -1), whole)
    assert torch.equal(mean(x, (2, 1)), mean(x, (1, 2)))


def test_k4_mean_reads_as_another_dtype() -> None:
    """dtype is the type in which x is read and the result returned, as in torch."""
    x = normal(4, 300, dtype=torch.bfloat16)
    assert torch.equal(mean(x, -1, dtype=torch.float32), mean(x.float(), -1))
    assert torch.equal(mean(x.float(), -1, dtype=torch.bfloat16), mean(x, -1))
    assert torch.equal(sum_rows(torch.ones(4, 3, dtype=torch.int64), -1, dtype=torch.float32), torch.full((4,), 3.0))


def test_no_rows_give_no_means() -> None:
    """An empty batch is valid."""
    assert mean(torch.empty(0, 8), -1).shape == (0,)
    assert mean(torch.empty(0, 8), -1, keepdim=True).shape == (0, 1)


def test_wrong_operands_of_a_mean_are_refused() -> None:
    """The message names the operation, the shape and what to pass."""
    x = torch.ones(2, 8)
    with pytest.raises(UnsupportedInput, match=r"mean: no dimension 2 \(float32\[2, 8\] cpu\); dim is from -2 to 1"):
        mean(x, 2)
    with pytest.raises(UnsupportedInput, match="names a dimension twice"):
        sum_rows(x, (1, -1))
    with pytest.raises(UnsupportedInput, match=r"sum: this dtype.*int64"):
        sum_rows(x.long())
    with pytest.raises(UnsupportedInput, match="width is 0"):
        mean(x[:, :0], 1)
