"""The audit: every operation that a model ran, and the reason why its bits don't depend on the batch.

An operation is *covered* if ours runs instead of it, *elementwise* if each result depends on one element, *movement* if
values are only copied, *exact* if the order can't matter (integers, maximum, equality). Everything else is *uncovered*,
and so is any operation that the tables don't list: harmlessness must be shown, not assumed.
A product weighted by a softmax is uncovered too, although both operations are ours: padding, which depends on the
neighbours, shifts the terms of its sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from spanreplay_kernels.errors import UncoveredOp, describe
from spanreplay_kernels.switch.foreign import told_of_foreign_kernels
from spanreplay_kernels.switch.registry import is_invariant, overridden

__all__ = ["Kind", "Report", "Seen", "audit", "classify"]


class Kind(Enum):
    """The reason why an operation is batch-invariant, or UNCOVERED."""

    COVERED = "covered"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    EXACT = "exact"
    UNCOVERED = "uncovered"


@dataclass(frozen=True)
class Seen:
    """An operation with its tensors' shapes; no values."""

    op: str
    shapes: str
    kind: Kind


@dataclass
class Report:
    """The operations that ran within an audit, in the order in which they first ran."""

    counts: Counter[Seen] = field(default_factory=Counter)

    def of(self, kind: Kind) -> dict[str, int]:
        """Return the operations of one kind and how often each ran, over all shapes."""
        found: Counter[str] = Counter()
        for seen, count in self.counts.items():
            if seen.kind is kind:
                found[seen.op] += count
        return dict(found)

    def __str__(self) -> str:
        """Return a line per covered or uncovered operation and shape; the other kinds don't reduce anything."""
        kinds = (Kind.UNCOVERED, Kind.COVERED)
        shown = [(s, n) for kind in kinds for s, n in self.counts.items() if s.kind is kind]
        return "\n".join(f"{s.kind.value:9} {n:6}× {s.op} ({s.shapes})" for s, n in shown)


@contextmanager
def audit(*, fail: bool = True) -> Iterator[Report]:
    """List every operation of this thread; an uncovered one raises UncoveredOp before it runs.

    With fail=False it is listed and runs. Use within `invariant()`; outside, every reduction is uncovered.
    Foreign Triton kernels are seen; kernels in other languages that aren't registered with torch are not.
    Slow; meant for one forward pass. Code compiled with `torch.compile` is not seen.
    """
    report = Report()

    def note(kernel: str, tensors: list[Tensor]) -> None:
        name = f"triton::{kernel}"
        report.counts[Seen(name, ", ".join(map(describe, tensors)), Kind.UNCOVERED)] += 1
        if fail:
            raise UncoveredOp(name, *tensors, hint=_FOREIGN_HINT)

    with told_of_foreign_kernels(note), _Auditor(report, fail=fail):
        yield report


class _Auditor(TorchDispatchMode):
    def __init__(self, report: Report, *, fail: bool) -> None:
        super().__init__()
        self._report = report
        self._fail = fail
        self._weights = WeakTensorKeyDictionary()
        """Results of softmax, and tensors derived from them elementwise: possible weights of a later sum."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = classify(func, args, kwargs)
        if kind is Kind.UNCOVERED and _is_composite(func):
            # Under inference_mode composite operations arrive whole; audit the operations they consist of
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        name = _name(func)
        hint = "use a model without it" if is_invariant() else "enter invariant() first"
        if kind is Kind.COVERED and name in _PRODUCTS and self._weights.get(args[_PRODUCTS[name]]):
            kind, hint = Kind.UNCOVERED, _ATTENTION_HINT
        self._report.counts[Seen(name, ", ".join(map(describe, tensors)), kind)] += 1
        if kind is Kind.UNCOVERED and self._fail:
            raise UncoveredOp(name, *tensors, hint=hint)
        result = func(*args, **kwargs)
        self._follow(name, kind, tensors, result)
        return result

    def _follow(self, name: str, kind: Kind, tensors: list[Tensor], result: Any) -> None:
        """Keep marking a softmax's result after it is multiplied, cast or reshaped."""
        if name.startswith("_softmax"):
            widths = {each.shape[-1] for each in tensors if each.dim()}
        elif kind in (Kind.ELEMENTWISE, Kind.MOVEMENT):
            widths = {each.shape[-1] for each in tensors if each.dim() and self._weights.get(each)}
        else:
            return
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.dim() and each.shape[-1] in widths:
                self._weights[each] = True


def classify(func: Any, args: Any, kwargs: Any) -> Kind:
    """Return the kind of one call of an `OpOverload`."""
    name, base = _name(func), func._schema.name.split("::")[-1]
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    if func.namespace == "spanreplay":
        return Kind.COVERED
    if func.namespace not in ("aten", "prim", "prims"):
        return Kind.UNCOVERED
    key = "CUDA" if any(t.device.type == "cuda" for t in tensors) else "CPU"
    if name in overridden(key):
        if _is_of_integers(tensors, kwargs):
            return Kind.EXACT
        return Kind.COVERED if is_invariant() else Kind.UNCOVERED
    if base in RANDOM or torch.Tag.nondeterministic_seeded in func.tags:
        return Kind.UNCOVERED
    if _is_view(func) or (base.rstrip("_") in MOVEMENT and _adds_nothing(func, args, kwargs)):
        return Kind.MOVEMENT
    if base.rstrip("_") in EXACT or (name == "sort.stable" and kwargs.get("stable")):
        return Kind.EXACT
    if _is_of_integers(tensors, kwargs):
        return Kind.EXACT
    if torch.Tag.pointwise in func.tags or base.rstrip("_") in STEADY:
        return Kind.ELEMENTWISE if key == "CUDA" or _is_steady(base.rstrip("_"), args, kwargs) else Kind.UNCOVERED
    return Kind.UNCOVERED


def _name(func: Any) -> str:
    """Return the name as `OVERRIDES` spells it: `mm`, `mean.dim`."""
    name = str(func._schema.name).split("::")[-1]
    return f"{name}.{func._overloadname}" if func._overloadname not in ("", "default") else name


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _is_view(func: Any) -> bool:
    """Whether the results are views of an argument."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _adds_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether moved values replace the old ones instead of being added to or reduced with them."""
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    return named.get("accumulate", False) is False and named.get("reduce") is None


def _is_of_integers(tensors: list[Tensor], kwargs: Any) -> bool:
    """Whether sums are of integers, so that their order doesn't matter; a requested dtype decides."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
    return not any(t.is_floating_point() or t.is_complex() for t in tensors)


def _is_steady(base: str, args: Any, kwargs: Any) -> bool:
    """Whether the CPU computes an element the same way at every position in a tensor."""
    halves = any(isinstance(a, Tensor) and a.dtype in (torch.bfloat16, torch.float16) for a in args)
    if base in ("add", "sub"):
        alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        return alpha == 1 or not halves
    if base == "pow":
        exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
        return isinstance(args[0], Tensor) and exponent in (0.5, 1, 2, 3)
    return base in STEADY


_FOREIGN_HINT: Final = "a kernel that a layer starts by itself: load the model unquantised, and without hub kernels"
_PRODUCTS: Final = {"bmm": 0, "bmm.out": 0, "baddbmm": 1, "baddbmm.out": 1}
"""Batched products → index of the argument that holds the rows."""
_ATTENTION_HINT: Final = (
    "attention by hand adds up over as many keys as the longest sequence of a batch has: use "
    'scaled_dot_product_attention, of transformers attn_implementation="sdpa"'
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STEADY: Final = _names(
    """
    abs add addcdiv addcmul atan bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min copysign
    cos div eq erf erfc exp expm1 floor floor_divide fmod ge gt hardsigmoid hardswish hardtanh isfinite isinf isnan
    le leaky_relu lerp log log1p log2 log_sigmoid_forward logical_and logical_not logical_or logical_xor logit lt
    masked_fill maximum minimum mul nan_to_num ne neg reciprocal relu relu6 remainder round rsub sgn sign signbit sin
    sqrt square sub tan tanh threshold true_divide trunc where
    """
)
"""Elementwise operations with the same result in the vectorised body and the scalar tail, on the CPU too."""

MOVEMENT: Final = _names(
    """
    _assert_async _assert_scalar _assert_tensor_metadata _local_scalar_dense _pin_memory _reshape_alias _to_copy
    _unsafe_index _unsafe_view arange as_strided cat clone constant_pad_nd contiguous copy detach diag_embed
    diagonal embedding empty empty_like empty_permuted empty_strided eye fill flip full full_like gather index
    index_copy index_fill index_put index_select is_pinned item lift lift_fresh lift_fresh_copy linspace
    masked_scatter masked_select new_empty new_empty_strided new_full new_ones new_zeros ones ones_like
    reflection_pad1d repeat repeat_interleave resize roll scalar_tensor scatter select_scatter set slice_scatter
    split split_with_sizes split_with_sizes_copy stack sym_size sym_stride take tril triu unbind unfold unfold_copy
    unsafe_split zero zeros zeros_like
    """
)
"""Operations that only copy values."""

EXACT: Final = _names("all allclose amax amin aminmax any argmax argmin equal histc is_nonzero isin max min nonzero")
"""Operations whose result doesn't depend on the order of elements."""

RANDOM: Final = _names("bernoulli dropout exponential multinomial native_dropout normal rand randn uniform")
"""Draws from a generator that all rows of a batch share, so a row's draw depends on its neighbours."""
