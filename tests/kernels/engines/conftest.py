"""Stand-ins for vLLM and SGLang in this process; the plug-ins' own state is restored after each test."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.engines.stubs import write_sglang, write_vllm


def _forget() -> None:
    ours = "spanreplay_kernels.engines._"
    for name in [n for n in sys.modules if n.partition(".")[0] in ("vllm", "sglang")]:
        del sys.modules[name]
    for name in [n for n in sys.modules if n.startswith((f"{ours}vllm", f"{ours}sglang"))]:
        del sys.modules[name]


@pytest.fixture
def plugin_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of attestations, in a state in which nothing has run and nothing of an engine is imported."""
    from spanreplay_kernels.engines import attestation, vllm
    from spanreplay_kernels.switch.registry import SWITCH

    folder = tmp_path / "attestation"
    monkeypatch.setenv(attestation.FOLDER, str(folder))
    monkeypatch.setattr(SWITCH, "calls", Counter())
    monkeypatch.setattr(attestation, "_postponed", None)
    monkeypatch.setattr(vllm, "_stock", {})
    _forget()
    yield folder
    _forget()


@pytest.fixture
def fake_vllm(tmp_path: Path, plugin_state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `import vllm` find the stand-in."""
    monkeypatch.syspath_prepend(str(write_vllm(tmp_path / "vllm-stub")))
    return plugin_state


@pytest.fixture
def fake_sglang(tmp_path: Path, plugin_state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `import sglang` find the stand-in."""
    monkeypatch.syspath_prepend(str(write_sglang(tmp_path / "sglang-stub")))
    return plugin_state
