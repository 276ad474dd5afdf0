"""Permuting to the experts and back: one stable order, and sums that no neighbour can reorder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, HOSTILE, name_of, normal
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.permute import Permutation, combine, combine_triton, permute, permute_ref, permute_triton


def some_ids(tokens: int, top_k: int, experts: int, seed: int = 0) -> Tensor:
    """Ids as from a router: those of a token differ."""
    return normal(tokens, experts, dtype=torch.float32, seed=seed).argsort(1)[:, :top_k].contiguous()


IDS = {
    "one_slot": (torch.tensor([[2]]), 3),
    "one_expert_full": (torch.full((70, 1), 4), 6),
    "first_and_last": (torch.tensor([[0, 5]] * 20), 6),
    "two_programs": (some_ids(300, 3, 7), 7),
    "many_programs": (some_ids(1050, 4, 5), 5),
    "hundreds_of_experts": (some_ids(40, 8, 200), 200),
    "one_expert": (torch.zeros(33, 1, dtype=torch.int64), 1),
    "of_no_expert": (torch.tensor([[3, -1], [0, 7], [2, 1], [7, 7], [1, 2**40]]), 4),
}


@pytest.mark.parametrize(("ids", "experts"), IDS.values(), ids=IDS.keys())
def test_k7_kernels_sort_as_the_definition(ids: Tensor, experts: int, device: str) -> None:
    """The integers are equal, whatever the number of programs."""
    found, expected = permute_triton(ids.to(device), experts), permute_ref(ids, experts)
    for name, one, other in zip(Permutation._fields, found, expected, strict=True):
        assert torch.equal(one.cpu(), other), name
        assert one.dtype == other.dtype, name


@pytest.mark.parametrize(("ids", "experts"), IDS.values(), ids=IDS.keys())
def test_k7_order_is_stable_and_its_inverse_is(ids: Tensor, experts: int) -> None:
    """Within an expert slots ascend; offsets count them; the inverse finds every slot; none is lost."""
    order, offsets, inverse = permute(ids, experts)
    assert torch.equal(order.sort().values, torch.arange(ids.numel()))
    assert torch.equal(order[inverse.view(-1)], torch.arange(ids.numel()))
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        slots = order[start:end]
        assert (ids.view(-1)[slots] == expert).all()
        assert (slots.diff() > 0).all()
        start = end
    assert not ((ids.view(-1)[order[start:]] >= 0) & (ids.view(-1)[order[start:]] < experts)).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("H", [1, 100, 1030])
def test_k7_kernel_and_cpu_combine_to_the_same_bits(H: int, dtype: torch.dtype, device: str) -> None:
    """Multiplied and added in one order without fused rounding, CPU and kernel agree to the bit."""
    ids = some_ids(9, 4, 6)
    inverse = permute(ids, 6).inverse
    out, weights = normal(36, H, dtype=dtype), normal(9, 4, dtype=torch.float32, seed=1)
    result = combine(out, inverse, weights)
    assert result.dtype == dtype
    assert torch.equal(combine_triton(out.to(device), inverse.to(device), weights.to(device)).cpu(), result)
    exact = (out.double()[inverse] * weights.double()[..., None]).sum(1)
    torch.testing.assert_close(result.double(), exact, rtol=torch.finfo(dtype).eps, atol=4e-6)


def test_k7_a_token_keeps_its_sum_whatever_shares_its_batch(device: str) -> None:
    """A token has the same bits alone, and at another place among hostile ones."""
    out, weights = normal(4, 50, dtype=torch.float32), normal(1, 4, dtype=torch.float32, seed=1)
    expected = combine(out, torch.arange(4)[None], weights)
    for tokens, at in ((1, 0), (3, 1), (17, 16)):
        rows = torch.empty(4 * tokens, 50)
        for row in range(rows.shape[0]):
            rows[row] = HOSTILE[row % len(HOSTILE)]
        # Every row has moved, and a token's rows are at places that are not in the order of its slots
        places = torch.randperm(4 * tokens, generator=torch.Generator().manual_seed(tokens)).view(tokens, 4)
        rows[places[at]] = out
        others = torch.ones(tokens, 4)
        others[at] = weights[0]
        assert torch.equal(combine(rows, places, others)[at], expected[0])
        kernel = combine_triton(rows.to(device), places.to(device), others.to(device))
        assert torch.equal(kernel[at].cpu(), expected[0])


def test_k7_index_add_in_another_order_is_caught() -> None:
    """Negative control: adding experts in the order of arrival gives other bits."""
    out, weights = normal(64, 50, dtype=torch.float32), normal(8, 8, dtype=torch.float32, seed=1)
    places = torch.randperm(64, generator=torch.Generator().manual_seed(0)).view(8, 8)
    expected = combine(out, places, weights)
    tokens = torch.empty(64, dtype=torch.int64)
    tokens[places.view(-1)] = torch.arange(64) // 8
    spread = torch.empty(64)
    spread[places.view(-1)] = weights.view(-1)
    by_arrival = torch.zeros(8, 50).index_add_(0, tokens, out * spread[:, None])
    torch.testing.assert_close(by_arrival, expected)
    assert not torch.equal(by_arrival, expected)


def test_wrong_operands_are_refused() -> None:
    """The message names the operation and what to pass; an empty batch is valid."""
    with pytest.raises(UnsupportedInput, match=r"permute: these are not experts' ids.*pass int64"):
        permute(torch.ones(3, 2), 4)
    with pytest.raises(UnsupportedInput, match="num_experts is 0"):
        permute(torch.ones(3, 2, dtype=torch.int64), 0)
    with pytest.raises(UnsupportedInput, match="combine: the shapes do not fit"):
        combine(torch.ones(5, 3), torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2))
    with pytest.raises(UnsupportedInput, match="not slots of tokens"):
        combine(torch.ones(4, 3), torch.zeros(2, 2), torch.ones(2, 2))
    empty = permute(torch.empty(0, 2, dtype=torch.int64), 3)
    assert empty.offsets.tolist() == [0, 0, 0]
    assert combine(torch.empty(0, 5), empty.inverse, torch.empty(0, 2)).shape == (0, 5)
