"""Compiled code inside `invariant()` is ours, although torch's compiler does not use the dispatcher."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from spanreplay_kernels import engaged, invariant
from spanreplay_kernels.errors import UncoveredOp

# Warnings of torch about torch while it imports its compiler
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

Model = Callable[[Tensor], Tensor]
ROWS = 40


@pytest.fixture
def layer() -> torch.nn.Module:
    """Weights that all rows share."""
    torch.manual_seed(7)
    return torch.nn.Linear(256, 128).eval()


@pytest.fixture
def compiled(layer: torch.nn.Module) -> Model:
    """A model that torch has already compiled and run, with its own kernels."""
    model: Any = torch.compile(lambda x: torch.softmax(layer(x).relu(), -1))
    with torch.inference_mode():
        model(torch.ones(2, 256))
        model(torch.ones(3, 256))
    found: Model = model
    return found


def count_differing(model: Model) -> int:
    """The number of rows that have other bits alone than among others."""
    x = torch.randn(ROWS, 256, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        whole = model(x)
        return sum(not torch.equal(model(x[row : row + 1])[0], whole[row]) for row in range(0, ROWS, 5))


def test_k10_a_model_compiled_before_is_ours_within_and_torchs_behind(compiled: Model) -> None:
    """As a control, torch's compiled kernels vary here; inside ours run and are counted, then torch's return."""
    assert count_differing(compiled) > 0
    with invariant():
        assert count_differing(compiled) == 0
        assert {"addmm", "_softmax"} <= set(engaged())
        with invariant():
            pass
        assert count_differing(compiled) == 0
    assert count_differing(compiled) > 0


def test_k10_compiled_code_gives_the_bits_of_eager_code(layer: torch.nn.Module, compiled: Model) -> None:
    """Nothing between the kernels of this model rounds, so eager and compiled code must agree."""
    x = torch.randn(ROWS, 256, generator=torch.Generator().manual_seed(5))
    with torch.inference_mode(), invariant():
        assert torch.equal(compiled(x), torch.softmax(layer(x).relu(), -1))


def test_k10_an_uncovered_operation_is_refused_in_compiled_code_too() -> None:
    """Compiled code never falls back silently to a kernel that varies."""
    model = torch.compile(lambda x: x.cumsum(-1) * 2)
    with torch.inference_mode(), invariant(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        model(torch.ones(3, 5))
    assert isinstance(caught.value.inner_exception, UncoveredOp)
    assert "cumsum" in str(caught.value)


def test_k10_compiling_can_still_be_turned_off(compiled: Model) -> None:
    """`torch.compiler.set_stance("force_eager")` compiles nothing; the dispatcher keeps that invariant."""
    with torch.compiler.set_stance("force_eager"), invariant():
        assert count_differing(compiled) == 0


def test_k10_the_compiler_is_given_back() -> None:
    """The compiler is restored after an exception too, and if it was first loaded inside."""
    stock, chooser = torch.compile, torch._dynamo.eval_frame._callback_from_stance
    with pytest.raises(ValueError, match="out"), invariant():
        raise ValueError("out")
    assert torch.compile is stock
    assert torch._dynamo.eval_frame._callback_from_stance is chooser


LATE = """
import sys, torch
from spanreplay_kernels import invariant, engaged
assert "torch._dynamo" not in sys.modules, "entering must not load a compiler that nobody needs"
layer = torch.nn.Linear(256, 128).eval()
stock = torch.compile
with torch.inference_mode(), invariant():
    model = torch.compile(lambda x: torch.softmax(layer(x), -1))
    x = torch.randn(40, 256)
    whole = model(x)
    assert all(torch.equal(model(x[i : i + 1])[0], whole[i]) for i in range(0, 40, 5))
    assert "addmm" in engaged()
assert torch.compile is stock
with torch.inference_mode():
    whole = model(x)
    is_same = all(torch.equal(model(x[i : i + 1])[0], whole[i]) for i in range(40))
assert not is_same, "the control found nothing"
"""


def test_k10_a_model_compiled_within_is_ours() -> None:
    """The same holds in a process that had not loaded the compiler before."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
