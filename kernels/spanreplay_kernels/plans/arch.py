"""The properties of a processor that plans depend on: its matrix instruction and its shared memory.

One entry per compute capability, and one for the CPU. GPUs of the same entry share every plan, so an H100 with 114
multiprocessors gives the same bits as one with 132.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spanreplay_kernels.errors import UnsupportedInput

if TYPE_CHECKING:
    import torch

__all__ = ["ARCHS", "CPU", "Arch", "Mma", "arch_of", "arch_of_capability", "pretended"]


class Mma(Enum):
    """The instruction that multiplies tiles; the width and order of its additions are fixed by the hardware.

    The value is the instruction's PTX spelling, which is looked for in compiled kernels.
    """

    VENDOR = "vendor"
    """The processor's own library, called with one fixed shape (CPU)."""
    FMA = "fma.rn"
    """One fused multiply-add at a time: fp32, which no tensor core multiplies without rounding."""
    MMA_SYNC = "mma.sync"
    WGMMA = "wgmma.mma_async"
    TCGEN05 = "tcgen05.mma"


@dataclass(frozen=True)
class Arch:
    """A family of processors that share plans."""

    name: str
    capability: int
    """Major and minor compute capability as one number: 90 for 9.0; 0 for the CPU."""
    tensor_core: Mma
    shared_bytes_max: int
    """Shared memory that one block may use."""
    has_tma: bool
    multiprocessors: int
    """Multiprocessors of the family's usual part; plans split work for this many, whatever the actual device has."""


ARCHS: Final = MappingProxyType(
    {
        each.name: each
        for each in (
            Arch("cpu", 0, Mma.VENDOR, 0, has_tma=False, multiprocessors=1),
            Arch("sm_80", 80, Mma.MMA_SYNC, 166_912, has_tma=False, multiprocessors=108),
            Arch("sm_89", 89, Mma.MMA_SYNC, 101_376, has_tma=False, multiprocessors=128),
            Arch("sm_90", 90, Mma.WGMMA, 232_448, has_tma=True, multiprocessors=132),
            Arch("sm_100", 100, Mma.TCGEN05, 232_448, has_tma=True, multiprocessors=148),
            Arch("sm_120", 120, Mma.MMA_SYNC, 101_376, has_tma=True, multiprocessors=170),
        )
    }
)
"""Shared memory per block: CUDA C++ Programming Guide, table of technical specifications per compute capability."""
CPU: Final = ARCHS["cpu"]


_pretended: contextvars.ContextVar[Arch | None] = contextvars.ContextVar("pretended", default=None)


@contextmanager
def pretended(arch: Arch) -> Iterator[None]:
    """Treat tensors of device `meta` as being on this family, so that their launches can be compiled."""
    token = _pretended.set(arch)
    try:
        yield
    finally:
        _pretended.reset(token)


def arch_of(device: torch.device) -> Arch:
    """Return the family of a device.

    Raises: UnsupportedInput for a device that is neither a CPU nor a CUDA GPU of a family in `ARCHS`.
    """
    if device.type == "cpu":
        return CPU
    meant = _pretended.get()
    if device.type == "meta" and meant is not None:
        return meant
    if device.type != "cuda":
        raise UnsupportedInput("arch_of", f"no kernels for {device.type}", hint="use a CPU or an NVIDIA GPU")
    return _cuda_arch(device.index if device.index is not None else -1)


@functools.lru_cache(maxsize=64)
def _cuda_arch(index: int) -> Arch:
    import torch

    return arch_of_capability(*torch.cuda.get_device_capability(index if index >= 0 else None))


def arch_of_capability(major: int, minor: int) -> Arch:
    """Return the family of a compute capability, which an engine may know without touching the GPU.

    Raises: UnsupportedInput for one without plans.
    """
    # 8.6 runs kernels made for 8.9's limits; a part newer than its family's entry shares the entry's instructions
    names = {(8, 0): "sm_80", (8, 6): "sm_89", (8, 9): "sm_89", (9, 0): "sm_90", (10, 0): "sm_100", (12, 0): "sm_120"}
    name = names.get((major, minor))
    if name is None:
        known = ", ".join(sorted(ARCHS))
        problem = f"no plan for compute capability {major}.{minor}"
        raise UnsupportedInput("arch_of", problem, hint=f"plans exist for {known}")
    return ARCHS[name]
