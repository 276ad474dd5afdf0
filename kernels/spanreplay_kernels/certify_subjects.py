"""What can be certified: each operation with its operands, its plan, torch's own kernel and a control that varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from spanreplay_kernels.arch import Arch
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.grouped import grouped_mm
from spanreplay_kernels.ops.matmul import matmul
from spanreplay_kernels.ops.mean import mean
from spanreplay_kernels.ops.rms_norm import rms_norm
from spanreplay_kernels.ops.softmax import log_softmax, softmax
from spanreplay_kernels.plan import Plan, plan_matmul, plan_rows

__all__ = ["SUBJECTS", "Function", "Subject", "find", "plant"]

Function = Callable[..., Tensor]
"""(x, *weights) → a result with a row for each row of x."""


class Subject(NamedTuple):
    """An operation at a shape."""

    width: int
    """Elements of a row of x."""
    weights: tuple[tuple[int, ...], ...]
    """Shapes of what all rows share."""
    ours: Function
    stock: Function
    plan: Callable[[str, Arch], Plan]
    ulps_max: float
    """From fp64, in bf16 and fp16."""
    exact: Function | None = None
    """Of fp64 operands, where torch's own kernel takes none."""


def _matmul(n: int, k: int) -> Subject:
    def plan(dtype: str, arch: Arch) -> Plan:
        return plan_matmul(n, k, dtype, arch)

    # (N, K) as `linear` passes it
    return Subject(
        k, ((n, k),), lambda x, w: matmul(x, w.t()), lambda x, w: torch.mm(x, w.t()), plan, 1.0
    )  # fmt: skip


def _rows(op: str, width: int, ours: Function, stock: Function, *weights: tuple[int, ...]) -> Subject:
    return Subject(width, weights, ours, stock, lambda dtype, arch: plan_rows(op, width, dtype, arch), 1.0)


def _rms_norm(width: int) -> Subject:
    def stock(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (width,), weight, 1e-6)

    return _rows("rms_norm", width, rms_norm, stock, (width,))


def _grouped(experts: int, n: int, k: int) -> Subject:
    """A row's own value says which weight it is multiplied with: in every batch its group has other rows."""

    def choose(x: Tensor) -> Tensor:
        return (x[:, 0].double() * 8).abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=2**20).long() % experts

    def grouped(product: Function) -> Function:
        def call(x: Tensor, w: Tensor) -> Tensor:
            chosen = choose(x)
            order = torch.argsort(chosen, stable=True)
            ends = torch.bincount(chosen, minlength=experts).cumsum(0).to(torch.int32)
            return product(x[order], w.transpose(1, 2), ends)[torch.argsort(order)]

        return call

    def exact(x: Tensor, w: Tensor) -> Tensor:
        return torch.stack([row @ w[e].t() for row, e in zip(x, choose(x).tolist(), strict=True)])

    def plan(dtype: str, arch: Arch) -> Plan:
        return plan_matmul(n, k, dtype, arch)

    return Subject(k, ((experts, n, k),), grouped(grouped_mm), grouped(torch._grouped_mm), plan, 1.0, exact)


SUBJECTS: Final[Mapping[str, tuple[int, Callable[..., Subject]]]] = MappingProxyType(
    {
        "matmul": (2, _matmul),
        "grouped_mm": (3, _grouped),
        "rms_norm": (1, _rms_norm),
        "softmax": (1, lambda n: _rows("softmax", n, softmax, lambda x: torch.softmax(x, -1))),
        "log_softmax": (1, lambda n: _rows("log_softmax", n, log_softmax, lambda x: torch.log_softmax(x, -1))),
        "mean": (1, lambda n: _rows("mean", n, lambda x: mean(x, -1), lambda x: torch.mean(x, -1))),
    }
)
"""Name → (numbers in a shape, the subject of these numbers)."""


def find(op: str, shape: str) -> Subject:
    """The subject of e.g. `matmul` at `4096x4096`.

    Raises: UnsupportedInput for an unknown operation, or a shape with another number of sizes.
    """
    if op not in SUBJECTS:
        raise UnsupportedInput(op, "cannot be certified", hint=f"use one of {', '.join(sorted(SUBJECTS))}")
    count, make = SUBJECTS[op]
    sizes = shape.split("x")
    if len(sizes) != count or not all(each.isdecimal() and int(each) for each in sizes):
        hint = ("write the width as 4096", "write N x K as 4096x4096", "write E x N x K as 128x1536x2048")[count - 1]
        raise UnsupportedInput(op, f"shape {shape!r} is none", hint=hint)
    return make(*(int(each) for each in sizes))


def plant(function: Function) -> Function:
    """A kernel that varies: in a batch of an even number of rows its results are one unit in the last place off."""

    def planted(x: Tensor, *weights: Tensor) -> Tensor:
        result = function(x, *weights).contiguous()
        if x.shape[0] % 2:
            return result
        integers = {2: torch.int16, 4: torch.int32}[result.element_size()]
        return (result.view(integers) + 1).view(result.dtype)

    return planted
