"""A mixture of experts as a whole: a token's bits don't depend on the other tokens of its experts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, name_of, normal, with_hostile_neighbours
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.activation import silu_mul_triton
from spanreplay_kernels.ops.grouped import grouped_mm_triton
from spanreplay_kernels.ops.matmul import matmul_triton
from spanreplay_kernels.ops.moe import experts, moe, moe_ref
from spanreplay_kernels.ops.permute import combine_triton, permute_triton
from spanreplay_kernels.ops.route import route, route_triton
from spanreplay_kernels.plans.arch import ARCHS
from spanreplay_kernels.plans.plan import MatmulPlan, plan_matmul, plan_rows

E, H, WIDTH, TOP_K = 6, 40, 24, 3


def weights(dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """(router, gate and up, down) of six small experts."""
    shapes = ((E, H), (E, 2 * WIDTH, H), (E, H, WIDTH))
    return tuple(normal(*s, dtype=dtype, device=device, seed=1 + at) / 3 for at, s in enumerate(shapes))


def by_kernels(x: Tensor, router_w: Tensor, gate_up_w: Tensor, down_w: Tensor) -> Tensor:
    """`moe` by the Triton kernels."""

    def plan_of(n: int, k: int, dtype: torch.dtype) -> MatmulPlan:
        made = plan_matmul(n, k, name_of(dtype), ARCHS["sm_90"])
        return replace(made, segment_k=made.block_k, segments=-(-k // made.block_k))

    logits = matmul_triton(x.float()[None], router_w.float().t()[None], None, plan_of(E, H, torch.float32))[0]
    chosen, ids = route_triton(logits, TOP_K, True, plan_rows("softmax", E, "float32", ARCHS["sm_90"]))
    order, offsets, inverse = permute_triton(ids, E)
    plan = plan_of(2 * WIDTH, H, x.dtype)
    gate, up = grouped_mm_triton(x[order // TOP_K], gate_up_w.transpose(1, 2), offsets, plan).chunk(2, 1)
    plan = plan_of(H, WIDTH, x.dtype)
    out = grouped_mm_triton(silu_mul_triton(gate, up), down_w.transpose(1, 2), offsets, plan)
    return combine_triton(out, inverse, chosen)


def assert_close(result: Tensor, expected: Tensor) -> None:
    """Assert equality within three roundings of terms as large as the largest result."""
    eps = torch.finfo(result.dtype).eps
    torch.testing.assert_close(result, expected, rtol=4 * eps, atol=8 * eps * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k11_cpu_gives_a_token_its_bits_in_every_batch(dtype: torch.dtype) -> None:
    """The batch is cut at many places, and permuted so that no token keeps its place."""
    x, w = normal(70, H, dtype=dtype), weights(dtype)
    whole = moe(x, *w, TOP_K)
    for rows in (1, 2, 3, 15, 16, 17, 33, 64):
        start = rows % 5
        assert torch.equal(moe(x[start : start + rows], *w, TOP_K), whole[start : start + rows]), rows
    assert torch.equal(moe(x.roll(1, 0), *w, TOP_K), whole.roll(1, 0))
    assert torch.equal(moe(x.flip(0), *w, TOP_K), whole.flip(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_k7_kernels_give_a_token_its_bits_in_every_batch(dtype: torch.dtype, device: str) -> None:
    """The kernels pass the same check, run one after the other."""
    x, w = normal(22, H, dtype=dtype, device=device), weights(dtype, device)
    whole = by_kernels(x, *w)
    assert torch.equal(by_kernels(x.roll(1, 0), *w), whole.roll(1, 0))
    for part in (slice(4, 5), slice(2, 9)):
        assert torch.equal(by_kernels(x[part], *w), whole[part])
    assert_close(whole.cpu(), moe_ref(x.cpu(), *weights(dtype), TOP_K))


def test_k7_hostile_neighbours_change_nothing() -> None:
    """NaN, Inf and huge tokens are routed too, and affect no other token."""
    x, w = normal(20, H, dtype=torch.float32), weights(torch.float32)
    expected = moe(x, *w, TOP_K)
    for row in (0, 7, 19):
        assert torch.equal(moe(with_hostile_neighbours(x, row), *w, TOP_K)[row], expected[row])


def test_k7_every_token_to_one_expert_drops_none() -> None:
    """If all tokens choose one expert it processes them all, and a token's result is the same as alone."""
    x, (_, gate_up_w, down_w) = normal(50, H, dtype=torch.float32), weights(torch.float32)
    for expert in (0, 3, 5):
        ids, ones = torch.full((50, 1), expert), torch.ones(50, 1)
        together = experts(x, ids, ones, gate_up_w, down_w)
        for row in (0, 24, 49):
            alone = experts(x[row : row + 1], ids[:1], ones[:1], gate_up_w, down_w)
            assert torch.equal(together[row : row + 1], alone)
        assert (together.abs().sum(1) > 0).all()


@pytest.mark.parametrize("normalise", [True, False], ids=["normalised", "as_they_are"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k7_result_is_that_of_the_formula(dtype: torch.dtype, normalise: bool) -> None:
    """The result is compared with fp64, token by token."""
    x, w = normal(25, H, dtype=dtype), weights(dtype)
    expected = moe_ref(x, *w, TOP_K, normalise=normalise)
    assert_close(moe(x, *w, TOP_K, normalise=normalise), expected)


def test_k7_slot_of_no_expert_adds_nothing() -> None:
    """Ids of experts on another rank act as if the slot did not exist."""
    x, (_, gate_up_w, down_w) = normal(9, H, dtype=torch.float32), weights(torch.float32)
    ids = torch.tensor([[2, 5]] * 9)
    without = torch.tensor([[2, E]] * 9)
    some = torch.tensor([[0.25, 0.75]] * 9)
    expected = experts(x, ids[:, :1], some[:, :1], gate_up_w, down_w)
    assert torch.equal(experts(x, without, some, gate_up_w, down_w), expected)
    assert not torch.equal(experts(x, ids, some, gate_up_w, down_w), expected)


def test_k7_product_that_sees_the_group_is_caught() -> None:
    """Negative control: with torch's own grouped product a token's bits change with its neighbours."""
    hidden = 1024
    x = normal(64, hidden, dtype=torch.float32)
    down_w = normal(2, hidden, hidden, dtype=torch.float32, seed=1)

    def stock(rows: Tensor) -> Tensor:
        offsets = torch.tensor([0, rows.shape[0]], dtype=torch.int32)
        return torch._grouped_mm(rows, down_w.transpose(1, 2), offsets)

    assert not all(torch.equal(stock(x[:rows]), stock(x)[:rows]) for rows in (1, 2, 7, 33))


def test_k7_router_in_bf16_is_caught() -> None:
    """Negative control: with logits rounded to bf16 other experts are chosen than in fp32."""
    x, (router_w, _, _) = normal(500, H, dtype=torch.bfloat16), weights(torch.bfloat16)
    fine = route(x.float() @ router_w.float().t(), TOP_K)[1]
    coarse = route((x.float() @ router_w.float().t()).bfloat16(), TOP_K)[1]
    assert not torch.equal(fine, coarse)


def test_wrong_operands_are_refused() -> None:
    """The message names the operation and every shape; an empty batch is valid."""
    x, w = normal(4, H, dtype=torch.float32), weights(torch.float32)
    assert moe(x[:0], *w, TOP_K).shape == (0, H)
    with pytest.raises(UnsupportedInput, match=r"moe: the router does not fit.*pass \(T, H\) and \(E, H\)"):
        moe(x, w[0][:, 1:], *w[1:], TOP_K)
    with pytest.raises(UnsupportedInput, match="the shapes do not fit"):
        moe(x, w[0], w[1][:, 1:], w[2], TOP_K)
    with pytest.raises(UnsupportedInput, match="top_k is 7"):
        moe(x, *w, 7)
    with pytest.raises(UnsupportedInput, match="differ in dtype"):
        moe(x, w[0], w[1].bfloat16(), w[2], TOP_K)
