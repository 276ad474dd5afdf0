"""Our operations, with the names and arguments with which vLLM and SGLang call theirs.

Both engines have descendants of one file, whose functions implement linear layers, norms and softmax. Their callers may
be compiled into a graph, so each function is one opaque operation of `torch.ops.spanreplay` with a fake for shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.attention import paged_attention as attention_in_pages
from spanreplay_kernels.ops.matmul import matmul as product_of
from spanreplay_kernels.ops.mean import mean as mean_of
from spanreplay_kernels.ops.rms_norm import rms_norm as norm_of
from spanreplay_kernels.ops.rms_norm import rms_norm_residual
from spanreplay_kernels.switch import custom_ops
from spanreplay_kernels.switch.overrides import ORIGINALS, original
from spanreplay_kernels.switch.registry import counted

__all__ = ["NAMES", "PRODUCTS", "REPLACEMENTS", "keep_originals", "paged_attention"]

Function = Callable[..., Any]

PRODUCTS: Final = ("product",)
"""Names under which `engaged` counts products."""


def keep_originals() -> None:
    """Keep aten's own kernels, to which ours fall back for integers, before an engine overrides them."""
    for key in ("CPU", "CUDA") if torch.version.cuda else ("CPU",):
        for name in ORIGINALS:
            with contextlib.suppress(RuntimeError):  # an engine was first: aten's kernel is gone
                original(name, key)


def _define(name: str, schema: str, function: Function, fake: Function) -> Any:
    operation = torch.library.custom_op(
        f"spanreplay::engine_{name}", counted(name, function), mutates_args=(), schema=schema
    )
    operation.register_fake(fake)
    return getattr(torch.ops.spanreplay, f"engine_{name}")


def _product(a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None) -> Tensor:
    if out_dtype not in (None, a.dtype):
        if out_dtype != torch.float32:
            raise UnsupportedInput("mm", f"a result in {out_dtype} has no kernel", a, b, hint="ask for float32")
        # Not rounded to the operands' dtype: fp32 holds each factor exactly, and the order is that of an fp32 product
        a, b, bias = a.float(), b.float(), None if bias is None else bias.float()
    return product_of(a, b, bias).contiguous()


_product_op: Final = _define(
    "product",
    "(Tensor a, Tensor b, Tensor? bias, ScalarType? out_dtype) -> Tensor",
    _product,
    lambda a, b, bias, out_dtype: a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype),
)
_norm_op: Final = _define(
    "rms_norm",
    "(Tensor x, Tensor? weight, float eps) -> Tensor",
    lambda x, weight, eps: norm_of(x, weight, eps).contiguous(),
    lambda x, weight, eps: x.new_empty(x.shape),
)
_norm_of_sum_op: Final = _define(
    "rms_norm_of_sum",
    "(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)",
    lambda x, residual, weight, eps: tuple(each.contiguous() for each in rms_norm_residual(x, residual, weight, eps)),
    lambda x, residual, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape)),
)
_mean_op: Final = _define(
    "mean",
    "(Tensor x, int dim, bool keepdim, ScalarType? dtype) -> Tensor",
    lambda x, dim, keepdim, dtype: mean_of(x, dim, keepdim, dtype=dtype).contiguous(),
    lambda x, dim, keepdim, dtype: torch.empty_like(torch.ops.aten.mean.dim(x, [dim], keepdim, dtype=dtype)),
)
_bmm_op, _softmax_op, _log_softmax_op = (
    getattr(torch.ops.spanreplay, name) for name in ("bmm", "_softmax", "_log_softmax") if name in custom_ops.TWINS
)


def matmul_persistent(a: Tensor, b: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None) -> Tensor:
    """Return a (M, K) · b (K, N) + bias (N,); vLLM passes no `out_dtype`."""
    return _product_op(a, b, bias, out_dtype)


def linear_batch_invariant(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 -- the engine's name
    """Compute a linear layer: input (…, K), weight (N, K)."""
    rows = _product_op(input.reshape(-1, input.shape[-1]), weight.t(), bias, None)
    return rows.view(*input.shape[:-1], rows.shape[-1])


def rms_norm_batch_invariant(
    input: Tensor,  # noqa: A002 -- the engine's name
    weight: Tensor | None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the norm or, with a residual, the norm of the sum and the sum; the arguments are not modified."""
    if residual is None:
        return _norm_op(input, weight, eps)
    return _norm_of_sum_op(input, residual, weight, eps)


def rms_norm(input: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:  # noqa: A002 -- the engine's name
    """Return the norm, under SGLang's name."""
    return _norm_op(input, weight, eps)


def softmax(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 -- the engine's name
    """Compute softmax over one dimension, in the input's dtype."""
    return _softmax_op(input, dim, False)


def log_softmax(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 -- the engine's name
    """Compute log_softmax over one dimension, in the input's dtype."""
    return _log_softmax_op(input, dim, False)


def mean_dim(input: Tensor, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:  # noqa: A002 -- the engine's name
    """Compute the mean over one dimension; for integers in fp32."""
    if dtype is None and not input.is_floating_point():
        dtype = torch.float32
    return _mean_op(input if dtype is None else input.to(dtype), dim, keepdim, dtype)


def bmm_batch_invariant(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a (B, M, K) · b (B, K, N)."""
    product = _bmm_op(a, b)
    return product if out is None else out.copy_(product)


REPLACEMENTS: Final[Mapping[str, Function]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            bmm_batch_invariant, linear_batch_invariant, log_softmax, matmul_persistent, mean_dim, rms_norm,
            rms_norm_batch_invariant, softmax,
        )
    }
)  # fmt: skip
"""Name of the engine's function → our function."""

NAMES: Final = MappingProxyType(
    {
        "vllm": (
            "bmm_batch_invariant", "linear_batch_invariant", "log_softmax", "matmul_persistent",
            "rms_norm_batch_invariant", "softmax",
        ),
        "sglang": ("bmm_batch_invariant", "log_softmax", "matmul_persistent", "mean_dim", "rms_norm"),
    }
)  # fmt: skip
"""The functions to replace in each engine's own module of batch-invariant operations."""

paged_attention: Final = counted("paged_attention", attention_in_pages)
"""Counted attention over a paged cache; an engine calls its attention outside its compiled graphs."""
