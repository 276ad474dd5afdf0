"""The errors of this package; each names the operation, the shapes it was given and what to do.

KernelError
├── UnsupportedInput   a dtype, device, shape or architecture that no plan exists for
├── UncoveredOp        a reduction ran that batch invariance does not cover
├── UnsupportedEngine  an engine's release, configuration or code that its plug-in does not cover
└── NotInvariant       a certificate found two results for one row
"""

from __future__ import annotations

from typing import Any

__all__ = ["KernelError", "NotInvariant", "UncoveredOp", "UnsupportedEngine", "UnsupportedInput"]


class KernelError(Exception):
    """Everything that this package raises on purpose; comes out of a process as it was raised there."""

    def __reduce__(self) -> Any:
        return _make_again, (type(self), self.args, self.__dict__)


def _make_again(kind: type[KernelError], args: tuple[object, ...], fields: dict[str, Any]) -> KernelError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UnsupportedInput(KernelError, ValueError):
    """A dtype, device, shape or architecture that an operation has no plan for; nothing was computed."""

    def __init__(self, op: str, problem: str, *tensors: Any, hint: str) -> None:
        shapes = ", ".join(describe(t) for t in tensors)
        super().__init__(f"{op}: {problem}{f' ({shapes})' if shapes else ''}; {hint}")
        self.op = op


class UncoveredOp(KernelError, RuntimeError):
    """An operation that reduces over a dimension ran on a kernel that nobody has shown to be batch-invariant."""

    def __init__(self, op: str, *tensors: Any, hint: str) -> None:
        shapes = ", ".join(describe(t) for t in tensors)
        super().__init__(f"{op} is not covered by batch-invariant kernels{f' ({shapes})' if shapes else ''}; {hint}")
        self.op = op


class UnsupportedEngine(KernelError, RuntimeError):
    """An engine that the plug-in cannot make batch-invariant as it is; the message says what to change."""

    def __init__(self, engine: str, problem: str, *, hint: str) -> None:
        super().__init__(f"{engine}: {problem}; {hint}")
        self.engine = engine


class NotInvariant(KernelError, AssertionError):
    """One row had two results: the kernel, this GPU and these versions together are not batch-invariant."""


def describe(value: Any) -> str:
    """A tensor as `bf16[4, 128] cuda:0`; anything else by its type. Never a value."""
    shape, dtype, device = (getattr(value, name, None) for name in ("shape", "dtype", "device"))
    if shape is None or dtype is None:
        return type(value).__name__
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}] {device}"
