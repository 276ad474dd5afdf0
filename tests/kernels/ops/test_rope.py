"""Rotary position embedding: an element's bits are independent of the batch, and the same on every device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, HOSTILE, name_of, normal
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.rope import rope, rope_ref, rope_triton

Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]


def angles(S: int, D: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """cos and sin (1, S, D) of positions 0 … S - 1, as from a model's rotary embedding."""
    frequencies = 1e4 ** (-torch.arange(0, D, 2).double() / D)
    both = torch.outer(torch.arange(S).double(), frequencies).repeat(1, 2)[None]
    return both.cos().to(dtype), both.sin().to(dtype)


def by_cpu(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rope(x, x, cos, sin)[1]


def by_kernel(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rope_triton(x, cos, sin)


def assert_parts_keep_their_bits(rotate: Rotate, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Assert that a sequence alone, a chunk of it and one token have the same bits as in the whole batch."""
    whole = rotate(x, cos, sin)
    for b in range(x.shape[0]):
        assert torch.equal(rotate(x[b : b + 1], cos, sin)[0], whole[b]), b
    for start, end in ((0, 1), (1, x.shape[2]), (x.shape[2] - 1, x.shape[2])):
        part = rotate(x[:, :, start:end], cos[:, start:end], sin[:, start:end])
        assert torch.equal(part, whole[:, :, start:end]), (start, end)


@pytest.mark.parametrize("rotate", [by_cpu, by_kernel], ids=["cpu", "kernel"])
@pytest.mark.parametrize(("H", "S", "D"), [(3, 7, 2), (1, 5, 20), (5, 4, 128)])
def test_k9_rope_gives_a_token_its_bits_in_every_batch(rotate: Rotate, H: int, S: int, D: int, device: str) -> None:
    """Any sequences and any part of them are tried, with odd sizes too."""
    where = "cpu" if rotate is by_cpu else device
    x = normal(4, H, S, D, dtype=torch.float32, device=where)
    assert_parts_keep_their_bits(rotate, x, *(each.to(where) for each in angles(S, D)))


@pytest.mark.parametrize("rotate", [by_cpu, by_kernel], ids=["cpu", "kernel"])
def test_k9_hostile_neighbours_do_not_reach_a_token(rotate: Rotate, device: str) -> None:
    """NaN, Inf, huge and denormal tokens beside one, in its sequence and in others, don't change its bits."""
    where = "cpu" if rotate is by_cpu else device
    x = normal(2, 3, 6, 20, dtype=torch.bfloat16, device=where)
    cos, sin = (each.to(where) for each in angles(6, 20))
    expected = rotate(x, cos, sin)
    hostile = torch.tensor([HOSTILE], device=where).view(1, 1, 6, 1).expand_as(x).to(x.dtype).clone()
    for b, s in ((0, 0), (0, 3), (1, 5)):
        beside = hostile.clone()
        beside[b, :, s] = x[b, :, s]
        assert torch.equal(rotate(beside, cos, sin)[b, :, s], expected[b, :, s])


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("angle_dtype", DTYPES, ids=name_of)
def test_k9_rope_is_its_definition_to_the_bit(dtype: torch.dtype, angle_dtype: torch.dtype, device: str) -> None:
    """CPU and kernel have the same bits, because every step is defined by IEEE 754."""
    if angle_dtype not in (dtype, torch.float32):
        with pytest.raises(UnsupportedInput, match="cos or sin do not fit"):
            rope(*(torch.ones(1, 1, 1, 2, dtype=dtype),) * 2, *angles(1, 2, angle_dtype))
        return
    q, k = normal(2, 5, 3, 20, dtype=dtype), normal(2, 2, 3, 20, dtype=dtype, seed=1)
    cos, sin = angles(3, 20, angle_dtype)
    for ours, x in zip(rope(q, k, cos, sin), (q, k), strict=True):
        assert torch.equal(ours, rope_ref(x, cos, sin))
        assert torch.equal(rope_triton(x.to(device), cos.to(device), sin.to(device)).cpu(), ours)


def test_k9_rope_is_that_of_transformers() -> None:
    """In fp32 it is equal bit for bit; in narrower dtypes ours is rounded once, and so is nearer to fp64."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k = normal(2, 4, 9, 64, dtype=torch.float32), normal(2, 2, 9, 64, dtype=torch.float32, seed=1)
    cos, sin = angles(9, 64)
    for ours, theirs in zip(rope(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert torch.equal(ours, theirs)
    narrow = [each.bfloat16() for each in (q, k, cos, sin)]
    exact = apply_rotary_pos_emb(*(each.double() for each in narrow))[0]
    ours, theirs = rope(*narrow)[0], apply_rotary_pos_emb(*narrow)[0]
    assert (ours - exact).abs().mean() < (theirs - exact).abs().mean()


def test_k9_rope_takes_any_strides_and_angles_of_each_sequence(device: str) -> None:
    """Heads transposed as from a projection, angles common or per sequence, and no tokens at all."""
    projected = normal(2, 5, 3, 20, dtype=torch.float32)
    x = projected.transpose(1, 2)
    cos, sin = angles(5, 20)
    expected = rope_ref(x, cos, sin)
    each_cos, each_sin = cos.repeat(2, 1, 1), sin.repeat(2, 1, 1)
    for angle in ((cos, sin), (each_cos, each_sin)):
        assert torch.equal(by_cpu(x, *angle), expected)
        assert torch.equal(rope_triton(x.to(device), *(a.to(device) for a in angle)).cpu(), expected)
    each_cos[1], each_sin[1] = angles(9, 20)[0][0, 4:], angles(9, 20)[1][0, 4:]
    later = rope_triton(x.to(device), each_cos.to(device), each_sin.to(device)).cpu()
    assert torch.equal(later, rope_ref(x, each_cos, each_sin))
    assert torch.equal(later[0], expected[0])
    assert not torch.equal(later[1], expected[1])
    assert by_cpu(x[:, :, :0], cos[:, :0], sin[:, :0]).shape == (2, 3, 0, 20)


def test_k9_rope_that_counts_tokens_of_the_batch_is_caught() -> None:
    """Negative control: using a token's place in the packed batch instead of its sequence does not pass."""

    def variant(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, _, S, D = x.shape
        packed = angles(B * S, D)
        return rope_ref(x, packed[0].view(B, S, D), packed[1].view(B, S, D))

    with pytest.raises(AssertionError):
        assert_parts_keep_their_bits(variant, normal(2, 2, 3, 8, dtype=torch.float32), *angles(3, 8))


def test_wrong_operands_of_rope_are_refused() -> None:
    """The message names the operation, the shapes and what to pass."""
    x, (cos, sin) = torch.ones(2, 3, 4, 8), angles(4, 8)
    with pytest.raises(UnsupportedInput, match=r"rope: these shapes do not fit .*float32\[1, 3, 8\].*D even"):
        rope(x, x, cos[:, :3], sin[:, :3])
    with pytest.raises(UnsupportedInput, match="not heads and angles"):
        rope(x[0], x[0], cos, sin)
    with pytest.raises(UnsupportedInput, match="these shapes do not fit"):
        rope(x[..., :7], x[..., :7], cos[..., :7], sin[..., :7])
    with pytest.raises(UnsupportedInput, match="differ in dtype"):
        rope(x, x.half(), cos, sin)
    with pytest.raises(UnsupportedInput, match="cos and sin differ in dtype"):
        rope(x.half(), x.half(), cos.half(), sin)
