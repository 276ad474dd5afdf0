"""Subjects for reductions over a row: norms, softmaxes, means, expert weights, token probabilities.

On many devices, torch's own kernels for these give a row the same bits in every batch. The control that shows whether
the trials would find a difference is therefore the same reduction, split into more parts when rows are few.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.mean import mean
from spanreplay_kernels.ops.rms_norm import rms_norm
from spanreplay_kernels.ops.route import route
from spanreplay_kernels.ops.softmax import gather_logprob, log_softmax, softmax
from spanreplay_kernels.plans.arch import Arch
from spanreplay_kernels.plans.plan import Plan, plan_rows
from spanreplay_kernels.subjects._subject import Subject, chosen_by_value, in_parts

__all__ = [
    "gather_subject",
    "log_softmax_subject",
    "mean_subject",
    "rms_norm_subject",
    "route_subject",
    "softmax_subject",
]

_FP32_ULPS = 4.0
"""For results in fp32: the roundings of the sum, the exponential and the logarithm."""


def _plans(op: str, width: int) -> Callable[[str, Arch], tuple[Plan, ...]]:
    return lambda dtype, arch: (plan_rows(op, width, dtype, arch),)


def rms_norm_subject(width: int) -> Subject:
    """Return the subject of the norm with a weight; eps 1e-6."""

    def stock(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (width,), weight, 1e-6)

    def varies(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(in_parts(wide * wide) / width + 1e-6)[:, None] * weight.float()).to(x.dtype)

    plans = _plans("rms_norm", width)
    return Subject(width, ((width,),), rms_norm, stock, plans, 1.0, varies=varies, ulps_max_fp32=6.0)


def _powers(x: Tensor) -> Tensor:
    wide = x.float()
    return torch.exp(wide - wide.amax(-1, keepdim=True))


def softmax_subject(width: int) -> Subject:
    """Return the subject of softmax over the row."""

    def varies(x: Tensor) -> Tensor:
        powers = _powers(x)
        return (powers / in_parts(powers)[:, None]).to(x.dtype)

    return Subject(
        width, (), softmax, lambda x: torch.softmax(x, -1), _plans("softmax", width), 1.0, varies=varies
    )  # fmt: skip


def _log_softmax_varies(x: Tensor) -> Tensor:
    wide = x.float()
    return wide - wide.amax(-1, keepdim=True) - torch.log(in_parts(_powers(x)))[:, None]


def log_softmax_subject(width: int) -> Subject:
    """Return the subject of log_softmax over the row."""

    def varies(x: Tensor) -> Tensor:
        return _log_softmax_varies(x).to(x.dtype)

    def stock(x: Tensor) -> Tensor:
        return torch.log_softmax(x, -1)

    return Subject(width, (), log_softmax, stock, _plans("log_softmax", width), 1.0, varies=varies)


def mean_subject(width: int) -> Subject:
    """Return the subject of the mean over the row."""

    def varies(x: Tensor) -> Tensor:
        return (in_parts(x.float()) / width).to(x.dtype)

    return Subject(
        width, (), lambda x: mean(x, -1), lambda x: torch.mean(x, -1), _plans("mean", width), 1.0, varies=varies
    )  # fmt: skip


def gather_subject(width: int) -> Subject:
    """Return the subject of a token's log-probability in fp32; the row's own value chooses the token."""

    def choose(x: Tensor) -> Tensor:
        return chosen_by_value(x, width)

    def stock(x: Tensor) -> Tensor:
        dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
        return torch.log_softmax(x, -1, dtype=dtype).gather(1, choose(x)[:, None])[:, 0]

    def varies(x: Tensor) -> Tensor:
        return _log_softmax_varies(x).gather(1, choose(x)[:, None])[:, 0]

    def ours(x: Tensor) -> Tensor:
        return gather_logprob(x, choose(x))

    return Subject(width, (), ours, stock, _plans("log_softmax", width), _FP32_ULPS, varies=varies)


def route_subject(count: int, top_k: int) -> Subject:
    """Return the subject of routing; a result row is the chosen experts' weights, summing to one, then their ids."""
    if top_k > count:
        raise UnsupportedInput("route", f"top_k {top_k} is above {count} experts", hint="choose fewer")

    def joined(weights: Tensor, ids: Tensor) -> Tensor:
        return torch.cat((weights / weights.sum(1, keepdim=True), ids.to(weights.dtype)), 1)

    def chosen(powers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        ids = x.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
        return powers.gather(1, ids), ids

    def ours(x: Tensor) -> Tensor:
        weights, ids = route(x, top_k)
        return torch.cat((weights, ids.float()), 1)

    def stock(x: Tensor) -> Tensor:
        dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
        return joined(*chosen(torch.softmax(x, -1, dtype=dtype), x))

    def varies(x: Tensor) -> Tensor:
        powers = _powers(x)
        return joined(*chosen(powers / in_parts(powers)[:, None], x))

    return Subject(count, (), ours, stock, _plans("softmax", count), _FP32_ULPS, varies=varies)
