"""vLLM's plug-in, called through its entry point by a stand-in for vLLM: replacements, refusals and statements."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.engines.caches import Sequences
from kernels.engines.stubs import write_vllm
from kernels.samples import normal
from spanreplay_kernels.engines import attestation, vllm
from spanreplay_kernels.engines._replacements import NAMES, REPLACEMENTS
from spanreplay_kernels.engines._rules import check
from spanreplay_kernels.errors import KernelError, UnsupportedEngine
from spanreplay_kernels.proof import fingerprint

ASKED = {"VLLM_PLUGINS": "spanreplay", "VLLM_BATCH_INVARIANT": "1"}

START = """
import json, os, sys
from vllm.model_executor.layers import layernorm  # before the plug-in: it holds the stock function by name
from vllm.plugins import load_general_plugins

assert "torch" not in sys.modules
load_general_plugins()
if "torch" not in sys.modules:
    print("idle")
    sys.exit()
load_general_plugins()  # vLLM may call it again in a process that it forked
from vllm.model_executor.determinism import batch_invariant
from vllm.model_executor.layers import linear, vocab_parallel_embedding  # after it
from vllm.v1.attention.backends.registry import OVERRIDES
from spanreplay_kernels.engines.attestation import FOLDER

def ours(module):
    found = {name: each for name, each in vars(module).items() if callable(each)}
    return sorted(name for name, each in found.items() if each.__module__.startswith("spanreplay_kernels"))

modules = (batch_invariant, linear, vocab_parallel_embedding, layernorm)
print(json.dumps({"ours": {each.__name__: ours(each) for each in modules}, "backends": OVERRIDES,
                  "folder": os.environ[FOLDER]}))
"""


def _start(tmp_path: Path, python: str, release: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Start a process of vLLM that loads its plug-ins; it finds ours by the installed entry point."""
    stub = write_vllm(tmp_path / "stub", release)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    return subprocess.run(
        [python, "-c", START],
        env={**inherited, "PYTHONPATH": str(stub), "TMPDIR": str(tmp_path), **environ},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_k12_vllm_finds_the_plug_in_and_computes_with_it(tmp_path: Path, python: str) -> None:
    """Every function is ours in its own module and in each module that imported it by name, before or after."""
    done = _start(tmp_path, python, **ASKED)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    home = found["ours"].pop("vllm.model_executor.determinism.batch_invariant")
    assert home == sorted(NAMES["vllm"])
    assert found["ours"] == {
        "vllm.model_executor.layers.linear": ["linear_batch_invariant"],
        "vllm.model_executor.layers.vocab_parallel_embedding": ["linear_batch_invariant"],
        "vllm.model_executor.layers.layernorm": ["rms_norm_batch_invariant"],
    }
    assert found["backends"] == {"CUSTOM": "spanreplay_kernels.engines.vllm.Backend"}
    assert Path(found["folder"]).parent == tmp_path
    assert not Path(found["folder"]).exists(), "nothing is written before something has run"


@pytest.mark.parametrize("plugins", ["", "lora_resolver", None], ids=["none", "another", "no list"])
def test_k12_vllm_without_the_plug_in_named_is_left_alone(plugins: str | None, tmp_path: Path, python: str) -> None:
    """The recorder changes nothing in vLLM, in any of its modes: not even torch is imported."""
    environ = {} if plugins is None else {"VLLM_PLUGINS": plugins}
    done = _start(tmp_path, python, "0.99.0", STUB_GPU="none", **environ)
    assert (done.returncode, done.stdout) == (0, "idle\n"), done.stderr


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "an older release": ({"release": "0.31.0"}, "release 0.31.0 is none whose functions are known here"),
    "a newer release": ({"release": "0.34.0"}, "install vllm 0.32 to 0.33"),
    "a build from source": ({"release": "dev"}, "release dev is none"),
    "its mode is off": ({"VLLM_BATCH_INVARIANT": "0"}, "set VLLM_BATCH_INVARIANT=1"),
    "another platform": ({"STUB_GPU": "rocm"}, "its platform is not CUDA"),
    "no GPU": ({"STUB_GPU": "none"}, "it sees no GPU"),
    "an old GPU": ({"STUB_GPU": "7.5"}, "no plan for compute capability 7.5"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_k12_vllm_is_refused_before_it_starts(case: str, tmp_path: Path, python: str) -> None:
    """A configuration that cannot be covered ends the process, and the last line says why."""
    changed, message = REFUSED[case]
    done = _start(tmp_path, python, **{**ASKED, **changed})
    assert done.returncode == 1
    assert message in done.stderr.rstrip().splitlines()[-1]
    assert "swallowed" not in done.stdout


def _config(**changed: Any) -> Any:
    """A covered `VllmConfig`, changed by `a_b__c=value` for `a_b.c`."""
    config = SimpleNamespace(
        attention_config=SimpleNamespace(backend=SimpleNamespace(name="CUSTOM"), backend_per_kind={}),
        lora_config=None, speculative_config=None, diffusion_config=None, kv_transfer_config=None,
        weight_transfer_config=None, cache_config=SimpleNamespace(cache_dtype="auto"),
        compilation_config=SimpleNamespace(pass_config=SimpleNamespace()),
        model_config=SimpleNamespace(
            quantization=None, use_mla=False, is_hybrid=False, is_attention_free=False, is_encoder_decoder=False,
            is_multimodal_model=False,
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, data_parallel_size=1, prefill_context_parallel_size=1,
            decode_context_parallel_size=1, nnodes=1, enable_expert_parallel=False, enable_dbo=False,
            use_sequence_parallel_moe=False,
        ),
    )  # fmt: skip
    for path, value in changed.items():
        *owners, name = path.split("__")
        owner = config
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)
    return config


BAD_CONFIGS: dict[str, tuple[Any, str]] = {
    "attention_config__backend": (SimpleNamespace(name="FLASH_ATTN"), "backend is FLASH_ATTN; start with --attention"),
    "attention_config__backend_per_kind": ({"sliding_window": 1}, "one attention backend for all layers"),
    "lora_config": (SimpleNamespace(), "without LoRA"),
    "speculative_config": (SimpleNamespace(), "leave out --speculative-config"),
    "diffusion_config": (SimpleNamespace(), "diffusion_config is SimpleNamespace"),
    "kv_transfer_config": (SimpleNamespace(), "leave out --kv-transfer-config"),
    "weight_transfer_config": (SimpleNamespace(), "weights that change in memory have no revision"),
    "model_config__quantization": ("awq", "model_config.quantization is 'awq'"),
    "model_config__use_mla": (True, "model_config.use_mla is True"),
    "model_config__is_hybrid": (True, "model_config.is_hybrid is True"),
    "model_config__is_attention_free": (True, "model_config.is_attention_free is True"),
    "model_config__is_encoder_decoder": (True, "model_config.is_encoder_decoder is True"),
    "model_config__is_multimodal_model": (True, "model_config.is_multimodal_model is True"),
    "cache_config__cache_dtype": ("fp8", "cache_config.cache_dtype is 'fp8'"),
    "compilation_config__pass_config__enable_sp": (True, "leave sequence parallelism off"),
    "parallel_config__enable_hc_sp": (True, "leave sequence parallelism off"),
    "parallel_config__use_sequence_parallel_moe": (True, "leave sequence parallelism off"),
    "parallel_config__enable_expert_parallel": (True, "leave out --enable-expert-parallel"),
    "parallel_config__enable_dbo": (True, "leave out --enable-dbo"),
    "parallel_config__pipeline_parallel_size": (2, "parallel_config.pipeline_parallel_size is 2"),
    "parallel_config__data_parallel_size": (2, "parallel_config.data_parallel_size is 2"),
    "parallel_config__prefill_context_parallel_size": (2, "prefill_context_parallel_size is 2"),
    "parallel_config__decode_context_parallel_size": (2, "decode_context_parallel_size is 2"),
    "parallel_config__nnodes": (2, "parallel_config.nnodes is 2"),
}


@pytest.mark.parametrize("path", BAD_CONFIGS)
def test_k12_vllm_configurations_that_are_refused(path: str) -> None:
    """Each setting that leaves a sum to other kernels is refused by name; other settings are accepted."""
    value, message = BAD_CONFIGS[path]
    check("vllm", vllm.RULES, _config())
    with pytest.raises(UnsupportedEngine) as caught:
        check("vllm", vllm.RULES, _config(**{path: value}))
    assert message in str(caught.value)


def test_k12_vllm_every_rule_has_a_case() -> None:
    """A rule without a case that breaks it might never refuse."""
    assert {rule.path.replace(".", "__") for rule in vllm.RULES} == set(BAD_CONFIGS)


class Worker:
    """A worker of one layer, which may compute during its warm-up."""

    def __init__(self, folder: Path, *, computes: bool) -> None:
        self.calls: list[str] = []
        self.model = torch.nn.Linear(16, 16, bias=False)
        self._computes = computes

    def init_device(self) -> None:
        self.calls.append("init_device")

    def compile_or_warm_up_model(self) -> str:
        self.calls.append("warm up")
        if self._computes:
            _compute(self.model.weight)
        return "times"

    def get_model(self) -> torch.nn.Module:
        return self.model


def _compute(weight: Tensor) -> None:
    """Compute a batch: a product, and attention by the backend."""
    with torch.inference_mode():
        sequences = Sequences([20], [1], torch.float32)
        REPLACEMENTS["linear_batch_invariant"](normal(1, 16, dtype=torch.float32), weight)
        impl = vllm.Backend.get_impl_cls()(4, 32, 0.125, 2, None, None, "auto")
        impl.forward(
            torch.nn.Module(), sequences.q, None, None, sequences.cache, sequences.metadata(),
            torch.empty_like(sequences.q),
        )  # fmt: skip


@pytest.fixture
def started(fake_vllm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load vLLM's plug-ins; make a worker's wrapper with a configuration."""
    transformers = pytest.importorskip("transformers")
    for name, value in ASKED.items():
        monkeypatch.setenv(name, value)
    vllm.register()
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    hf_config = transformers.LlamaConfig(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=16, intermediate_size=16
    )

    def make(*, computes: bool = True, **changed: Any) -> Any:
        config = _config(
            model_config__hf_config=hf_config, model_config__dtype=torch.float32, model_config__model=str(folder),
            model_config__skip_tokenizer_init=True,
            model_config__try_get_generation_config=lambda: {"temperature": 0.6}, **changed,
        )  # fmt: skip
        base = importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
        return base(Worker(folder, computes=computes), config)

    return make


def test_k12_a_worker_states_what_it_has_computed_with(started: Any, fake_vllm: Path) -> None:
    """After its warm-up a worker's file has the operations, plans, versions and line; the server reads the line."""
    wrapper = started()
    wrapper.init_device()
    assert attestation.read_line() == ""
    assert wrapper.compile_or_warm_up_model() == "times"
    assert wrapper.worker.calls == ["init_device", "warm up"]
    stated = json.loads((fake_vllm / "rank-0.json").read_text(encoding="utf-8"))
    assert stated["engaged"] == {"product": 1, "paged_attention": 1}
    assert stated["line"] == attestation.read_line()
    parts = dict(part.split("=", 1) for part in stated["line"].split("; "))
    assert (parts["engine"], parts["tp"], parts["dtype"]) == ("vllm-0.33.0", "1", "float32")
    assert (parts["plan"], stated["versions"]["vllm"]) == (stated["plan"], "0.33.0")
    assert stated["system_fingerprint"] == fingerprint.system_fingerprint(stated["line"])
    assert importlib.import_module(vllm.__name__).header is attestation.Header


def test_k12_a_worker_that_has_not_computed_states_nothing(started: Any, fake_vllm: Path) -> None:
    """If the warm-up calls no kernel of ours, the statement is made after the first batch that does."""
    wrapper = started(computes=False)
    wrapper.init_device()
    wrapper.compile_or_warm_up_model()
    assert attestation.read_line() == ""
    _compute(wrapper.worker.model.weight)
    attestation.settle()  # as the attention of the next batch does
    assert attestation.read_line().startswith("kernels=")


def test_k12_a_worker_is_refused_before_its_device_is_touched(started: Any) -> None:
    """A configuration that is not covered ends the worker before that."""
    wrapper = started(lora_config=SimpleNamespace())
    with pytest.raises(UnsupportedEngine, match="lora_config"):
        wrapper.init_device()
    assert wrapper.worker.calls == []


def test_k12_a_stock_function_that_came_back_is_found(started: Any) -> None:
    """A module that gets vLLM's own function back ends the worker before it states anything."""
    wrapper = started()
    wrapper.init_device()
    layernorm: Any = importlib.import_module("vllm.model_executor.layers.layernorm")
    layernorm.kept = vllm._stock["rms_norm_batch_invariant"]
    with pytest.raises(UnsupportedEngine, match=r"not replaced: vllm\.model_executor\.layers\.layernorm\.kept"):
        wrapper.compile_or_warm_up_model()
    assert attestation.read_line() == ""


RANK = """
import sys
from pathlib import Path
import torch, transformers
from spanreplay_kernels.engines._replacements import REPLACEMENTS, paged_attention
from spanreplay_kernels.engines._statement import Served, has_computed, state

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method=(folder / "meet").as_uri(), rank=rank, world_size=2)
torch.manual_seed(0)  # the shard of another rank has other weights, and the same shapes
model = torch.nn.Linear(16, 8, bias=False)
config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
with torch.inference_mode():
    REPLACEMENTS["linear_batch_invariant"](torch.ones(1, 16), model.weight)
    assert not has_computed()
    paged_attention(torch.ones(1, 2, 32), *[torch.ones(2, 16, 1, 32)] * 2, torch.ones(1, 1).int(), torch.ones(1).int())
assert has_computed()
served = Served(model, config, {}, torch.device("cpu"), torch.float32)
state(served, engine="vllm", release="0.33.0", name="org/model", commit="0" * 40, tokenizer=None)
print("stated", flush=True)
sys.stdin.read()  # until the test has read the line
"""


def test_k12_ranks_state_one_line(tmp_path: Path, python: str, plugin_state: Path) -> None:
    """Two processes that compute together state one line, with their number; when one ends, there is none."""
    pytest.importorskip("transformers")
    environ = {**os.environ, "PYTHONPATH": str(write_vllm(tmp_path / "stub")), "OMP_NUM_THREADS": "2"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environ}
    ranks = [subprocess.Popen([python, "-c", RANK, str(rank), str(tmp_path)], **pipes) for rank in (0, 1)]
    try:
        assert [rank.stdout.readline() for rank in ranks if rank.stdout] == ["stated\n"] * 2
        parts = dict(part.split("=", 1) for part in attestation.read_line().split("; "))
        assert (parts["tp"], parts["engine"], parts["revision"]) == ("2", "vllm-0.33.0", "0" * 40)
    finally:
        ranks[1].communicate()
    assert attestation.read_line() == ""
    ranks[0].communicate()
    assert not plugin_state.exists()


def test_k12_a_model_without_revision_is_refused(started: Any, tmp_path: Path) -> None:
    """Weights without a revision could be any, so a line for them would be meaningless."""
    (tmp_path / "model" / "model.safetensors").unlink()
    wrapper = started()
    wrapper.init_device()
    with pytest.raises(KernelError, match="has no commit and no weights"):
        wrapper.compile_or_warm_up_model()
