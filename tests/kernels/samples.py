"""Inputs that are hard to sum, and numbers of rows at which kernels change their behaviour."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EDGES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Numbers of rows around the sizes of tiles."""
HOSTILE = (float("nan"), float("inf"), -float("inf"), 1e30, 1e-42, -0.0)
"""Values of hostile neighbours, which reveal a kernel that lets one row affect another."""


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name as in plans."""
    return str(dtype).removeprefix("torch.")


def normal(*shape: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> Tensor:
    """Normally distributed values, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(device)


def with_hostile_neighbours(x: Tensor, row: int) -> Tensor:
    """x with every row except `row` filled with hostile values."""
    changed = x.clone()
    for at in range(x.shape[0]):
        if at != row:
            changed[at] = HOSTILE[at % len(HOSTILE)]
    return changed


def ulps_from(exact: Tensor, result: Tensor) -> float:
    """The largest distance of a result from its fp64 value, in units in the last place of the result's dtype."""
    spacing = torch.finfo(result.dtype).eps * torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=1e-30))))
    return float(((result.double() - exact).abs() / spacing).max())


__all__ = ["DTYPES", "EDGES", "HOSTILE", "name_of", "normal", "ulps_from", "with_hostile_neighbours"]
