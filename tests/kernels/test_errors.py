"""Errors of the kernels."""

from __future__ import annotations

import copy

import pytest

from spanreplay_kernels.errors import KernelError, NotInvariant, UncoveredOp, UnsupportedEngine, UnsupportedInput


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedInput("matmul", "no plan", hint="use another"),
        UncoveredOp("cumsum", hint="use another"),
        UnsupportedEngine("vLLM", "LoRA is on", hint="turn it off"),
        NotInvariant("two results"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_out_of_a_process_as_they_were(error: KernelError) -> None:
    """An engine's worker, or a pool that compiles, passes them to its parent."""
    found = copy.copy(error)  # as pickling does
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
