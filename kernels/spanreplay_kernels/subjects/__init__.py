"""The operations that can be certified, with their operands, plans, torch's own kernel and controls that vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.subjects._subject import Function, Subject, plant
from spanreplay_kernels.subjects.attention import attention_subject
from spanreplay_kernels.subjects.elements import rope_subject, sample_subject, silu_mul_subject
from spanreplay_kernels.subjects.products import (
    experts_subject,
    grouped_subject,
    matmul_subject,
    scaled_blocks_subject,
    scaled_subject,
)
from spanreplay_kernels.subjects.rows import (
    gather_subject,
    log_softmax_subject,
    mean_subject,
    rms_norm_subject,
    route_subject,
    softmax_subject,
)

__all__ = ["SUBJECTS", "Function", "Kind", "Subject", "find", "plant"]


class Kind(NamedTuple):
    """How an operation's shape is written, and the function that makes its subject."""

    sizes: str
    example: str
    make: Callable[..., Subject]


SUBJECTS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "matmul": Kind("N x K", "4096x4096", matmul_subject),
        "grouped_mm": Kind("E x N x K", "128x1536x2048", grouped_subject),
        "scaled_mm": Kind("N x K", "4096x4096", scaled_subject),
        "scaled_mm_blocks": Kind("N x K", "4096x4096", scaled_blocks_subject),
        "experts": Kind("E x I x H x top_k", "128x768x2048x8", experts_subject),
        "route": Kind("E x top_k", "128x8", route_subject),
        "attention": Kind("Hq x Hkv x D x L", "32x8x128x4096", attention_subject),
        "rms_norm": Kind("the width", "4096", rms_norm_subject),
        "softmax": Kind("the width", "4096", softmax_subject),
        "log_softmax": Kind("the width", "151936", log_softmax_subject),
        "gather_logprob": Kind("the width", "151936", gather_subject),
        "mean": Kind("the width", "4096", mean_subject),
        "silu_mul": Kind("the width", "14336", silu_mul_subject),
        "rope": Kind("H x D", "32x128", rope_subject),
        "sample": Kind("the width", "151936", sample_subject),
    }
)
"""Name → its kind."""


def find(op: str, shape: str) -> Subject:
    """Return the subject of e.g. `matmul` at `4096x4096`.

    Raises: UnsupportedInput for an unknown operation, or a shape with another number of sizes.
    """
    if op not in SUBJECTS:
        raise UnsupportedInput(op, "cannot be certified", hint=f"use one of {', '.join(sorted(SUBJECTS))}")
    kind = SUBJECTS[op]
    sizes = shape.split("x")
    if len(sizes) != kind.example.count("x") + 1 or not all(each.isdecimal() and int(each) for each in sizes):
        raise UnsupportedInput(op, f"shape {shape!r} is none", hint=f"write {kind.sizes} as {kind.example}")
    return kind.make(*(int(each) for each in sizes))
