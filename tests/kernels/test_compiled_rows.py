"""Compiled operations over rows: one binary for every batch, one order in kernels that must agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

COMPILE_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """The result of `compiled_rows`, from a process that compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "kernels.compiled_rows"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_k9_one_machine_code_serves_every_batch(compiled: dict[str, Any]) -> None:
    """1 to 129 rows, from aligned and unaligned places, with odd widths too: no sum is compiled again."""
    counts = compiled["specialisations"]
    ours = {name: count for name, count in counts.items() if not name.startswith("unaligned")}
    assert ours == dict.fromkeys(ours, 1)


def test_k9_code_that_depends_on_an_address_is_caught(compiled: dict[str, Any]) -> None:
    """Negative control: without alignment of its rows the same kernel is compiled twice."""
    counts = compiled["specialisations"]
    assert counts["unaligned_mean 101"] == 2


def test_k9_kernels_that_must_agree_add_up_alike(compiled: dict[str, Any]) -> None:
    """A norm with and without residual, and log_softmax with and without gathering, have one sum layout per width."""
    for name, (one, other) in compiled["reductions"].items():
        assert one == other, name
        assert one, name
    widths = {tuple(one) for one, _ in compiled["reductions"].values()}
    assert len(widths) > 3  # which tells them apart
