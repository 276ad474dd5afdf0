"""Grouped products: a row has the bits of its separate product, in whatever group and with whatever neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, HOSTILE, name_of, normal
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._matmul_tma import is_readable
from spanreplay_kernels.ops.grouped import grouped_mm, grouped_mm_ref, grouped_mm_triton
from spanreplay_kernels.ops.matmul import matmul, matmul_triton
from spanreplay_kernels.plans.arch import ARCHS
from spanreplay_kernels.plans.plan import MatmulPlan, plan_matmul

N, K = 72, 250
"""Two tiles with ragged ends, and two segments with a ragged end."""
COUNTS = {
    "ragged": (17, 0, 1, 40, 0, 9),
    "one_full": (0, 0, 70, 0, 0, 0),
    "first_full": (70, 0, 0, 0, 0, 0),
    "last_full": (0, 0, 0, 0, 0, 70),
    "even": (11, 11, 11, 11, 11, 11),
    "tail": (3, 0, 20, 1, 0, 2),
    "all_empty": (0, 0, 0, 0, 0, 0),
    "few": (1, 0, 2, 0, 0, 1),
}
"""Numbers of rows of six experts."""


def plan_of(dtype: torch.dtype) -> MatmulPlan:
    """A plan with two segments, like sm_90's for a longer K."""
    return replace(plan_matmul(N, K, name_of(dtype), ARCHS["sm_90"]), segment_k=128, segments=2)


def by_kernels(x: Tensor, w: Tensor, offsets: Tensor) -> Tensor:
    """The product by the Triton kernels."""
    return grouped_mm_triton(x, w, offsets, plan_of(x.dtype))


def alone_by_kernels(x: Tensor, w: Tensor) -> Tensor:
    """One group's product by the kernels of `matmul`."""
    return x.new_empty((0, N)) if x.shape[0] == 0 else matmul_triton(x[None], w[None], None, plan_of(x.dtype))[0]


def ends(counts: tuple[int, ...], device: str = "cpu") -> Tensor:
    """The ends of groups, as `torch._grouped_mm` takes them."""
    return torch.tensor(counts).cumsum(0).to(torch.int32).to(device)


def weights(dtype: torch.dtype, device: str = "cpu", experts: int = 6) -> Tensor:
    """(E, K, N) as in a model: transposed."""
    return normal(experts, N, K, dtype=dtype, device=device, seed=1).transpose(1, 2)


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
def test_k7_kernels_give_each_expert_the_bits_of_its_own_product(counts: tuple[int, ...], device: str) -> None:
    """Every expert's rows equal `matmul` of these rows alone; rows after the last group are zero."""
    rows = sum(counts) + 3
    x, w = normal(rows, K, dtype=torch.float32, device=device), weights(torch.float32, device)
    offsets = ends(counts, device)
    result = by_kernels(x, w, offsets)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        assert torch.equal(result[start:end], alone_by_kernels(x[start:end], w[expert])), expert
        start = end
    assert torch.equal(result[start:], torch.zeros_like(result[start:]))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
def test_k11_cpu_gives_each_expert_the_bits_of_its_own_product(counts: tuple[int, ...], dtype: torch.dtype) -> None:
    """The same on the CPU."""
    x, w = normal(sum(counts) + 3, K, dtype=dtype), weights(dtype)
    offsets = ends(counts)
    result = grouped_mm(x, w, offsets)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        assert torch.equal(result[start:end], matmul(x[start:end], w[expert])), expert
        start = end
    assert torch.equal(result[start:], torch.zeros_like(result[start:]))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("counts", [COUNTS["ragged"], COUNTS["few"]], ids=["ragged", "few"])
def test_k7_kernels_follow_the_plan(counts: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """The kernels add in the order of the definition; so does the CPU, within its library's own order."""
    x, w = normal(sum(counts) + 2, K, dtype=dtype, device=device), weights(dtype, device)
    offsets = ends(counts, device)
    expected = grouped_mm_ref(x, w, offsets, plan_of(dtype))
    for result in (by_kernels(x, w, offsets), grouped_mm(x, w, offsets)):
        torch.testing.assert_close(result, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
@pytest.mark.parametrize("is_transposed", [True, False], ids=["as_linear_holds_it", "as_it_stands"])
def test_k7_copy_engine_reads_what_pointers_read(is_transposed: bool, dtype: torch.dtype, device: str) -> None:
    """By TMA, by pointers, and by `matmul` of each expert's rows: the same bits, beside hostile rows in a tile."""
    counts, k = (17, 0, 40, 9), 256
    plan = replace(plan_matmul(N, k, name_of(dtype), ARCHS["sm_90"]), segment_k=128, segments=2)
    x = normal(70, k, dtype=dtype, device=device)
    x[17] = x[57] = float("nan")
    x[66:] = float("inf")
    w = normal(4, N, k, dtype=dtype, device=device, seed=1).transpose(1, 2)
    w = w if is_transposed else w.contiguous()
    assert is_readable(w, plan)
    results = [grouped_mm_triton(x, w, ends(counts, device), plan, may_use_tma=by_tma) for by_tma in (True, False)]
    # The bits of NaN are unspecified, all others are not
    results = [each.nan_to_num(7.0) for each in results]
    assert torch.equal(*results)
    start = 0
    for expert, end in enumerate(ends(counts).tolist()):
        alone = matmul_triton(x[start:end][None], w[expert][None], None, plan)[0] if end > start else x.new_empty(0, N)
        assert torch.equal(results[0][start:end], alone.nan_to_num(7.0))
        start = end
    assert not results[0][66:].any()


def moved(x: Tensor, counts: tuple[int, ...], shift: int) -> tuple[Tensor, Tensor]:
    """x with the rows of each group rotated, and the new place of each row."""
    order = torch.arange(x.shape[0])
    start = 0
    for count in counts:
        order[start : start + count] = order[start : start + count].roll(shift)
        start += count
    place = torch.empty_like(order)
    place[order] = torch.arange(x.shape[0])
    return x[order], place


@pytest.mark.parametrize("shift", [1, 7, 16])
def test_k7_a_row_keeps_its_bits_wherever_it_stands_in_its_group(shift: int, device: str) -> None:
    """In groups where every row has moved, no result has changed."""
    counts = (17, 2, 40, 9)
    x, w = normal(68, K, dtype=torch.float32), weights(torch.float32, experts=4)
    other, place = moved(x, counts, shift)
    assert shift != 1 or not (place == torch.arange(68)).any()
    assert torch.equal(grouped_mm(other, w, ends(counts))[place], grouped_mm(x, w, ends(counts)))
    kernels = [by_kernels(each.to(device), w.to(device), ends(counts, device)) for each in (other, x)]
    assert torch.equal(kernels[0][place], kernels[1])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k11_cpu_keeps_a_row_bits_at_any_number_of_threads(threads: int, dtype: torch.dtype) -> None:
    """A row's place in its group and the group's size change nothing, with one thread or with four."""
    torch.set_num_threads(threads)
    counts, k, n = (17, 2, 40, 9), 512, 320
    x, w = normal(68, k, dtype=dtype), normal(4, n, k, dtype=dtype, seed=1).transpose(1, 2)
    whole = grouped_mm(x, w, ends(counts))
    for shift in (1, 7):
        other, place = moved(x, counts, shift)
        assert torch.equal(grouped_mm(other, w, ends(counts))[place], whole)
    for row, expert in ((0, 0), (16, 0), (18, 1), (40, 2), (67, 3)):
        alone = ends(tuple(int(e == expert) for e in range(4)))
        assert torch.equal(grouped_mm(x[row : row + 1], w, alone), whole[row : row + 1])


def test_k7_a_row_keeps_its_bits_in_every_group_size(device: str) -> None:
    """One row among 0, 1, … others of its group, and hostile ones in other groups, has the same bits."""
    row, w = normal(1, K, dtype=torch.float32), weights(torch.float32, experts=3)
    expected = matmul(row, w[1])
    expected_kernels = alone_by_kernels(row.to(device), w[1].to(device))
    for before, after in ((0, 0), (5, 3), (16, 0), (20, 60)):
        x = torch.empty(4 + before + 1 + after + 5, K)
        for at in range(x.shape[0]):
            x[at] = HOSTILE[at % len(HOSTILE)]
        x[4 + before] = row
        offsets = ends((4, before + 1 + after, 5))
        assert torch.equal(grouped_mm(x, w, offsets)[4 + before], expected[0]), (before, after)
        result = by_kernels(x.to(device), w.to(device), offsets.to(device))
        assert torch.equal(result[4 + before], expected_kernels[0]), (before, after)


def test_k7_algorithm_that_sees_the_group_size_is_caught() -> None:
    """Negative control: torch's grouped product, and one that splits K by the number of rows, do not pass."""
    w = normal(2, 1024, 1024, dtype=torch.float32, seed=1)
    x = normal(64, 1024, dtype=torch.float32)

    def by_size(rows: Tensor) -> Tensor:
        if rows.shape[0] >= 16:
            return matmul(rows, w[0])
        return matmul(rows[:, :100], w[0][:100]) + matmul(rows[:, 100:], w[0][100:])

    assert not torch.equal(by_size(x[:1]), by_size(x)[:1])
    stock = torch._grouped_mm(x, w, ends((64, 0)))
    assert not all(torch.equal(torch._grouped_mm(x[:n], w, ends((n, 0))), stock[:n]) for n in (1, 2, 7, 33))


def test_k7_operands_of_any_layout_give_the_same_bits() -> None:
    """Weights as (E, K, N) or as transposed (E, N, K), with strided and unaligned rows, give the same bits."""
    counts = (7, 0, 9)
    x, w = normal(16, K, dtype=torch.float32), weights(torch.float32, experts=3)
    strided, unaligned = torch.empty(16, 2 * K)[:, ::2], torch.empty(16 * K + 1)[1:].view(16, K)
    expected, expected_kernels = grouped_mm(x, w, ends(counts)), by_kernels(x, w, ends(counts))
    for other in (strided, unaligned):
        other.copy_(x)
        assert torch.equal(grouped_mm(other, w, ends(counts)), expected)
        assert torch.equal(by_kernels(other, w, ends(counts)), expected_kernels)
    assert torch.equal(by_kernels(x, w.contiguous(), ends(counts)), expected_kernels)


def test_k7_offsets_that_no_one_checked_touch_no_other_memory(device: str) -> None:
    """On a GPU offsets are not checked before the kernel; decreasing, negative or too large ones stay within T."""
    x, w = normal(20, K, dtype=torch.float32, device=device), weights(torch.float32, device, experts=3)
    for bad in ((5, 2, 400), (-7, 30, 10), (2**31 - 1, -(2**31), 20)):
        offsets = torch.tensor(bad, dtype=torch.int32, device=device)
        assert by_kernels(x, w, offsets).shape == (20, N)


def test_no_rows_give_no_rows() -> None:
    """The batch and its groups may be empty."""
    assert grouped_mm(torch.empty(0, K), weights(torch.float32), ends((0,) * 6)).shape == (0, N)


def test_other_forms_and_wrong_offsets_are_refused() -> None:
    """Other forms that `torch._grouped_mm` accepts, and offsets that it does not check, are refused."""
    x, w, offsets = torch.ones(4, 8), torch.ones(2, 8, 3), ends((1, 3))
    with pytest.raises(UnsupportedInput, match=r"grouped_mm: these shapes.*pass \(T, K\), \(E, K, N\)"):
        grouped_mm(x, torch.ones(8, 3), offsets)
    with pytest.raises(UnsupportedInput, match="these shapes"):
        grouped_mm(torch.ones(2, 4, 8), w, offsets)
    for wrong in (offsets.long(), offsets[:1]):
        with pytest.raises(UnsupportedInput, match="offsets are not one int32 a group"):
            grouped_mm(x, w, wrong)
    for beyond in ((3, 2), (1, 5)):
        with pytest.raises(UnsupportedInput, match="pass the ends of groups in order"):
            grouped_mm(x, w, torch.tensor(beyond, dtype=torch.int32))
    with pytest.raises(UnsupportedInput, match="too many groups"):
        grouped_mm(x, torch.ones(4096, 8, 1), torch.zeros(4096, dtype=torch.int32))
