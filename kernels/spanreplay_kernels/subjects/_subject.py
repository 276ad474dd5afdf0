"""The subject of a certificate: one operation at one shape, with its reference and controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spanreplay_kernels.plans.arch import Arch
from spanreplay_kernels.plans.plan import Plan

__all__ = ["Function", "Subject", "chosen_by_value", "count_parts", "in_parts", "plant"]

Function = Callable[..., Tensor]
"""(x, *weights) → a result with one row per row of x."""


class Subject(NamedTuple):
    """An operation at a shape. Choices that differ between rows are derived from a row's own values."""

    width: int
    """Elements of a row of x."""
    weights: tuple[tuple[int, ...], ...]
    """Shapes of the operands that all rows share."""
    ours: Function
    stock: Function
    plans: Callable[[str, Arch], tuple[Plan, ...]]
    """The plans for a dtype on an architecture; none if nothing is added up."""
    ulps_max: float | None
    """The largest allowed error against fp64, in bf16 and fp16; for tokens, how many may differ."""
    exact: Function | None = None
    """The operation on fp64 operands, if torch's own kernel doesn't take them."""
    varies: Function | None = None
    """The same operation, with the order or instructions that a fast kernel would choose by the number of rows."""
    forms: tuple[tuple[str, Function], ...] = ()
    """Other ways to call the operation, which must give the same bits."""
    ulps_max_fp32: float | None = None
    """Like ulps_max, in fp32, where the roundings of the sum itself are visible, one per term."""


def plant(function: Function) -> Function:
    """Return a kernel that varies: in a batch with an even number of rows, results are off by one ulp."""

    def planted(x: Tensor, *weights: Tensor) -> Tensor:
        result = function(x, *weights).contiguous()
        if x.shape[0] % 2:
            return result
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[result.element_size()]
        return (result.view(integers) + 1).view(result.dtype)

    return planted


def chosen_by_value(x: Tensor, count: int, spread: int = 8) -> Tensor:
    """Return a number below `count` for each row, derived from its first element, so batches mix different numbers.

    spread: how far apart the numbers of similar values are; the same in every dtype that holds the value.
    """
    return (x[:, 0].double() * spread).abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=2**40).long() % count


def in_parts(x: Tensor) -> Tensor:
    """Sum fp32 rows, each in as many parts as a fast kernel would use to fill a device."""
    parts = x.chunk(count_parts(x.shape[0]), -1)
    return torch.stack([part.sum(-1) for part in parts]).sum(0)


def count_parts(rows: int) -> int:
    """Return the number of parts into which a fast kernel splits the sums of this many rows."""
    return 8 if rows <= 16 else 4 if rows <= 64 else 1
