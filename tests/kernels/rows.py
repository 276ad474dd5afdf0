"""The check that every operation over rows passes, and that a variant which looks at its batch does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType

import torch
from torch import Tensor

from kernels.samples import EDGES, normal, with_hostile_neighbours
from spanreplay_kernels.plans.arch import ARCHS
from spanreplay_kernels.plans.operands import dtype_name
from spanreplay_kernels.plans.plan import RowPlan, plan_rows

Op = Callable[[Tensor], Tensor]
WIDTHS = (1, 7, 100, 257)
"""One element, less than any block, and two that fill none; 4097 and more are for few rows."""
BATCH = MappingProxyType({1: 130, 7: 130, 100: 130, 257: 40, 4097: 9})
"""Rows that a test takes of each width: a block interprets several short rows at once."""


def plan_of(op: str, x: Tensor) -> RowPlan:
    """The plan by which a GPU would reduce the rows of x."""
    return plan_rows(op, x.shape[-1], dtype_name(x), ARCHS["sm_90"])


def equal(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but for which NaN a NaN is."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.masked_fill(a.isnan(), 0.0), b.masked_fill(b.isnan(), 0.0)
    )


def assert_rows_keep_their_bits(op: Op, x: Tensor, counts: Iterable[int] = EDGES) -> None:
    """A part of a batch has the bits of the whole: many numbers of rows, each from another place of the batch."""
    whole = op(x)
    for rows in (count for count in counts if count < x.shape[0]):
        start = rows * 5 % (x.shape[0] - rows + 1)
        assert equal(op(x[start : start + rows]), whole[start : start + rows]), (rows, start)


def assert_neighbours_change_nothing(op: Op, x: Tensor) -> None:
    """NaN, Inf, huge and denormal rows beside a row leave its bits alone."""
    expected = op(x)
    for row in {0, x.shape[0] // 2, x.shape[0] - 1}:
        assert equal(op(with_hostile_neighbours(x, row))[row], expected[row]), row


def batch(width: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """As many rows of a width as a test has time for."""
    return normal(BATCH[width], width, dtype=dtype, device=device)


__all__ = ["WIDTHS", "assert_neighbours_change_nothing", "assert_rows_keep_their_bits", "batch", "equal", "plan_of"]
