"""K8: one decoded token of an 8B model with our kernels and torch's, and distinct answers to identical requests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bench.ops import Calls, Case, Place

__all__ = ["answers_of", "decode_steps"]

_EPS: Final = 1e-5
_PAGE: Final = 16


class Shape(NamedTuple):
    """The sizes of a Llama-like model."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    layers: int
    """Enough layers that their weights don't fit into a cache; the time of all layers is proportional."""


LLAMA_8B: Final = Shape(4096, 14_336, 32, 8, 128, 128_256, 8)
TINY: Final = Shape(64, 96, 4, 2, 16, 128, 2)


class Layer(NamedTuple):
    """Weights (out, in) as `linear` takes them, and the cache of each sequence."""

    norm: Tensor
    qkv: Tensor
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor
    keys: Tensor
    """(B, L, Hkv, D), the newest token's last."""
    values: Tensor


class Step(NamedTuple):
    """One decoded token for each of B sequences of L tokens."""

    shape: Shape
    layers: list[Layer]
    x: Tensor
    cos: Tensor
    sin: Tensor
    norm: Tensor
    head: Tensor

    def split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Return q (B, Hq, 1, D), k and v (B, Hkv, 1, D)."""
        shape = self.shape
        parts = qkv.split([shape.heads * shape.head_dim, *[shape.kv_heads * shape.head_dim] * 2], -1)
        return tuple(part.view(part.shape[0], -1, 1, shape.head_dim) for part in parts)


def decode_steps(place: Place) -> Iterator[Case]:
    """Yield steps of continuous batching after all prompts are processed."""
    shape = TINY if place.is_quick else LLAMA_8B
    for B, L in ((2, 48),) if place.is_quick else ((1, 1024), (1, 8192), (16, 1024), (64, 1024), (64, 4096)):
        what = f"B={B} L={L} layers={shape.layers} hidden={shape.hidden}"
        yield Case("K8", "decode step", what, partial(_build, place, shape, B, L), ("torch", "torch.compile"))


def _build(place: Place, shape: Shape, B: int, L: int) -> Calls:
    """Return our step, torch's step and its compiled version, all on the same caches."""
    step = _step(place, shape, B, L)
    return {
        "ours": partial(ours, step),
        "torch": partial(stock, step),
        "torch.compile": partial(_compiled(place), step),
    }


@functools.cache
def _compiled(place: Place) -> Callable[[Step], Tensor]:
    """Compile torch's step: with Inductor on a GPU; elsewhere it is only traced, since its times mean nothing."""
    backend = "inductor" if place.device.type == "cuda" else "aot_eager"
    found: Callable[[Step], Tensor] = torch.compile(stock, fullgraph=True, dynamic=False, backend=backend)
    return found


def _step(place: Place, shape: Shape, B: int, L: int) -> Step:
    def weight(*sizes: int) -> Tensor:
        return place.normal(*sizes) * sizes[-1] ** -0.5

    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layers = [
        Layer(
            place.normal(shape.hidden).abs(), weight(wide + 2 * narrow, shape.hidden), weight(shape.hidden, wide),
            place.normal(shape.hidden).abs(), weight(2 * shape.inner, shape.hidden), weight(shape.hidden, shape.inner),
            *(place.normal(B, L, shape.kv_heads, shape.head_dim) for _ in range(2)),
        )
        for _ in range(shape.layers)
    ]  # fmt: skip
    angles = torch.arange(shape.head_dim, device=place.device).float()[None, None].expand(B, 1, -1) * 0.1
    return Step(
        shape, layers, place.normal(B, shape.hidden), angles.cos().contiguous(), angles.sin().contiguous(),
        place.normal(shape.hidden).abs(), weight(shape.vocabulary, shape.hidden),
    )  # fmt: skip


def ours(step: Step) -> Tensor:
    """Return logits (B, V) from our kernels, with keys in pages."""
    from spanreplay_kernels.ops.activation import silu_mul
    from spanreplay_kernels.ops.attention import paged_attention
    from spanreplay_kernels.ops.matmul import linear
    from spanreplay_kernels.ops.rms_norm import rms_norm, rms_norm_residual
    from spanreplay_kernels.ops.rope import rope

    B, L = step.layers[0].keys.shape[:2]
    pages = torch.arange(B * L // _PAGE, device=step.x.device, dtype=torch.int32).view(B, -1)
    lengths = torch.full((B,), L, device=step.x.device, dtype=torch.int32)
    residual, h = step.x, rms_norm(step.x, step.layers[0].norm, _EPS)
    for at, layer in enumerate(step.layers):
        q, k, v = step.split(linear(h, layer.qkv))
        q, k = rope(q, k, step.cos, step.sin)
        layer.keys[:, -1], layer.values[:, -1] = k[:, :, 0], v[:, :, 0]
        caches = (each.view(-1, _PAGE, *each.shape[2:]) for each in (layer.keys, layer.values))
        keys, values = caches
        attended = paged_attention(q[:, :, 0], keys, values, pages, lengths, max_len_k=L)
        h, residual = rms_norm_residual(linear(attended.flatten(1), layer.out), residual, layer.norm_mlp, _EPS)
        out = linear(silu_mul(*linear(h, layer.gate_up).chunk(2, -1)), layer.down)
        following = step.layers[at + 1].norm if at + 1 < len(step.layers) else step.norm
        h, residual = rms_norm_residual(out, residual, following, _EPS)
    return linear(h, step.head)


def stock(step: Step) -> Tensor:
    """Return the same from torch's own operations, with contiguous keys."""
    x = step.x
    for layer in step.layers:
        h = functional.rms_norm(x, layer.norm.shape, layer.norm, _EPS)
        q, k, v = step.split(functional.linear(h, layer.qkv))
        q, k = (_rotated(each, step) for each in (q, k))
        layer.keys[:, -1], layer.values[:, -1] = k[:, :, 0], v[:, :, 0]
        keys, values = (each.transpose(1, 2) for each in (layer.keys, layer.values))
        attended = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        x = x + functional.linear(attended.flatten(1), layer.out)
        h = functional.rms_norm(x, layer.norm_mlp.shape, layer.norm_mlp, _EPS)
        gate, up = functional.linear(h, layer.gate_up).chunk(2, -1)
        x = x + functional.linear(functional.silu(gate) * up, layer.down)
    return functional.linear(functional.rms_norm(x, step.norm.shape, step.norm, _EPS), step.head)


def _rotated(x: Tensor, step: Step) -> Tensor:
    first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return (x * step.cos[:, None] + turned * step.sin[:, None]).to(x.dtype)


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────────
def answers_of(place: Place, name: str) -> dict[str, Any]:
    """Count distinct answers to 1,000 identical requests among random neighbours, with `ours` or `torch`'s kernels.

    Greedy, with transformers' continuous batching; random weights with the sizes of an 8B model but fewer layers. An
    answer is its tokens and their probabilities, bit by bit.
    """
    from spanreplay_kernels.demo import KINDS, answers, crowd_of, tiny_model
    from spanreplay_kernels.engines.transformers import enable

    copies, neighbours, new_tokens = (4, 3, 2) if place.is_quick else (1000, 200, 32)
    model = tiny_model(KINDS[0]) if place.is_quick else _model(place)
    wanted, crowd = crowd_of(copies, neighbours)
    context: AbstractContextManager[Any] = enable(model) if name == "ours" else nullcontext()
    with context:
        given = answers(model, crowd, wanted, new_tokens=new_tokens, batch_tokens=2048, blocks=256)
    return {
        "answers": len(set(given)), "texts": len({each.tokens for each in given}), "of": len(given),
        "requests": copies, "neighbours": neighbours, "new_tokens": new_tokens,
    }  # fmt: skip


def _model(place: Place) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = LLAMA_8B
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=2048, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    with place.device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
