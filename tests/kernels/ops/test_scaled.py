"""fp8 products: a token's scales and sums don't depend on its batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.samples import normal, with_hostile_neighbours
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.scaled import quantize, quantize_weight, scaled_mm, scaled_mm_ref, scaled_mm_triton
from spanreplay_kernels.plans.arch import ARCHS, CPU
from spanreplay_kernels.plans.plan import plan, plan_scaled

FP8 = "float8_e4m3fn"
GROUPS = (None, 128)
groups = pytest.mark.parametrize("group", GROUPS, ids=["rows", "blocks"])


def operands(M: int, N: int, K: int, group: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, w and their scales, with values that differ widely between rows and between blocks."""
    spread = torch.arange(M)[:, None] % 5 + 0.5 + torch.arange(K)[None, :] // 128
    x, x_scale = quantize(normal(M, K, dtype=torch.bfloat16) * spread, group)
    w, w_scale = quantize_weight(normal(K, N, dtype=torch.bfloat16, seed=1) * (torch.arange(N) % 3 + 1.0), group)
    return x, w, x_scale, w_scale


def by_kernels(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None, *, device: str,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """The product by the Triton kernels, with an H100's plan."""
    made = plan_scaled(w.shape[1], w.shape[0], FP8, ARCHS["sm_90"])
    x, w, x_scale, w_scale = (each.to(device) for each in (x, w, x_scale, w_scale))
    bias = None if bias is None else bias.to(device)
    return scaled_mm_triton(x, w, x_scale, w_scale, bias, made, out_dtype).cpu()


def spread(scale: Tensor, rows: int, columns: int, size: tuple[int, int]) -> Tensor:
    """Expand scales (·, ·), each of which covers so many rows and columns, to one for each of `size`."""
    wide = scale.repeat_interleave(rows, 0) if scale.shape[0] > 1 else scale
    wide = wide.repeat_interleave(columns, 1) if wide.shape[1] not in (1, size[1]) else wide
    return wide[: size[0], : size[1]].expand(size)


def by_definition(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, arch: str = "sm_90") -> Tensor:
    """`scaled_mm_ref` with an architecture's plan."""
    (M, K), N = x.shape, w.shape[1]
    count = -(-K // 128)
    made = plan_scaled(N, K, FP8, ARCHS[arch])
    w_spread = spread(w_scale, 1, 128, (count, N))
    return scaled_mm_ref(x, w, x_scale.expand(M, count), w_spread, made)


@groups
@pytest.mark.parametrize("K", [96, 1296], ids=["one block", "two segments"])
def test_k9_fp8_kernels_follow_the_plan(K: int, group: int | None, device: str) -> None:
    """With few rows, many rows, and a ragged last block, kernels match the definition and nearly the exact product."""
    each = operands(70, 144, K, group)
    expected = by_definition(*each)
    x, w, x_scale, w_scale = each
    exact = (x.double() * spread(x_scale, 1, 128, (70, K))) @ (w.double() * spread(w_scale, 128, 128, (K, 144)))
    for rows in (5, 70):
        found = by_kernels(x[:rows], w, x_scale[:rows], w_scale, device=device, out_dtype=torch.float32)
        torch.testing.assert_close(found, expected[:rows], rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(found.double(), exact[:rows], rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(scaled_mm(*each, out_dtype=torch.float32).double(), exact, rtol=1e-5, atol=1e-3)


@groups
def test_k9_fp8_row_has_its_bits_in_every_batch(group: int | None, device: str) -> None:
    """By the kernels and on the CPU, around tile sizes, with two segments; in fp32, which hides nothing."""
    x, w, x_scale, w_scale = operands(130, 80, 1040, group)
    assert plan_scaled(80, 1040, FP8, ARCHS["sm_90"]).segments == 2

    def both(at: slice) -> tuple[Tensor, Tensor]:
        part = (x[at], w, x_scale[at], w_scale)
        kernels = by_kernels(*part, device=device, out_dtype=torch.float32)
        return kernels, scaled_mm(*part, out_dtype=torch.float32)

    whole = both(slice(0, 130))
    for rows in (1, 2, 15, 16, 17, 33, 64, 65, 129):
        at = slice((130 - rows) // 2, (130 - rows) // 2 + rows)
        for part, of_whole in zip(both(at), whole, strict=True):
            assert torch.equal(part, of_whole[at]), rows


@groups
def test_k9_fp8_hostile_neighbours_change_nothing(group: int | None, device: str) -> None:
    """NaN, Inf and huge rows beside a row change neither its scales nor its product."""
    plain = normal(20, 400, dtype=torch.bfloat16)
    w, w_scale = quantize_weight(normal(400, 48, dtype=torch.bfloat16, seed=1), group)
    for row in (0, 7, 19):
        results = []
        for x in (plain, with_hostile_neighbours(plain, row)):
            q, scale = quantize(x, group)
            results.append((q[row].float(), scale[row], by_kernels(q, w, scale, w_scale, device=device)[row],
                            scaled_mm(q, w, scale, w_scale)[row]))  # fmt: skip
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other)


def test_k9_fp8_one_scale_of_a_batch_is_caught_and_refused() -> None:
    """Negative control: scaled by the batch's largest value, a row has other bits beside a large one."""
    x = normal(4, 128, dtype=torch.float32)
    x[3] *= 50.0
    w, w_scale = quantize_weight(normal(128, 16, dtype=torch.float32, seed=1))

    def by_batch(rows: Tensor) -> tuple[Tensor, Tensor]:
        scale = rows.abs().amax()[None, None] / 448.0
        return (rows / scale).to(torch.float8_e4m3fn), scale

    with_large, alone = by_batch(x), by_batch(x[:3])
    results = [scaled_mm(q, w, s.expand(len(q), 1), w_scale)[:3] for q, s in (with_large, alone)]
    assert not torch.equal(*results)
    with pytest.raises(UnsupportedInput, match=r"one scale for its whole batch.*pass one a row \(M, 1\)"):
        scaled_mm(with_large[0], w, with_large[1], w_scale)


def test_k9_fp8_another_order_gives_other_bits(device: str) -> None:
    """Negative control: with a plan of one segment the same kernels differ."""
    x, w, x_scale, w_scale = (each.to(device) for each in operands(40, 64, 1280, 128))
    made = plan_scaled(64, 1280, FP8, ARCHS["sm_90"])
    other = dataclasses.replace(made, segments=1, segment_k=1280)
    assert made.segments == 2
    results = [scaled_mm_triton(x, w, x_scale, w_scale, None, p, torch.float32) for p in (made, other)]
    assert not torch.equal(*results)


@groups
def test_k9_fp8_quantises_as_its_definition(group: int | None) -> None:
    """Each element is e4m3fn's nearest to x / scale; the largest of a row or group is 448; K may be ragged."""
    x = normal(7, 300, dtype=torch.float32)
    q, scale = quantize(x, group)
    assert scale.shape == ((7, 1) if group is None else (7, 3))
    parts = x.split(group or 300, 1)
    for g, (part, found) in enumerate(zip(parts, q.split(group or 300, 1), strict=True)):
        assert torch.equal(scale[:, g], part.abs().amax(1) / 448.0)
        assert torch.equal(found.float().abs().amax(1), torch.full((7,), 448.0))
        step = torch.exp2(torch.floor(torch.log2((part / scale[:, g, None]).abs().clamp(min=2.0**-6))) - 3)
        assert ((found.float() - part / scale[:, g, None]).abs() <= step / 2).all()
    nothing, scale_of_nothing = quantize(torch.zeros(2, 128), group)
    assert not nothing.float().any()
    assert (scale_of_nothing > 0).all()


@groups
def test_k9_columns_of_an_fp8_weight_lie_dense(group: int | None) -> None:
    """Columns are dense for any given weight: one that isn't is copied in each call."""
    w = normal(256, 384, dtype=torch.bfloat16)
    for given in (w, w.t().contiguous().t()):
        assert quantize_weight(given, group)[0].stride() == (1, 256)


def test_k9_fp8_weights_of_blocks_are_scaled_by_block() -> None:
    """A block's largest value is 448; columns are dense, as the product reads them."""
    w = normal(256, 144, dtype=torch.bfloat16)
    q, scale = quantize_weight(w, 128)
    assert scale.shape == (2, 2)
    assert q.t().is_contiguous()
    assert q[128:, :128].float().abs().max() == 448.0
    torch.testing.assert_close(scale[1, 1], w[128:, 128:].float().abs().max() / 448.0)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_k9_fp8_bias_is_added_once_before_rounding(out_dtype: torch.dtype, device: str) -> None:
    """One bias for all rows is added, by the kernels for few and many rows, and on the CPU."""
    each = operands(70, 48, 1296, None)
    bias = normal(48, dtype=torch.bfloat16, seed=3)
    expected = (by_definition(*each) + bias.float()).to(out_dtype)
    tolerance = {"rtol": 2 * torch.finfo(out_dtype).eps, "atol": 1e-2}
    for rows in (3, 70):
        found = by_kernels(each[0][:rows], each[1], each[2][:rows], each[3], bias, device=device, out_dtype=out_dtype)
        torch.testing.assert_close(found, expected[:rows], **tolerance)
    torch.testing.assert_close(scaled_mm(*each, bias, out_dtype=out_dtype), expected, **tolerance)


def test_fp8_plans_are_of_gpus_that_multiply_it() -> None:
    """A block of 128 is one sum; before sm_89 no GPU multiplies fp8, and no other dtype has such a plan."""
    for name, arch in ARCHS.items():
        if name == "sm_80":
            with pytest.raises(UnsupportedInput, match=r"scaled_mm: sm_80 multiplies no fp8.*dequantised"):
                plan_scaled(64, 256, FP8, arch)
        elif arch is not CPU:
            made = plan_scaled(1024, 4096, FP8, arch)
            assert made == plan("scaled_mm", n=1024, k=4096, dtype=FP8, arch=arch)
            assert (made.block_k, made.mma) == (128, arch.tensor_core)
    with pytest.raises(UnsupportedInput, match="dtype bfloat16 has no plan; use float8_e4m3fn"):
        plan_scaled(64, 256, "bfloat16", CPU)


def refused() -> list[Any]:
    """Invalid operands, and the part of the message that names them."""
    x, w, x_scale, w_scale = operands(4, 32, 256, 128)
    return [
        ((x, w[:128], x_scale, w_scale), "do not multiply"),
        ((x.float(), w, x_scale, w_scale), "no plan.*float8_e4m3fn"),
        ((x[:, :200], w[:200], x_scale, w_scale), "multiple of 16.*pad"),
        ((x, w, x_scale[:2], w_scale), r"scales of x do not fit.*pass \(4, 1\) or \(4, 2\)"),
        ((x, w, x_scale, w_scale[:1].expand(1, 5)), r"scales of w do not fit.*pass \(1, 32\) or \(2, 1\)"),
        ((x, w, x_scale.double(), w_scale), "scales are fp32"),
        ((x, w, x_scale, w_scale, torch.zeros(3)), "bias does not fit"),
    ]


@pytest.mark.parametrize("at", range(7))
def test_fp8_wrong_operands_are_refused(at: int) -> None:
    """Each message names the operation, the invalid operand and what to pass."""
    arguments, message = refused()[at]
    with pytest.raises(UnsupportedInput, match=f"^scaled_mm: .*{message}"):
        scaled_mm(*arguments)


def test_fp8_no_rows_give_no_rows() -> None:
    """An empty batch is valid."""
    x, w, x_scale, w_scale = operands(4, 32, 256, None)
    assert scaled_mm(x[:0], w, x_scale[:0], w_scale).shape == (0, 32)
