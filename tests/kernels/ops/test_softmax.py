"""softmax, log_softmax and chosen log-probabilities: bitwise independent of the batch, with torch's infinities."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.rows import BATCH, WIDTHS, assert_neighbours_change_nothing, assert_rows_keep_their_bits, batch, plan_of
from kernels.samples import DTYPES, name_of, normal
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.softmax import (
    SPLIT_ROWS_MAX,
    gather_logprob,
    gather_logprob_ref,
    gather_logprob_triton,
    log_softmax,
    softmax,
    softmax_ref,
    softmax_triton,
)
from spanreplay_kernels.plans.launch import captured

WIDE = 32_769
"""One element more than a row that is read once."""
INF = math.inf


def by_kernel(x: Tensor, op: str = "log_softmax") -> Tensor:
    return softmax_triton(x, plan_of(op, x), torch.float32)


def softmax_by_kernel(x: Tensor) -> Tensor:
    return by_kernel(x, "softmax")


def ids_of(x: Tensor) -> Tensor:
    """Three tokens per row that are a function of the row alone."""
    return (
        (x[:, :1].abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=1.0) * 7919).long()
        % x.shape[1]
        * torch.tensor([[1, 0, 1]], device=x.device)
    )


def gather_by_kernel(x: Tensor) -> Tensor:
    return gather_logprob_triton(x, ids_of(x), plan_of("log_softmax", x))


def by_cpu(x: Tensor) -> Tensor:
    return torch.cat((softmax(x), log_softmax(x), gather_logprob(x, ids_of(x))), -1)


KERNELS = pytest.mark.parametrize(
    "op", [softmax_by_kernel, by_kernel, gather_by_kernel], ids=["softmax", "log_softmax", "gather"]
)


@KERNELS
@pytest.mark.parametrize("width", tuple(BATCH))
def test_k4_kernel_gives_a_row_its_bits_in_every_batch(op: Callable[[Tensor], Tensor], width: int, device: str) -> None:
    """All numbers of rows around tile sizes are tried, each at another place of the batch."""
    assert_rows_keep_their_bits(op, batch(width, torch.float32, device))


@KERNELS
def test_k4_rows_that_are_read_twice_keep_their_bits(op: Callable[[Tensor], Tensor], device: str) -> None:
    """The rows are longer than registers hold."""
    assert_rows_keep_their_bits(op, normal(4, WIDE, dtype=torch.float32, device=device), (1, 2, 3))


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "gather"])
def test_k4_few_rows_in_split_blocks_have_the_bits_of_many(op: str, device: str) -> None:
    """Below and above the row limit for splitting blocks into programs, the order and the bits are the same."""
    x = normal(SPLIT_ROWS_MAX + 6, 100, dtype=torch.float32, device=device)
    x[3, :40], x[SPLIT_ROWS_MAX, :] = -INF, -INF
    plan = replace(plan_of("softmax" if op == "softmax" else "log_softmax", x), block=32)

    def blocks(x: Tensor) -> Tensor:
        return gather_logprob_triton(x, ids_of(x), plan) if op == "gather" else softmax_triton(x, plan, torch.float32)

    with captured() as launches:
        blocks(x)
        blocks(x[:SPLIT_ROWS_MAX])
    assert len(launches) == 3  # one kernel for many rows, two for few
    assert_rows_keep_their_bits(blocks, x, (1, 3, 17, SPLIT_ROWS_MAX, SPLIT_ROWS_MAX + 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k9_hostile_neighbours_do_not_reach_a_softmax(dtype: torch.dtype, device: str) -> None:
    """Hostile neighbours change nothing, either in the kernels or on the CPU."""
    x = normal(20, 100, dtype=dtype)
    assert_neighbours_change_nothing(by_cpu, x)
    for op in (by_kernel, softmax_by_kernel, gather_by_kernel):
        assert_neighbours_change_nothing(op, x.to(device))


@pytest.mark.parametrize("width", WIDTHS)
def test_k11_cpu_softmax_gives_a_row_its_bits_in_every_batch(width: int) -> None:
    """All numbers of rows from 1 to 130 are tried."""
    assert_rows_keep_their_bits(by_cpu, normal(140, width, dtype=torch.float32) * 4, range(1, 131))


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_k11_cpu_softmax_does_not_depend_on_threads(threads: int) -> None:
    """Any number of threads gives the bits of two, also if rows are processed in chunks."""
    x = normal(4, 40_001, dtype=torch.float32)
    expected = by_cpu(x)
    torch.set_num_threads(threads)
    assert torch.equal(by_cpu(x), expected)
    assert_rows_keep_their_bits(by_cpu, x, (1, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("width", [1, 7, 257, 4097, WIDE])
def test_k4_softmax_follows_its_definition(width: int, op: str, dtype: torch.dtype, device: str) -> None:
    """Kernel and CPU match the definition, and the definition matches torch's softmax."""
    x = normal(3, width, dtype=dtype) * 3
    plan, ours = plan_of(op, x), softmax if op == "softmax" else log_softmax
    exact = torch.softmax(x.double(), -1) if op == "softmax" else torch.log_softmax(x.double(), -1)
    for out_dtype in {dtype, torch.float32}:
        results = (
            softmax_ref(x, plan, out_dtype),
            softmax_triton(x.to(device), plan, out_dtype).cpu(),
            ours(x, dtype=out_dtype),
        )
        # A GPU computes exp as a power of two of a product, whose error grows with the distance from the highest
        rtol = max(2 * torch.finfo(out_dtype).eps, 4e-6) if op == "softmax" else torch.finfo(out_dtype).eps
        for result in results:
            assert result.dtype is out_dtype
            # fp16 rounds values below 2⁻²⁴ to zero
            atol = 1e-6 if op == "log_softmax" else 2**-24
            torch.testing.assert_close(result.double(), exact, rtol=rtol, atol=atol)


def test_k4_infinite_scores_behave_as_torchs(device: str) -> None:
    """-inf has probability 0; a row of nothing else, or with +inf or NaN, is NaN; also if blocks are merged."""
    x = torch.zeros(6, 70)
    x[0], x[1, :40], x[2, 40:], x[3, 7], x[4, 69], x[5, 0] = -INF, -INF, -INF, INF, math.nan, -0.0
    for op, ours in (("softmax", softmax), ("log_softmax", log_softmax)):
        expected = getattr(torch, op)(x, -1)
        blocks = replace(plan_of(op, x), block=16)
        assert blocks.passes == 2
        for result in (
            ours(x),
            softmax_triton(x.to(device), plan_of(op, x), x.dtype).cpu(),
            softmax_triton(x.to(device), blocks, x.dtype).cpu(),
            softmax_triton(x.repeat(11, 1).to(device), blocks, x.dtype).cpu()[:6],
            softmax_ref(x, blocks, x.dtype),
        ):
            torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("width", [7, 257, WIDE])
def test_k4_gathered_logprobs_are_those_of_log_softmax(width: int, device: str) -> None:
    """The bits are those of log_softmax in fp32 at these places; an id outside the vocabulary gives NaN."""
    x = normal(5, width, dtype=torch.bfloat16)
    ids = torch.tensor([[0, width - 1, 3, -1, width, -100]]).expand(5, 6)
    inside = ids[:, :3]
    plan = plan_of("log_softmax", x)
    kernel = gather_logprob_triton(x.to(device), ids.to(device), plan).cpu()
    whole = softmax_triton(x.to(device), plan, torch.float32).cpu()
    for result, all_of_them in (
        (kernel, whole),
        (gather_logprob(x, ids), log_softmax(x, dtype=torch.float32)),
        (gather_logprob_ref(x, ids, plan), softmax_ref(x, plan, torch.float32)),
    ):
        assert torch.equal(result[:, :3], all_of_them.gather(1, inside))
        assert bool(result[:, 3:].isnan().all())


def test_k9_softmax_whose_block_depends_on_the_batch_is_caught(device: str) -> None:
    """Negative control: the same kernel with a plan that depends on the number of rows does not pass."""

    def variant(x: Tensor) -> Tensor:
        plan = plan_of("softmax", x)
        plan = plan if x.shape[0] > 8 else replace(plan, block=32, block_rows=1)
        return softmax_triton(x, plan, torch.float32)

    with pytest.raises(AssertionError):
        assert_rows_keep_their_bits(variant, normal(33, 1000, dtype=torch.float32, device=device), (1, 2, 7))


def test_k9_softmax_that_reads_over_its_end_is_caught(device: str) -> None:
    """Negative control: a kernel that reads past the end of a row lets the next one in."""

    def variant(x: Tensor) -> Tensor:
        longer = torch.cat((x, x.roll(-1, 0)[:, :4]), -1)
        return softmax_triton(longer, plan_of("softmax", longer), torch.float32)

    with pytest.raises(AssertionError):
        assert_neighbours_change_nothing(variant, normal(5, 30, dtype=torch.float32, device=device))


def test_k4_softmax_takes_any_dimension() -> None:
    """Shape, strides and value match torch's; a scalar is a row of one; an empty batch is valid."""
    x = normal(3, 4, 5, dtype=torch.float32)
    for ours, torchs in ((softmax, torch.softmax), (log_softmax, torch.log_softmax)):
        for dim in (0, 1, 2, -1, -3):
            for each in (x, x.transpose(0, 2)):
                result, expected = ours(each, dim), torchs(each, dim)
                torch.testing.assert_close(result, expected)
                assert result.stride() == expected.stride()
        assert ours(x[0, 0, 0]).shape == ()
        assert ours(x[:0]).shape == (0, 4, 5)
        assert torch.equal(ours(x, 1)[1:2], ours(x[1:2], 1))


def test_k4_logprobs_take_any_leading_dimensions() -> None:
    """One token per row or several, logits of one row, int32 ids, and no rows are tried."""
    logits = normal(2, 3, 9, dtype=torch.float32)
    expected = torch.log_softmax(logits, -1)
    one, several = torch.tensor([[0, 1, 2], [3, 4, 8]]), torch.zeros(2, 3, 2, dtype=torch.int32)
    torch.testing.assert_close(gather_logprob(logits, one), expected.gather(2, one[..., None])[..., 0])
    torch.testing.assert_close(gather_logprob(logits, several), expected[..., :1].expand(2, 3, 2))
    torch.testing.assert_close(gather_logprob(logits[0, 0], torch.tensor(4)), expected[0, 0, 4])
    assert gather_logprob(logits[:0], one[:0]).shape == (0, 3)


def test_k4_softmax_reads_as_another_dtype() -> None:
    """bf16 is read as fp32 in one step; otherwise, as in torch, x is first converted to the dtype."""
    x = normal(4, 30, dtype=torch.bfloat16)
    assert torch.equal(softmax(x, dtype=torch.float32), softmax(x.float()))
    assert torch.equal(softmax(x.float(), dtype=torch.bfloat16), softmax(x))
    assert torch.equal(softmax(torch.ones(2, 4, dtype=torch.int64), dtype=torch.float32), torch.full((2, 4), 0.25))


def test_wrong_operands_of_a_softmax_are_refused() -> None:
    """The message names the operation, the shapes and what to pass."""
    x = torch.ones(2, 8)
    with pytest.raises(UnsupportedInput, match=r"log_softmax: no dimension 2 \(float32\[2, 8\] cpu\)"):
        log_softmax(x, 2)
    with pytest.raises(UnsupportedInput, match=r"softmax: this dtype.*int64"):
        softmax(x.long())
    with pytest.raises(UnsupportedInput, match=r"gather_logprob: these are not logits and tokens.*float32\[2\]"):
        gather_logprob(x, torch.ones(2))
    with pytest.raises(UnsupportedInput, match=r"these shapes do not fit .*int64\[3\]"):
        gather_logprob(x, torch.ones(3).long())
