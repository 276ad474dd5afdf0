"""What one operation at one shape is certified by."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spanreplay_kernels.plans.arch import Arch
from spanreplay_kernels.plans.plan import Plan

__all__ = ["Function", "Subject", "chosen_by_value", "count_parts", "in_parts", "plant"]

Function = Callable[..., Tensor]
"""(x, *weights) → a result with a row for each row of x."""


class Subject(NamedTuple):
    """An operation at a shape. What tells the rows of a batch apart comes from their own values."""

    width: int
    """Elements of a row of x."""
    weights: tuple[tuple[int, ...], ...]
    """Shapes of what all rows share."""
    ours: Function
    stock: Function
    plans: Callable[[str, Arch], tuple[Plan, ...]]
    """Of a dtype on an architecture; none where nothing is added up."""
    ulps_max: float | None
    """From fp64, in bf16 and fp16; of tokens, how many may differ."""
    exact: Function | None = None
    """Of fp64 operands, where torch's own kernel takes none."""
    varies: Function | None = None
    """The same, in the order or by the instructions that a kernel made for speed would choose by the number of rows."""
    forms: tuple[tuple[str, Function], ...] = ()
    """Other ways to ask for the same, which have to give the same bits."""
    ulps_max_fp32: float | None = None
    """As ulps_max, in fp32: there the roundings of the sum itself show, one for each of its terms."""


def plant(function: Function) -> Function:
    """A kernel that varies: in a batch of an even number of rows its results are one unit in the last place off."""

    def planted(x: Tensor, *weights: Tensor) -> Tensor:
        result = function(x, *weights).contiguous()
        if x.shape[0] % 2:
            return result
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[result.element_size()]
        return (result.view(integers) + 1).view(result.dtype)

    return planted


def chosen_by_value(x: Tensor, count: int, spread: int = 8) -> Tensor:
    """A number below `count` for each row, of its own first element: in every batch there are others.

    spread: how far apart the numbers of like values are; the same in every dtype that holds the value.
    """
    return (x[:, 0].double() * spread).abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=2**40).long() % count


def in_parts(x: Tensor) -> Tensor:
    """The sums of fp32 rows, each in as many parts as fill a device whose rows are few."""
    parts = x.chunk(count_parts(x.shape[0]), -1)
    return torch.stack([part.sum(-1) for part in parts]).sum(0)


def count_parts(rows: int) -> int:
    """Into how many parts a kernel made for speed cuts what so many rows add up."""
    return 8 if rows <= 16 else 4 if rows <= 64 else 1
