"""Subjects without sums: activations, rotations, sampling. Neighbours may still affect which instructions a row gets.

Fast kernels process elements in vectors and the remainder after the last whole vector with other instructions, whose
exponential or contracted product differs; which ones an element gets depends on its position in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from spanreplay_kernels.ops.activation import silu_mul
from spanreplay_kernels.ops.rope import rope
from spanreplay_kernels.ops.sampling import sample, sample_ref
from spanreplay_kernels.plans.arch import Arch
from spanreplay_kernels.plans.plan import Plan
from spanreplay_kernels.subjects._subject import Function, Subject, chosen_by_value

__all__ = ["rope_subject", "sample_subject", "silu_mul_subject"]

_VECTOR = 16
_ANGLES = 256
_TEMPERATURE, _TOP_P, _TOP_K = 0.8, 0.9, 50


def _nothing(dtype: str, arch: Arch) -> tuple[Plan, ...]:
    return ()


def _with_a_tail(vector: Function, tail: Function) -> Function:
    """Apply `vector` to whole vectors of rows, and `tail` to the rows after the last whole vector."""

    def call(x: Tensor, *weights: Tensor) -> Tensor:
        whole = x.shape[0] // _VECTOR * _VECTOR
        return torch.cat((vector(x[:whole], *weights), tail(x[whole:], *weights)))

    return call


def silu_mul_subject(width: int) -> Subject:
    """Return the subject of silu_mul; x holds gate and up side by side, `width` elements each."""

    def ours(x: Tensor) -> Tensor:
        return silu_mul(*x.chunk(2, 1))

    def stock(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, 1)
        return functional.silu(gate) * up

    def by_division(x: Tensor) -> Tensor:
        gate, up = x.float().chunk(2, 1)
        return (gate / (1.0 + torch.exp(-gate)) * up).to(x.dtype)

    def by_sigmoid(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, 1)
        return gate * torch.sigmoid(gate) * up

    varies = _with_a_tail(by_division, by_sigmoid)
    return Subject(2 * width, (), ours, stock, _nothing, 1.0, varies=varies)


def rope_subject(heads: int, head_dim: int) -> Subject:
    """Return the subject of rope; a row is the heads of a token, and its own value chooses the position.

    sin is negated in the first half, so that the terms of both halves have the same sign and don't cancel.
    """

    def angles(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        at = chosen_by_value(x, _ANGLES)
        half = head_dim // 2
        return cos[at], torch.cat((-sin[at, :half], sin[at, half:]), -1)

    def ours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = x.reshape(x.shape[0], heads, head_dim).transpose(0, 1)[None]
        c, s = angles(x, cos, sin)
        rotated, _ = rope(q, q[:, :1], c[None], s[None])
        return rotated[0].transpose(0, 1).reshape(x.shape)

    def parts(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        q = x.reshape(x.shape[0], heads, head_dim)
        c, s = (each[:, None] for each in angles(x, cos, sin))
        first, second = q.chunk(2, -1)
        return q, c, torch.cat((-second, first), -1), s

    def stock(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, c, turned, s = parts(x, cos, sin)
        return (q * c + turned * s).reshape(x.shape)

    def apart(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, c, turned, s = parts(x.float(), cos.float(), sin.float())
        return (q * c + turned * s).to(x.dtype).reshape(x.shape)

    def contracted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, c, turned, s = parts(x, cos, sin)
        # The second product is not rounded, as in a fused multiply-add
        total = (q * c).double() + turned.double() * s.double()
        return total.to(x.dtype).reshape(x.shape)

    shapes = ((_ANGLES, head_dim), (_ANGLES, head_dim))
    varies = _with_a_tail(apart, contracted)
    return Subject(heads * head_dim, shapes, ours, stock, _nothing, 1.0, varies=varies)


def sample_subject(width: int) -> Subject:
    """Return the subject of sampling; a row's own value chooses its seed and position."""

    def places(x: Tensor) -> tuple[Tensor, Tensor]:
        return chosen_by_value(x, 2**20, 2**16), chosen_by_value(x, 2**20, 3)

    def ours(x: Tensor) -> Tensor:
        return sample(x, *places(x), temperature=_TEMPERATURE, top_k=min(_TOP_K, width), top_p=_TOP_P)

    def stock(x: Tensor) -> Tensor:
        """Draw with one generator for the whole batch, so a row's draw depends on its position."""
        powers = torch.softmax(x.float() / _TEMPERATURE, -1).nan_to_num(1.0)
        generator = torch.Generator(x.device).manual_seed(0)
        return torch.multinomial(powers, 1, generator=generator)[:, 0]

    def exact(x: Tensor) -> Tensor:
        """Apply the definition, with seed and position derived from the row's same value."""
        temperature = x.new_full(x.shape[:1], _TEMPERATURE, dtype=torch.float32)
        top_k = torch.full_like(temperature, min(_TOP_K, width)).long()
        return sample_ref(x.float(), *places(x), temperature, top_k, torch.full_like(temperature, _TOP_P))

    return Subject(width, (), ours, stock, _nothing, 0.0, exact)
