"""Our custom operations, `torch.ops.spanreplay.*`: each is opaque, counted, and has a fake for shapes.

`invariant()` overrides operations that a model calls by aten's name. This module defines operations under our names:
attention over sequences and experts, which aten lacks, and for graphs a twin of every override, so that a compiler,
which bypasses the dispatcher, keeps our kernels as opaque calls.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from spanreplay_kernels.ops.attention import attention as attention_packed
from spanreplay_kernels.ops.moe import experts as experts_of_tokens
from spanreplay_kernels.ops.packing import masked_attention as attention_masked
from spanreplay_kernels.ops.permute import combine as combine_rows
from spanreplay_kernels.ops.permute import permute as permute_slots
from spanreplay_kernels.ops.scaled import scaled_mm
from spanreplay_kernels.switch.overrides import Function
from spanreplay_kernels.switch.registry import counted, overridden

__all__ = ["TWINS", "attention", "combine", "experts", "masked_attention", "permute", "scaled_product"]

_NAMESPACE: Final = "spanreplay"


def _define(name: str, schema: str, function: Function, fake: Function) -> Any:
    own_name = f"{_NAMESPACE}::{name.replace('.', '_')}"
    operation = torch.library.custom_op(own_name, counted(name, function), mutates_args=(), schema=schema)
    operation.register_fake(fake)
    return operation


def _attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, scale: float | None = None,
    causal: bool = True, window: int | None = None, max_len_k: int | None = None,
) -> Tensor:  # fmt: skip
    return attention_packed(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, scale=scale, causal=causal, window=window,
        max_len_k=max_len_k,
    )  # fmt: skip


attention: Final = _define(
    "attention",
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, float? scale=None, bool causal=True, "
    "int? window=None, int? max_len_k=None) -> Tensor",
    _attention,
    lambda q, *_args, **_kwargs: q.new_empty(q.shape),
)
"""`ops.attention.attention` as a custom operation, with positional lengths."""

masked_attention: Final = _define(
    "masked_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? mask=None, *, bool causal, float? scale=None, int? window=None) -> Tensor",
    lambda q, k, v, mask=None, **options: attention_masked(q, k, v, mask, **options).contiguous(),
    lambda q, *_args, **_kwargs: q.new_empty(q.shape),
)
"""`packing.masked_attention` as a custom operation."""


experts: Final = _define(
    "experts",
    "(Tensor x, Tensor top_k_index, Tensor top_k_weights, Tensor gate_up, Tensor down) -> Tensor",
    experts_of_tokens,
    lambda x, *_args, **_kwargs: x.new_empty(x.shape),
)
"""`ops.moe.experts` as a custom operation."""


scaled_product: Final = _define(
    "scaled_product",
    "(Tensor x, Tensor w, Tensor x_scale, Tensor w_scale, Tensor? bias, ScalarType out_dtype) -> Tensor",
    lambda x, w, x_scale, w_scale, bias, out_dtype: scaled_mm(x, w, x_scale, w_scale, bias, out_dtype=out_dtype),
    lambda x, w, x_scale, w_scale, bias, out_dtype: x.new_empty((x.shape[0], w.shape[1]), dtype=out_dtype),
)
"""`ops.scaled.scaled_mm` as a custom operation, with positional arguments."""


permute: Final = _define(
    "permute",
    "(Tensor ids, int experts) -> (Tensor, Tensor, Tensor)",
    lambda ids, experts: tuple(permute_slots(ids, experts)),
    lambda ids, experts: (
        ids.new_empty(ids.numel()), ids.new_empty(experts, dtype=torch.int32), ids.new_empty(ids.shape),
    ),
)  # fmt: skip
"""`ops.permute.permute` as a custom operation: order, offsets, inverse."""

combine: Final = _define(
    "combine",
    "(Tensor rows, Tensor inverse, Tensor weights) -> Tensor",
    combine_rows,
    lambda rows, inverse, weights: rows.new_empty((weights.shape[0], rows.shape[1])),
)
"""`ops.permute.combine` as a custom operation."""


def _twin(name: str, function: Function) -> Any:
    """Define an override under our own name, with aten's schema and aten's shape rules."""
    base, _, overload = name.partition(".")
    stock = getattr(getattr(torch.ops.aten, base), overload or "default")
    schema = str(stock._schema)
    return _define(name, schema[schema.index("(") :], _dense(function), _fake_of(stock))


def _dense(function: Function) -> Function:
    """Make results contiguous, as a graph expects, and never a view of an argument."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return tuple(r.contiguous() for r in result) if isinstance(result, tuple) else result.contiguous()

    return run


def _fake_of(stock: Any) -> Function:
    def fake(*args: Any, **kwargs: Any) -> Any:
        if stock is torch.ops.aten.scaled_dot_product_attention.default:
            return args[0].new_empty((*args[0].shape[:-1], args[2].shape[-1]))
        if stock is torch.ops.aten._grouped_mm.default:
            return args[0].new_empty((args[0].shape[0], args[1].shape[-1]))
        if stock is torch.ops.aten._fused_rms_norm.default:
            shape, normalized = args[0].shape, len(args[1])
            rstd = args[0].new_empty((*shape[: len(shape) - normalized], *[1] * normalized), dtype=torch.float32)
            return args[0].new_empty(shape), rstd
        result = stock(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        dense = tuple(r.new_empty(r.shape) for r in results)
        return dense if isinstance(result, tuple) else dense[0]

    return fake


def _is_functional(name: str) -> bool:
    return not (name.endswith(("_", "out")))


def _make_twins() -> Mapping[str, Any]:
    functions = {name: function for name, function in overridden("CPU").items() if _is_functional(name)}
    return MappingProxyType({name: _twin(name, function) for name, function in functions.items()})


TWINS: Final = _make_twins()
"""Name of an override → our custom operation with the same arguments."""
