"""A check that every operation over rows passes, and that a variant which depends on its batch fails."""

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
"""One element, less than any block, and two that fill no block; 4097 and more are for few rows."""
BATCH = MappingProxyType({1: 130, 7: 130, 100: 130, 257: 40, 4097: 9})
"""Number of rows per width in a test: a block interprets several short rows at once."""


def plan_of(op: str, x: Tensor) -> RowPlan:
    """A GPU's plan for reducing the rows of x."""
    return plan_rows(op, x.shape[-1], dtype_name(x), ARCHS["sm_90"])


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether the bits are equal, except for the payload of a NaN."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.masked_fill(a.isnan(), 0.0), b.masked_fill(b.isnan(), 0.0)
    )


def assert_rows_keep_their_bits(op: Op, x: Tensor, counts: Iterable[int] = EDGES) -> None:
    """Assert that parts of a batch have the bits of the whole, for many numbers of rows, each at another place."""
    whole = op(x)
    for rows in (count for count in counts if count < x.shape[0]):
        start = rows * 5 % (x.shape[0] - rows + 1)
        assert equal(op(x[start : start + rows]), whole[start : start + rows]), (rows, start)


def assert_neighbours_change_nothing(op: Op, x: Tensor) -> None:
    """Assert that NaN, Inf, huge and denormal rows beside a row don't change its bits."""
    expected = op(x)
    for row in {0, x.shape[0] // 2, x.shape[0] - 1}:
        assert equal(op(with_hostile_neighbours(x, row))[row], expected[row]), row


def batch(width: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """A batch of this width, with as many rows as a test has time for."""
    return normal(BATCH[width], width, dtype=dtype, device=device)


__all__ = ["WIDTHS", "assert_neighbours_change_nothing", "assert_rows_keep_their_bits", "batch", "equal", "plan_of"]
