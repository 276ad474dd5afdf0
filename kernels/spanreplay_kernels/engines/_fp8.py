"""Our products for transformers' fine-grained fp8 layers, used within `enable`.

transformers' own kernels come from a hub, choose a tile by the number of rows, and bypass torch's dispatcher.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from transformers.integrations import finegrained_fp8

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.scaled import quantize
from spanreplay_kernels.plans.plan import FP8_GROUP
from spanreplay_kernels.switch.custom_ops import combine, permute, scaled_product
from spanreplay_kernels.switch.nesting import shared

__all__ = ["fp8_experts_forward", "fp8_is_ours", "fp8_linear"]

_MAX: Final = torch.finfo(torch.float8_e4m3fn).max
_HINT: Final = "load it with FineGrainedFP8Config(dequantize=True)"


@shared
@contextmanager
def fp8_is_ours() -> Iterator[None]:
    """Replace the products of `FP8Linear` with ours, for the whole process."""
    original, finegrained_fp8.fp8_linear = finegrained_fp8.fp8_linear, fp8_linear
    try:
        yield
    finally:
        finegrained_fp8.fp8_linear = original


def fp8_linear(
    input: Tensor,  # noqa: A002 -- transformers' name
    weight: Tensor,
    weight_scale_inv: Tensor,
    block_size: Sequence[int] | None = None,
    bias: Tensor | None = None,
    activation_scale: Tensor | None = None,
    allow_deepgemm: bool = True,
) -> Tensor:
    """Compute a linear layer as transformers calls it: input (…, K), weight (N, K) in e4m3, scaled as one or in blocks.

    Tokens are scaled by their own largest value or, if the weight has blocks, by that of each 128 of their elements; if
    the model has an activation_scale, by that. Blocks are 128 × 128.
    Raises: UnsupportedInput for other blocks and for weights in fp4.
    """
    if weight.dtype != torch.float8_e4m3fn:
        raise UnsupportedInput("fp8_linear", f"weights of {weight.dtype} have no kernel", weight, hint=_HINT)
    if block_size is not None and tuple(block_size) != (FP8_GROUP, FP8_GROUP):
        raise UnsupportedInput("fp8_linear", f"blocks of {tuple(block_size)} have no kernel", weight, hint=_HINT)
    x = input.reshape(-1, input.shape[-1])
    if activation_scale is None:
        q, scale = quantize(x, FP8_GROUP if block_size is not None else None)
    else:
        scale = activation_scale.float().reshape(1, 1).expand(x.shape[0], 1)
        q = (x.float() / scale).clamp(-_MAX, _MAX).to(weight.dtype)
    w_scale = weight_scale_inv.float()
    w_scale = w_scale.reshape(1, 1) if w_scale.numel() == 1 and block_size is None else w_scale.t()
    out: Tensor = scaled_product(q, weight.t(), scale, w_scale, bias, input.dtype)
    return out.reshape(*input.shape[:-1], weight.shape[0])


def fp8_experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute fp8 experts as transformers' registry calls them: (T, H) for tokens (T, H), expert by expert.

    Each expert's rows are multiplied separately; a token's slots are added up in fp32, from the first to the last. The
    host waits for the numbers of rows, so this can't be captured in a CUDA graph.
    Raises: as `fp8_linear`.
    """
    names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
    order, offsets, inverse = permute(top_k_index, module.num_experts)
    rows = hidden_states[order // top_k_index.shape[1]]
    out = torch.zeros_like(rows)
    for e, (start, end) in enumerate(itertools.pairwise((0, *offsets.tolist()))):
        if start < end:
            h = _of_expert(module, names[0], e, rows[start:end])
            h = module._apply_gate(h) if module.has_gate else module.act_fn(h)
            out[start:end] = _of_expert(module, names[1], e, h)
    result: Tensor = combine(out, inverse, top_k_weights)
    return result


def _of_expert(module: Any, name: str, e: int, x: Tensor) -> Tensor:
    """Multiply x by one expert's weight."""
    scales = getattr(module, f"{name}_activation_scale", None)
    scale_inv = getattr(module, f"{name}_scale_inv")[e]
    scale = None if scales is None else scales[e]
    return fp8_linear(x, getattr(module, name)[e], scale_inv, module.block_size, None, scale)
