"""The errors of this package; each names the operation, its shapes and what to do.

KernelError
├── UnsupportedInput   a dtype, device, shape or architecture that no plan exists for
├── UncoveredOp        a reduction ran that the batch-invariant kernels don't cover
├── UnsupportedEngine  an engine's release, configuration or code that its plug-in does not cover
└── NotInvariant       a certificate found two results for one row
"""

from __future__ import annotations

from typing import Any

__all__ = ["KernelError", "NotInvariant", "UncoveredOp", "UnsupportedEngine", "UnsupportedInput"]


class KernelError(Exception):
    """Base of all errors that this package raises on purpose; it survives pickling between processes."""

    def __reduce__(self) -> Any:
        return _make_again, (type(self), self.args, self.__dict__)


def _make_again(kind: type[KernelError], args: tuple[object, ...], fields: dict[str, Any]) -> KernelError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UnsupportedInput(KernelError, ValueError):
    """An operation has no plan for this dtype, device, shape or architecture; nothing was computed."""

    def __init__(self, op: str, problem: str, *tensors: Any, hint: str) -> None:
        shapes = ", ".join(describe(t) for t in tensors)
        super().__init__(f"{op}: {problem}{f' ({shapes})' if shapes else ''}; {hint}")
        self.op = op


class UncoveredOp(KernelError, RuntimeError):
    """An operation that reduces over a dimension ran on a kernel that isn't known to be batch-invariant."""

    def __init__(self, op: str, *tensors: Any, hint: str) -> None:
        shapes = ", ".join(describe(t) for t in tensors)
        super().__init__(f"{op} is not covered by batch-invariant kernels{f' ({shapes})' if shapes else ''}; {hint}")
        self.op = op


class UnsupportedEngine(KernelError, RuntimeError):
    """The plug-in can't make this engine batch-invariant as it is configured; the message says what to change."""

    def __init__(self, engine: str, problem: str, *, hint: str) -> None:
        super().__init__(f"{engine}: {problem}; {hint}")
        self.engine = engine


class NotInvariant(KernelError, AssertionError):
    """One row had two different results: this kernel on this GPU with these versions is not batch-invariant."""


def describe(value: Any) -> str:
    """Describe a tensor as `bfloat16[4, 128] cuda:0`, anything else by its type. Never includes a value."""
    shape, dtype, device = (getattr(value, name, None) for name in ("shape", "dtype", "device"))
    if shape is None or dtype is None:
        return type(value).__name__
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}] {device}"
