"""Root-mean-square normalisation: bitwise independent of the batch, with or without a residual, within one ulp."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.rows import WIDTHS, Op, assert_neighbours_change_nothing, assert_rows_keep_their_bits, batch, plan_of
from kernels.samples import DTYPES, name_of, normal, ulps_from
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.rms_norm import (
    fused_rms_norm,
    rms_norm,
    rms_norm_ref,
    rms_norm_residual,
    rms_norm_triton,
)

EPS = 1e-6
WIDE = 16_385
"""One element more than a row that is read once."""


def weight_of(x: Tensor) -> Tensor:
    return normal(x.shape[-1], dtype=x.dtype, device=x.device, seed=1)


def residual_of(x: Tensor) -> Tensor:
    """A function of the row alone, so that a part of a batch has the residual of its rows."""
    return x.flip(-1)


def by_kernel(x: Tensor) -> Tensor:
    return rms_norm_triton(x, weight_of(x), EPS, plan_of("rms_norm", x))[0]


def residual_by_kernel(x: Tensor) -> Tensor:
    return torch.cat(rms_norm_triton(x, weight_of(x), EPS, plan_of("rms_norm", x), residual_of(x))[:2], -1)


def by_cpu(x: Tensor) -> Tensor:
    return rms_norm(x, weight_of(x), EPS)


def residual_by_cpu(x: Tensor) -> Tensor:
    return torch.cat(rms_norm_residual(x, residual_of(x), weight_of(x), EPS), -1)


@pytest.mark.parametrize("op", [by_kernel, residual_by_kernel], ids=["alone", "with_residual"])
@pytest.mark.parametrize("width", WIDTHS)
def test_k3_kernel_gives_a_row_its_bits_in_every_batch(op: Op, width: int, device: str) -> None:
    """All numbers of rows around tile sizes are tried, each at another place of the batch."""
    assert_rows_keep_their_bits(op, batch(width, torch.bfloat16, device))


@pytest.mark.parametrize("width", [4097, WIDE])
def test_k3_long_rows_keep_their_bits(width: int, device: str) -> None:
    """A tile of one row, and a row that is read twice, are tried."""
    x = normal(9, width, dtype=torch.float32, device=device)
    for op in (by_kernel, residual_by_kernel, by_cpu, residual_by_cpu):
        assert_rows_keep_their_bits(op, x, (1, 2, 5))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k9_hostile_neighbours_do_not_reach_a_norm(dtype: torch.dtype, device: str) -> None:
    """Hostile neighbours change nothing, in the kernel or on the CPU, with or without a residual."""
    x = normal(20, 100, dtype=dtype)
    for op in (by_cpu, residual_by_cpu):
        assert_neighbours_change_nothing(op, x)
    for op in (by_kernel, residual_by_kernel):
        assert_neighbours_change_nothing(op, x.to(device))


@pytest.mark.parametrize("width", WIDTHS)
def test_k11_cpu_norm_gives_a_row_its_bits_in_every_batch(width: int) -> None:
    """All numbers of rows from 1 to 130 are tried."""
    assert_rows_keep_their_bits(residual_by_cpu, normal(140, width, dtype=torch.float32), range(1, 131))


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_k11_cpu_norm_does_not_depend_on_threads(threads: int) -> None:
    """Any number of threads gives the bits of two."""
    x = normal(130, 257, dtype=torch.float32)
    expected = residual_by_cpu(x)
    torch.set_num_threads(threads)
    assert torch.equal(residual_by_cpu(x), expected)
    assert_rows_keep_their_bits(residual_by_cpu, x, (1, 2, 17, 64))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("width", [1, 7, 257, 4097, WIDE])
def test_k3_norm_follows_its_definition(width: int, dtype: torch.dtype, device: str) -> None:
    """Kernel and CPU match the definition: the sum to the bit, the norm within the last place."""
    x, residual = normal(3, width, dtype=dtype, device=device), normal(3, width, dtype=dtype, device=device, seed=2)
    weight, plan = weight_of(x), plan_of("rms_norm", x)
    expected, total, rstd = rms_norm_ref(x, weight, EPS, plan, residual)
    ours = rms_norm_triton(x, weight, EPS, plan, residual)
    cpu = rms_norm_residual(x.cpu(), residual.cpu(), weight.cpu(), EPS)
    assert torch.equal(ours[1], total)
    assert torch.equal(cpu[1], total.cpu())
    torch.testing.assert_close(ours[2], rstd[:, 0], rtol=4e-7, atol=0)
    tolerance = (2 if dtype is not torch.float32 else 4) * torch.finfo(dtype).eps
    torch.testing.assert_close(ours[0], expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(cpu[0], expected.cpu(), rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("width", [64, 1000, 4096])
def test_k9_norm_is_within_one_ulp(width: int, dtype: torch.dtype, device: str) -> None:
    """All steps are in fp32, rounded once: within 1 ulp of fp64 if the dtype is narrower than the steps."""
    x, weight = normal(16, width, dtype=dtype), weight_of(torch.empty(1, width, dtype=dtype))
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    # fp16 has fewer bits below 2⁻¹⁴: an ulp there is larger than `ulps_from` assumes
    exact_and_normal = exact.where(exact.abs() > 2**-13, 1.0)
    limit = 1.0 if dtype is not torch.float32 else 4.0
    kernel = rms_norm_triton(x.to(device), weight.to(device), EPS, plan_of("rms_norm", x))[0].cpu()
    for result in (kernel, rms_norm(x, weight, EPS)):
        assert ulps_from(exact_and_normal, result.where(exact.abs() > 2**-13, 1.0)) <= limit


def test_k3_norm_of_a_sum_is_that_of_the_rounded_sum(device: str) -> None:
    """With a residual the bits equal the norm alone over the sum as it was stored."""
    x, residual = (normal(9, 300, dtype=torch.bfloat16, seed=seed) for seed in (0, 1))
    weight, plan = weight_of(x), plan_of("rms_norm", x)
    y, total = rms_norm_residual(x, residual, weight, EPS)
    assert torch.equal(y, rms_norm(total, weight, EPS))
    y, total, _ = rms_norm_triton(x.to(device), weight.to(device), EPS, plan, residual.to(device))
    assert torch.equal(y, rms_norm_triton(total, weight.to(device), EPS, plan)[0])


def test_k9_norm_whose_block_depends_on_the_batch_is_caught(device: str) -> None:
    """Negative control: the same kernel with a plan that depends on the number of rows does not pass."""

    def variant(x: Tensor) -> Tensor:
        plan = plan_of("rms_norm", x)
        return rms_norm_triton(x, None, EPS, plan if x.shape[0] > 8 else replace(plan, block=32, block_rows=1))[0]

    with pytest.raises(AssertionError):
        assert_rows_keep_their_bits(variant, normal(33, 1000, dtype=torch.float32, device=device), (1, 2, 7))


def test_k9_normalisation_by_the_batch_is_caught(device: str) -> None:
    """Negative control: a mean over all rows lets neighbours in."""
    with pytest.raises(AssertionError):
        assert_neighbours_change_nothing(
            lambda x: x / x.square().mean().sqrt(), normal(5, 30, dtype=torch.float32, device=device)
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_fused_norm_answers_as_torch_does(dtype: torch.dtype) -> None:
    """Result, 1 / root mean square, shapes and the default eps match `aten::_fused_rms_norm`."""
    x = normal(2, 3, 4, 6, dtype=dtype)
    for shape in ([6], [4, 6]):
        weight = normal(*shape, dtype=dtype, seed=1)
        for small, eps in ((1.0, 1e-5), (1e-3, None)):
            ours = fused_rms_norm(x * small, shape, weight, eps)
            torchs = torch.ops.aten._fused_rms_norm(x * small, shape, weight, eps)
            for a, b in zip(ours, torchs, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                torch.testing.assert_close(a, b, rtol=2 * torch.finfo(a.dtype).eps, atol=1e-7)


def test_norm_takes_any_leading_dimensions_and_no_weight() -> None:
    """As in `torch.nn.functional.rms_norm`; a weight may be fp32 with a narrower x; an empty batch is valid."""
    x = normal(2, 3, 40, dtype=torch.float32)
    torch.testing.assert_close(rms_norm(x), torch.nn.functional.rms_norm(x, (40,), eps=EPS))
    strided = x.transpose(0, 1)
    assert torch.equal(rms_norm(strided), rms_norm(x).transpose(0, 1))
    weight = normal(40, dtype=torch.float32)
    assert rms_norm(x.bfloat16(), weight).dtype is torch.bfloat16
    assert [t.shape for t in rms_norm_residual(x[:0], x[:0])] == [(0, 3, 40), (0, 3, 40)]


def test_wrong_operands_of_a_norm_are_refused() -> None:
    """The message names the operation, the shapes and what to pass."""
    x = torch.ones(2, 8)
    with pytest.raises(
        UnsupportedInput, match=r"rms_norm: the weight does not fit .*float32\[2, 8\] cpu.*weight \(N,\)"
    ):
        rms_norm(x, torch.ones(9))
    with pytest.raises(UnsupportedInput, match="residual does not fit"):
        rms_norm_residual(x, x[:1])
    with pytest.raises(UnsupportedInput, match="differ in dtype"):
        rms_norm_residual(x, x.bfloat16())
    with pytest.raises(UnsupportedInput, match="weight differs in dtype"):
        rms_norm(x, torch.ones(8).half())
    with pytest.raises(UnsupportedInput, match=r"int64.*use bfloat16"):
        rms_norm(x.long())
    with pytest.raises(UnsupportedInput, match="width is 0"):
        rms_norm(x[:, :0])
    with pytest.raises(UnsupportedInput, match=r"normalized_shape \[2\] does not fit"):
        fused_rms_norm(x, [2])
