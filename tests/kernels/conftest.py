"""The kernels' tests run in an environment with torch; without a GPU the kernels are interpreted."""

from __future__ import annotations

import importlib.util
import os

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
if not HAS_TORCH:
    collect_ignore_glob = ["*"]  # `make test` runs them in .venvs/kernels


def _has_gpu() -> bool:
    if not HAS_TORCH:
        return False
    import torch

    return bool(torch.cuda.is_available())


HAS_GPU = _has_gpu()
if HAS_TORCH and not HAS_GPU:
    # Triton decides at import whether a process interprets all kernels or none
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # noqa: F401 -- so that nobody imports it without


@pytest.fixture(autouse=True)
def two_threads() -> None:
    """Fix the number of threads, on which the CPU's sums depend, as part of the environment."""
    import torch

    torch.set_num_threads(2)


@pytest.fixture
def device() -> str:
    """The device for kernels: a GPU, or the CPU, where they are interpreted."""
    return "cuda" if HAS_GPU else "cpu"
