"""The command `audit` with a covered model, an uncovered one, and none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, PreTrainedModel

from spanreplay_kernels.__main__ import main
from spanreplay_kernels.demo import KINDS, tiny_model
from spanreplay_kernels.switch.registry import is_invariant


def bloom() -> PreTrainedModel:
    """Attention by hand: a softmax, and a product with it."""
    torch.manual_seed(0)
    return BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2))


def saved(make: Callable[[], PreTrainedModel], folder: Path) -> str:
    """Save a model; return its folder."""
    make().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_k10_a_covered_model_passes(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of our operations is listed with its shapes, and nothing remains changed after the command."""
    assert main(["audit", saved(lambda: tiny_model(kind), tmp_path)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert any(line.split()[2:4] == ["mm", "(float32[3,"] for line in lines), shown.out
    assert {line.split()[0] for line in lines} == {"covered"}
    assert "calls covered, 0 uncovered" in shown.err
    assert not is_invariant()


def test_k10_a_model_that_is_not_covered_fails_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control: a sum over neighbours' lengths, or an operation that cannot be replaced, is reported."""
    assert main(["audit", saved(bloom, tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "attention" in shown.err or "not batch-invariant: " in shown.err


def test_k10_no_model_is_an_error_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without a model is an error, neither covered nor uncovered."""
    assert main(["audit", str(tmp_path)]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
