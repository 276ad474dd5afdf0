"""The kernels' tests run in an environment with torch; without a GPU their kernels are interpreted."""

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
    # Triton decides at its import; a process interprets all kernels, or none
    os.environ["TRITON_INTERPRET"] = "1"
    import triton  # noqa: F401 -- so that nobody imports it without


@pytest.fixture(autouse=True)
def two_threads() -> None:
    """The CPU's sums depend on the number of threads: it is part of the environment, and fixed."""
    import torch

    torch.set_num_threads(2)


@pytest.fixture
def device() -> str:
    """Where kernels run here: on a GPU, or interpreted on the CPU."""
    return "cuda" if HAS_GPU else "cpu"
