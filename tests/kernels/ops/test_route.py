"""The router: chosen experts, their order and weights, and the handling of ties and NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, name_of, normal, ulps_from, with_hostile_neighbours
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._portable import exp, log
from spanreplay_kernels.ops.route import route, route_ref, route_triton
from spanreplay_kernels.plans.arch import ARCHS
from spanreplay_kernels.plans.plan import plan_rows

SHAPES = ((128, 8), (5, 5), (1, 1), (100, 2))
"""(E, top_k)."""


def by_kernel(logits: Tensor, top_k: int, normalise: bool = True) -> tuple[Tensor, Tensor]:
    """`route` by the Triton kernel."""
    plan = plan_rows("softmax", logits.shape[1], name_of(logits.dtype), ARCHS["sm_90"])
    return route_triton(logits, top_k, normalise, plan)


def assert_same(result: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Assert equal bits of the weights, including NaN, and equal ids."""
    assert torch.equal(result[0].cpu().view(torch.int32), expected[0].cpu().view(torch.int32))
    assert torch.equal(result[1].cpu(), expected[1].cpu())


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("normalise", [True, False], ids=["normalised", "as_they_are"])
@pytest.mark.parametrize(("E", "top_k"), SHAPES)
def test_k7_kernel_and_cpu_give_the_same_bits(
    E: int, top_k: int, normalise: bool, dtype: torch.dtype, device: str
) -> None:
    """The kernel's weights and ids equal the CPU's, bit for bit, for ordinary and for large logits."""
    logits = torch.cat([normal(6, E, dtype=dtype), normal(6, E, dtype=dtype, seed=1) * 40])
    assert_same(by_kernel(logits.to(device), top_k, normalise), route(logits, top_k, normalise=normalise))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k7_a_row_keeps_its_route_in_every_batch(dtype: torch.dtype, device: str) -> None:
    """A part of a batch, at any offset, has the routes of the whole; on the CPU for every number of rows (in fp32)."""
    logits = normal(140, 61, dtype=dtype)
    weights, ids = route(logits, 6)
    for rows in range(1, 131, 1 if dtype is torch.float32 else 13):
        start = rows % 10
        part = slice(start, start + rows)
        assert_same(route(logits[part], 6), (weights[part], ids[part]))
    few = logits[:20].to(device)
    weights, ids = by_kernel(few, 6)
    for rows in (1, 7, 16):
        assert_same(by_kernel(few[3 : 3 + rows], 6), (weights[3 : 3 + rows], ids[3 : 3 + rows]))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_k11_number_of_threads_changes_no_route(threads: int) -> None:
    """Nothing depends on how the CPU divides its work, even with other numbers of threads."""
    logits = normal(999, 129, dtype=torch.float32)
    expected = route(logits, 8)
    torch.set_num_threads(threads)
    assert_same(route(logits, 8), expected)


def test_k7_hostile_neighbours_change_no_route(device: str) -> None:
    """NaN, Inf and huge rows beside a row change neither its experts nor its weights."""
    logits = normal(12, 32, dtype=torch.float32)
    for row in (0, 7, 11):
        hostile = with_hostile_neighbours(logits, row)
        for found, expected in (
            (route(hostile, 4), route(logits, 4)),
            (by_kernel(hostile.to(device), 4), by_kernel(logits.to(device), 4)),
        ):
            assert_same((found[0][row], found[1][row]), (expected[0][row], expected[1][row]))


def test_k7_of_equal_logits_the_lowest_id_is_first(device: str) -> None:
    """All equal, equal pairs, and zeros of both signs are tried."""
    logits = torch.tensor([[1.0] * 8, [0, 3, 1, 3, 1, 3, 0, 0], [-1, 0.0, -0.0, 0.0, -0.0, -1, -1, -1]])
    expected = torch.tensor([[0, 1, 2, 3], [1, 3, 5, 2], [1, 2, 3, 4]])
    for weights, ids in (route(logits, 4), by_kernel(logits.to(device), 4)):
        assert torch.equal(ids.cpu(), expected)
        assert torch.equal(weights[0].cpu(), torch.full((4,), 0.25))


def test_k7_nan_is_the_smallest_logit_and_ids_stay_valid(device: str) -> None:
    """A row with NaN, −Inf or +Inf has valid, different experts; its weights are NaN, and no other row's are."""
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[nan, 1, 2, 3], [nan] * 4, [-inf] * 4, [inf, 0, inf, 0], [0, 1, 2, 3], [-inf, 0, -inf, 0]])
    expected = torch.tensor([[3, 2, 1], [0, 1, 2], [0, 1, 2], [0, 2, 1], [3, 2, 1], [1, 3, 0]])
    for weights, ids in (route(logits, 3), by_kernel(logits.to(device), 3)):
        assert torch.equal(ids.cpu(), expected)
        assert weights.isnan().any(1).tolist() == [True, True, True, True, False, False]
        assert weights[5].tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize(("E", "top_k"), SHAPES)
def test_k7_route_is_softmax_and_top_k(E: int, top_k: int) -> None:
    """Compared with torch in fp64: the same experts, and weights within a few units in the last place."""
    logits = normal(50, E, dtype=torch.float32)
    values, expected = logits.double().softmax(1).topk(top_k, dim=1)
    weights, ids = route(logits, top_k)
    assert torch.equal(ids, expected)
    assert ulps_from(values / values.sum(1, keepdim=True), weights) <= 8
    assert ulps_from(values, route(logits, top_k, normalise=False)[0]) <= 8


def test_k7_ties_of_topk_are_caught() -> None:
    """Negative control: torch.topk alone promises no order of equal values, and the check above detects it."""
    logits = torch.zeros(64, 128)
    assert not torch.equal(logits.topk(8, dim=1).indices, route(logits, 8)[1])


def test_k7_a_sum_in_another_order_is_caught() -> None:
    """Negative control: the same softmax with a sum from first to last has other bits."""
    logits = normal(64, 128, dtype=torch.float32)
    powers = exp(logits - logits.amax(1, keepdim=True))
    total = torch.zeros(64)
    for expert in range(128):
        total = total + powers[:, expert]
    other = (powers / total[:, None]).gather(1, route(logits, 8)[1])
    assert not torch.equal(other, route(logits, 8, normalise=False)[0])


def test_k9_portable_functions_are_within_two_ulp() -> None:
    """exp and log are compared with fp64 over the range that softmax and sampling use, and at its ends."""
    x = torch.linspace(-87, 88, 200_001)
    assert ulps_from(torch.exp(x.double()), exp(x)) <= 2
    y = torch.cat([torch.exp2(torch.linspace(-40, 10, 200_001)), torch.linspace(0.4, 2.5, 100_001)])
    exact = torch.log(y.double())
    assert ulps_from(exact[exact != 0], log(y)[exact != 0]) <= 2
    ends = torch.tensor([float("nan"), float("inf"), -float("inf"), -200.0, 200.0, 0.0, -0.0])
    assert exp(ends)[1:].tolist() == [float("inf"), 0, 0, float("inf"), 1, 1]
    assert exp(ends)[0].isnan()
    assert log(torch.ones(1)).item() == 0


def test_definition_is_what_the_cpu_runs() -> None:
    """`route` on the CPU equals `route_ref` with the CPU's plan, which has the GPU's order."""
    logits = normal(9, 40, dtype=torch.float32)
    for arch in ("cpu", "sm_80", "sm_120"):
        assert_same(route_ref(logits, 4, True, plan_rows("softmax", 40, "float32", ARCHS[arch])), route(logits, 4))


def test_wrong_operands_are_refused() -> None:
    """The message names the operation, the shape and the limit."""
    with pytest.raises(UnsupportedInput, match=r"route: top_k is 5 \(float32\[2, 4\] cpu\); choose 1 to 4"):
        route(torch.ones(2, 4), 5)
    with pytest.raises(UnsupportedInput, match="top_k is 65"):
        route(torch.ones(2, 128), 65)
    with pytest.raises(UnsupportedInput, match="at most 4095 experts"):
        route(torch.ones(2, 4096), 1)
    with pytest.raises(UnsupportedInput, match="no plan"):
        route(torch.ones(2, 4, dtype=torch.int64), 1)
    weights, ids = route(torch.ones(0, 4), 2)
    assert (weights.shape, ids.shape) == ((0, 2), (0, 2))
