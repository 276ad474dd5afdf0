"""Replacements for aten's operations: one entry per overload, with aten's own arguments.

Within `invariant()` the entries of `OVERRIDES` replace aten's kernels; models stay unchanged. Calls whose order doesn't
matter (integers, empty tensors) go to aten's own kernel. A row is a row of the *left* operand: if a caller puts its
tokens on the right (`w @ x.t()`), N is the batch, and a plan can't fix an order that depends on N.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from spanreplay_kernels.errors import UncoveredOp, UnsupportedInput
from spanreplay_kernels.ops.grouped import grouped_mm
from spanreplay_kernels.ops.matmul import bmm, matmul
from spanreplay_kernels.ops.mean import mean, sum_rows
from spanreplay_kernels.ops.packing import masked_attention
from spanreplay_kernels.ops.rms_norm import fused_rms_norm
from spanreplay_kernels.ops.scaled import scaled_mm
from spanreplay_kernels.ops.softmax import log_softmax, softmax

__all__ = ["IN_BLOCKS", "ON_CPU_ONLY", "ORIGINALS", "OVERRIDES", "REFUSED", "Function", "original", "refusal"]

Function = Callable[..., Any]


ORIGINALS: Final = (
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mean.dim", "sum.dim_IntList", "native_layer_norm", "sort.stable",
    "linalg_vector_norm",
)  # fmt: skip
"""The aten kernels that overrides fall back to when the order doesn't matter."""


@functools.lru_cache(maxsize=512)
def original(name: str, key: str) -> Function:
    """Return aten's own kernel of an overload; must first be called before the override, then it is cached."""
    kernel = torch.library.get_kernel(f"aten::{name}", key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return functools.partial(kernel.call_boxed, keys)


def _key(x: Tensor) -> str:
    return "CUDA" if x.device.type == "cuda" else "CPU"


def _is_plain(*tensors: Tensor) -> bool:
    """Whether the order of additions doesn't matter: nothing is added, or the numbers are integers."""
    return any(t.numel() == 0 for t in tensors) or not tensors[0].is_floating_point()


# --- products


def _mm(self: Tensor, mat2: Tensor) -> Tensor:
    if _is_plain(self, mat2):
        return original("mm", _key(self))(self, mat2)
    return matmul(self, mat2)


def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if _is_plain(mat1, mat2):
        return original("addmm", _key(mat1))(self, mat1, mat2, beta=beta, alpha=alpha)
    # beta = 0 means that the bias is ignored, even if it is NaN
    return matmul(mat1, mat2, None if beta == 0 else self, alpha=float(alpha), beta=float(beta))


def _bmm(self: Tensor, mat2: Tensor) -> Tensor:
    if _is_plain(self, mat2):
        return original("bmm", _key(self))(self, mat2)
    if self.shape[2] == 1 and mat2.dim() == 3 and mat2.shape[1] == 1:
        return self * mat2  # K = 1, e.g. positions times frequencies: no sum, so no order
    return bmm(self, mat2)


def _baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if _is_plain(batch1, batch2):
        return original("baddbmm", _key(batch1))(self, batch1, batch2, beta=beta, alpha=alpha)
    product = _bmm(batch1, batch2).float() * float(alpha)
    return (product if beta == 0 else product + self.float() * float(beta)).to(batch1.dtype)


def _addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if _is_plain(mat, vec):
        return original("addmv", _key(mat))(self, mat, vec, beta=beta, alpha=alpha)
    bias = self.expand(mat.shape[0])[:, None]
    return _addmm(bias, mat, vec[:, None], beta=beta, alpha=alpha)[:, 0]


def _mv(self: Tensor, vec: Tensor) -> Tensor:
    if self.dim() != 2 or vec.dim() != 1:
        raise UnsupportedInput("mv", "these shapes do not multiply", self, vec, hint="pass (M, K) and (K,)")
    return _mm(self, vec[:, None])[:, 0]


def _dot(self: Tensor, tensor: Tensor) -> Tensor:
    if self.dim() != 1 or tensor.dim() != 1:
        raise UnsupportedInput("dot", "these shapes do not multiply", self, tensor, hint="pass (K,) and (K,)")
    return _mm(self[None], tensor[:, None])[0, 0]


def _grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    if offs is None or bias is not None or out_dtype not in (None, self.dtype):
        hint = "pass rows (T, K), weights (E, K, N) and the ends of groups, and nothing else"
        raise UnsupportedInput("_grouped_mm", "this form of it has no kernel", self, mat2, hint=hint)
    return grouped_mm(self, mat2, offs)


def _scaled_mm(
    self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """Multiply scaled fp8; ignores `use_fast_accum`, because an H100 would then accumulate in fewer bits."""
    if scale_result is not None:
        hint = "ask for bfloat16, float16 or float32"
        raise UnsupportedInput("_scaled_mm", "a result in fp8 has no kernel", self, mat2, hint=hint)
    scale_a, scale_b = (each.reshape(1, 1) if each.numel() == 1 else each for each in (scale_a, scale_b))
    return scaled_mm(self, mat2, scale_a, scale_b, bias, out_dtype=out_dtype or self.dtype)


# --- reductions of rows


def _softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return softmax(self, dim, torch.float32 if half_to_float else None)


def _log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return log_softmax(self, dim, torch.float32 if half_to_float else None)


def _reduction(name: str, function: Function) -> Function:
    """Return a sum or mean with aten's arguments; integers and empty tensors use aten's own kernel."""

    def run(self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        is_float = self.is_floating_point() if dtype is None else dtype.is_floating_point
        if not is_float or self.numel() == 0 or self.dim() == 0:
            return original(name, _key(self))(self, dim, keepdim, dtype=dtype)
        return function(self, dim, keepdim, dtype=dtype)

    return run


def _whole(function: Function) -> Function:
    """Return the overload without dimensions."""
    return lambda self, *, dtype=None: function(self, None, False, dtype=dtype)


def _vector_norm(
    self: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Compute a norm with our fp32 sums for ord 0, 1 and 2; ord ±inf is exact in any order and uses aten's kernel."""
    x = self if dtype is None else self.to(dtype)
    if x.numel() == 0 or x.dim() == 0 or math.isinf(order):
        return original("linalg_vector_norm", _key(x))(self, order, dim, keepdim, dtype=dtype)
    kinds: dict[float, Function] = {0: _is_not_zero, 1: torch.abs, 2: torch.square}
    terms = kinds.get(order)
    if terms is None or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        hint = "use ord 0, 1, 2 or inf, in bfloat16, float16 or float32"
        raise UnsupportedInput("linalg_vector_norm", f"ord {order} of {x.dtype} has no kernel", self, hint=hint)
    total = sum_rows(terms(x.float()), dim, keepdim)
    return (total.sqrt() if order == 2 else total).to(x.dtype)


def _is_not_zero(x: Tensor) -> Tensor:
    return (x != 0).float()


def _layer_norm(
    rows: Tensor,
    normalized_shape: Any,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) · weight + bias, with our means, in fp32, rounded once.

    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450, eq. 4.
    """
    if rows.numel() == 0 or not normalized_shape:
        return original("native_layer_norm", _key(rows))(rows, normalized_shape, weight, bias, eps)
    dims = list(range(-len(normalized_shape), 0))
    x = rows.float()
    middle = mean(x, dims, True)
    x = x - middle
    # 1 / sqrt has one IEEE rounding everywhere; rsqrt differs between processors
    rstd = 1.0 / torch.sqrt(mean(x * x, dims, True) + eps)
    x = x * rstd
    if weight is not None:
        x = x * weight.float()
    if bias is not None:
        x = x + bias.float()
    return x.to(rows.dtype), middle, rstd


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if dropout_p != 0.0 or query.dim() != 4 or (is_causal and query.shape[2] > key.shape[2]):
        hint = "pass (B, H, Q, D), no dropout, and no more causal queries than keys"
        raise UnsupportedInput("scaled_dot_product_attention", "this form of it has no kernel", query, key, hint=hint)
    if is_causal:
        # aten aligns queries with the first keys, so no query sees keys past the last query's position
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    batch = torch.broadcast_shapes(query.shape[:1], key.shape[:1])[0]
    query, key, value = (x.expand(batch, -1, -1, -1) for x in (query, key, value))
    return masked_attention(query, key, value, attn_mask, causal=is_causal, scale=scale)


# --- order: equal values keep their order, so the algorithm doesn't matter


def _sort(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = original("sort.stable", _key(self))(self, stable=True, dim=dim, descending=descending)
    return values, indices


def _topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:  # noqa: A002 -- aten's name
    if self.dim() == 0:
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    values, indices = _sort(self, dim, largest)
    return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()


# --- elementwise operations whose CPU kernel computes the last elements of a tensor differently

_BLOCK: Final = 8192
"""Elements per call of such a kernel: whole vectors, and too few for a second thread."""
_VECTORS, _ONE_THREAD_MAX = 64, 32_767
"""Elements in the longest step of the vector loop, and the most that torch leaves to one thread."""


def _in_blocks(name: str) -> Function:
    """Call aten's own kernel always with one shape, in fp32, so an element's result doesn't depend on its position.

    Source: ATen/native/cpu/Loops.h: whole vectors use the vectorised function, the remainder uses libm's.
    """

    def run(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return original(name, "CPU")(self, *args, **kwargs)
        count = self.numel()
        if self.dtype == torch.float32 and self.is_contiguous() and count % _VECTORS == 0 and count <= _ONE_THREAD_MAX:
            return original(name, "CPU")(self, *args, **kwargs)
        padded = torch.zeros(-(-count // _BLOCK) * _BLOCK, dtype=torch.float32)
        padded[:count] = self.reshape(-1)
        blocks = [original(name, "CPU")(block, *args, **kwargs) for block in padded.split(_BLOCK)]
        result = torch.cat(blocks) if blocks else padded
        return torch.empty_like(self).copy_(result[:count].view(self.shape))

    return run


IN_BLOCKS: Final = (
    "cosh", "elu", "exp2", "gelu", "mish", "rsqrt", "sigmoid", "silu", "sinh", "softplus",
)  # fmt: skip


# --- the other ways to call the same


def _into(function: Function) -> Function:
    """Return the overload with `out`."""

    def run(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        result = function(*args, **kwargs)
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return run


def _in_place(function: Function) -> Function:
    """Return the overload that writes into its first argument."""

    def run(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.copy_(function(self, *args, **kwargs))

    return run


def _with_variants(functions: dict[str, tuple[Function, str]]) -> dict[str, Function]:
    """Add the `out` overload, named by the second item of each pair, and the in-place overload."""
    found: dict[str, Function] = {}
    for name, (function, out_name) in functions.items():
        found[name] = function
        if out_name:
            found[out_name] = _into(function)
        if hasattr(torch.ops.aten, f"{name}_"):
            found[f"{name}_"] = _in_place(function)
    return found


ON_CPU_ONLY: Final = MappingProxyType(_with_variants({name: (_in_blocks(name), f"{name}.out") for name in IN_BLOCKS}))
"""Overrides for the CPU only: a GPU computes every element with the same instructions."""

OVERRIDES: Final = MappingProxyType(
    _with_variants(
        {
            "mm": (_mm, "mm.out"),
            "addmm": (_addmm, "addmm.out"),
            "bmm": (_bmm, "bmm.out"),
            "baddbmm": (_baddbmm, "baddbmm.out"),
            "addmv": (_addmv, "addmv.out"),
            "mv": (_mv, "mv.out"),
            "dot": (_dot, "dot.out"),
            "vdot": (_dot, "vdot.out"),
            "_grouped_mm": (_grouped_mm, ""),
            "_scaled_mm": (_scaled_mm, "_scaled_mm.out"),
            "_softmax": (_softmax, "_softmax.out"),
            "_log_softmax": (_log_softmax, "_log_softmax.out"),
            "mean.dim": (_reduction("mean.dim", mean), "mean.out"),
            "mean": (_whole(_reduction("mean.dim", mean)), ""),
            "sum.dim_IntList": (_reduction("sum.dim_IntList", sum_rows), "sum.IntList_out"),
            "sum": (_whole(_reduction("sum.dim_IntList", sum_rows)), ""),
            "_fused_rms_norm": (fused_rms_norm, ""),
            "native_layer_norm": (_layer_norm, ""),
            "linalg_vector_norm": (_vector_norm, "linalg_vector_norm.out"),
            "scaled_dot_product_attention": (_attention, ""),
            "sort": (_sort, ""),
            "topk": (_topk, ""),
        }
    )
)


def refusal(name: str) -> Function:
    """Return a replacement that raises UncoveredOp with the overload's name; for reductions without a kernel."""

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        raise UncoveredOp(name, *tensors, hint="use a model without it")

    return run


_PRODUCTS_OF_OTHER_DTYPE: Final = ("mm", "addmm", "bmm", "baddbmm")
_KNOWN: Final = frozenset(torch._C._dispatch_get_all_op_names())
REFUSED: Final = tuple(
    name
    for name in (
        *(f"{each}.{overload}" for each in _PRODUCTS_OF_OTHER_DTYPE for overload in ("dtype", "dtype_out")),
        "_scaled_mm_v2", "_scaled_mm_v2.out", "_scaled_grouped_mm", "_scaled_grouped_mm_v2",
        "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.out", "norm.dtype_out",
    )
    if f"aten::{name}" in _KNOWN
)  # fmt: skip
"""Overloads that are refused within `invariant()`, even without an audit; older releases of torch lack some."""
