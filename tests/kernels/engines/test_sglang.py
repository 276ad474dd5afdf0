"""SGLang's plug-in, called through its entry point by a stand-in for SGLang, which needs a GPU; computed on the CPU."""

from __future__ import annotations

import functools
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

from kernels.engines.stubs import write_sglang
from kernels.samples import normal
from spanreplay_kernels.engines import attestation, sglang
from spanreplay_kernels.engines._replacements import NAMES, REPLACEMENTS
from spanreplay_kernels.engines._rules import check
from spanreplay_kernels.errors import UnsupportedEngine, UnsupportedInput
from spanreplay_kernels.ops.attention import attention
from spanreplay_kernels.ops.matmul import bmm, matmul
from spanreplay_kernels.ops.mean import mean
from spanreplay_kernels.ops.rms_norm import rms_norm
from spanreplay_kernels.ops.softmax import log_softmax

GOOD: dict[str, Any] = {
    "enable_deterministic_inference": True, "attention_backend": "spanreplay", "quantization": None,
    "kv_cache_dtype": "auto", "disaggregation_mode": "null", "tokenizer_worker_num": 1, "dp_size": 1, "pp_size": 1,
    "ep_size": 1, "attn_cp_size": 1, "dcp_size": 1, "nnodes": 1,
}  # fmt: skip

START = """
import json, os, sys
from types import SimpleNamespace
from sglang.srt.plugins import load_plugins

assert "torch" not in sys.modules
load_plugins()
if "torch" not in sys.modules:
    print("idle")
    sys.exit()
from sglang.srt.arg_groups import attention_hook, choices
from sglang.srt.batch_invariant_ops import batch_invariant_ops
from sglang.srt.entrypoints import http_server
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
import torch
x = torch.ones(2, 8)
print(json.dumps({
    "norm": batch_invariant_ops.rms_norm(x, torch.ones(8))[0, 0].item(),
    "backends": {name: each.__module__ for name, each in ATTENTION_BACKENDS.items()},
    "choices": [choices.CHOICES, choices.DETERMINISTIC, choices.RADIX],
    "middleware": http_server._setup_and_run_http_server(*[None] * 6),
    "resolved": attention_hook.handle_deterministic_inference(SimpleNamespace(**json.loads(sys.argv[1]))),
}))
"""


def _start(
    tmp_path: Path, python: str, environ: dict[str, str], release: str = "", *, arguments: dict[str, Any] = GOOD,
    loses_hooks: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Start a process of SGLang that loads its plug-ins; it finds ours by the installed entry point."""
    stub = write_sglang(tmp_path / "stub", release, loses_hooks=loses_hooks)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    return subprocess.run(
        [python, "-c", START, json.dumps(arguments)],
        env={**inherited, "PYTHONPATH": str(stub), "TMPDIR": str(tmp_path), **environ},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


ASKED = {"SGLANG_PLUGINS": "other,spanreplay"}


def test_k12_sglang_finds_the_plug_in_and_computes_with_it(tmp_path: Path, python: str) -> None:
    """The functions are ours, our attention is in every list, the server has the middleware, arguments pass."""
    done = _start(tmp_path, python, ASKED)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "norm": pytest.approx(1.0),
        "backends": {"spanreplay": "spanreplay_kernels.engines.sglang"},
        "choices": [["spanreplay"]] * 3,
        "middleware": ["Header"],
        "resolved": "resolved",
    }


@pytest.mark.parametrize("plugins", ["", "other", None], ids=["none", "another", "no list"])
def test_k12_sglang_without_the_plug_in_named_is_left_alone(plugins: str | None, tmp_path: Path, python: str) -> None:
    """The recorder changes nothing in SGLang, in any of its modes: not even torch is imported."""
    environ = {} if plugins is None else {"SGLANG_PLUGINS": plugins}
    done = _start(tmp_path, python, environ, "0.9.0")
    assert (done.returncode, done.stdout) == (0, "idle\n"), done.stderr


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an older release": ({"release": "0.5.20"}, "spanreplay: sglang: release 0.5.20 is none"),
    "a newer release": ({"release": "0.6.0"}, "install sglang 0.5.21 to 0.5.23"),
    "a hook that does not apply": (
        {"loses_hooks": True},
        "hooks that do not hold: sglang.srt.batch_invariant_ops.batch_invariant_ops.rms_norm",
    ),
    "arguments": (
        {"arguments": {**GOOD, "attention_backend": "triton"}},
        "attention_backend is 'triton'; start with --attention-backend spanreplay",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_k12_sglang_is_refused_though_it_swallows_errors(case: str, tmp_path: Path, python: str) -> None:
    """SGLang logs a plug-in's exception and goes on, so our refusal ends the process; its last line says why."""
    changed, message = REFUSED[case]
    done = _start(tmp_path, python, ASKED, **changed)
    assert done.returncode == 1
    assert message in done.stderr.rstrip().splitlines()[-1]


BAD_ARGUMENTS: dict[str, Any] = {
    "enable_deterministic_inference": False, "attention_backend": "fa3", "prefill_attention_backend": "fa3",
    "decode_attention_backend": "triton", "enable_lora": True, "lora_paths": ["a"], "speculative_algorithm": "EAGLE",
    "quantization": "fp8", "kv_cache_dtype": "fp8_e4m3", "dllm_algorithm": "LowConfidence",
    "rl_on_policy_target": "fsdp", "disaggregation_mode": "prefill", "enable_two_batch_overlap": True,
    "enable_dp_attention": True, "tokenizer_worker_num": 2, "dp_size": 2, "pp_size": 2, "ep_size": 2,
    "attn_cp_size": 2, "dcp_size": 2, "nnodes": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_k12_sglang_arguments_that_are_refused(name: str) -> None:
    """Each setting that leaves a sum to other kernels is refused by name; the other arguments are accepted."""
    check("sglang", sglang.RULES, SimpleNamespace(**GOOD))
    with pytest.raises(UnsupportedEngine, match=f"sglang: {name} is "):
        check("sglang", sglang.RULES, SimpleNamespace(**{**GOOD, name: BAD_ARGUMENTS[name]}))


BAD_MODELS: dict[str, Any] = {
    "model_config.quantization": "fp8", "use_mla_backend": True, "sliding_window_size": 128,
    "model_config.is_encoder_decoder": True, "model_config.is_multimodal": True, "is_draft_worker": True,
}  # fmt: skip


@pytest.mark.parametrize("path", BAD_MODELS)
def test_k12_sglang_models_that_are_refused(path: str) -> None:
    """Facts that only the loaded model states are refused where it computes, before its attention is made."""
    runner = SimpleNamespace(model_config=SimpleNamespace(), sliding_window_size=None)
    check("sglang", sglang.MODEL_RULES, runner)
    owner = runner.model_config if "." in path else runner
    setattr(owner, path.rpartition(".")[2], BAD_MODELS[path])
    with pytest.raises(UnsupportedEngine, match=f"sglang: {path} is "):
        sglang._make_backend(runner)


def test_k12_sglang_makes_our_attention_for_models_of_attention_alone(fake_sglang: Path) -> None:
    """The entry in SGLang's registry makes our backend; a model with other kinds of layers is refused."""
    runner = SimpleNamespace(
        model_config=SimpleNamespace(), deterministic=True, longest=64, page_size=1, device="cpu",
        sliding_window_size=None,
    )  # fmt: skip
    assert type(sglang._make_backend(runner)).__module__ == "spanreplay_kernels.engines._sglang_attention"
    runner.model_config.mamba = SimpleNamespace()
    with pytest.raises(UnsupportedEngine, match="layers that are not attention under a mask"):
        sglang._make_backend(runner)


def test_k12_sglang_every_rule_has_a_case() -> None:
    """A rule without a case that breaks it might never refuse."""
    assert {rule.path for rule in sglang.RULES} == set(BAD_ARGUMENTS)
    assert {rule.path for rule in sglang.MODEL_RULES} == set(BAD_MODELS)


def _same(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_k12_sglang_functions_have_our_bits(dtype: torch.dtype, plugin_state: Path) -> None:
    """Each function that SGLang calls gives the bits of our operation."""
    assert set(NAMES["sglang"]) <= REPLACEMENTS.keys()
    x, w = normal(33, 48, dtype=dtype), normal(48, 40, dtype=dtype, seed=1)
    call = REPLACEMENTS
    _same(call["matmul_persistent"](x, w), matmul(x, w))
    _same(call["rms_norm"](x, normal(48, dtype=dtype), eps=1e-5), rms_norm(x, normal(48, dtype=dtype), 1e-5))
    _same(call["log_softmax"](x, dim=1), log_softmax(x))
    _same(call["mean_dim"](x, 1, keepdim=True), mean(x, 1, True))
    _same(call["mean_dim"](torch.arange(6).view(2, 3), -1), torch.tensor([1.0, 4.0]))
    _same(call["bmm_batch_invariant"](x[None], w[None]), bmm(x[None], w[None]))


def test_k12_sglang_products_in_another_dtype(plugin_state: Path) -> None:
    """With `mm.dtype` fp32 for bf16 inputs, as in routers, the sum isn't rounded to bf16 and depends on its row."""
    x, w = normal(33, 64, dtype=torch.bfloat16), normal(64, 8, dtype=torch.bfloat16, seed=1)
    found = REPLACEMENTS["matmul_persistent"](x, w, out_dtype=torch.float32)
    torch.testing.assert_close(found, (x.double() @ w.double()).float(), rtol=1e-5, atol=1e-5)
    assert not torch.equal(found, found.bfloat16().float())
    _same(REPLACEMENTS["matmul_persistent"](x[5:6], w, out_dtype=torch.float32), found[5:6])
    _same(REPLACEMENTS["matmul_persistent"](x, w, out_dtype=torch.bfloat16), matmul(x, w))
    with pytest.raises(UnsupportedInput, match="ask for float32"):
        REPLACEMENTS["matmul_persistent"](x, w, out_dtype=torch.float16)


class Cache:
    """Keys and values of sequences, packed, and in SGLang's buffers: slots in scattered pages."""

    HEADS, KV_HEADS, SIZE = 4, 2, 32

    def __init__(self, lengths: list[int], queries: list[int], page: int) -> None:
        self.lengths, self.queries = lengths, queries
        total = sum(lengths)
        self.q = normal(sum(queries), self.HEADS, self.SIZE, dtype=torch.bfloat16)
        self.k, self.v = (normal(total, self.KV_HEADS, self.SIZE, dtype=torch.bfloat16, seed=s) for s in (1, 2))
        pages = sum(-(-length // page) for length in lengths)
        shape = ((pages + 1) * page, self.KV_HEADS, self.SIZE)
        self.k_buffer, self.v_buffer = (torch.full(shape, float("nan"), dtype=torch.bfloat16) for _ in range(2))
        free, slots = iter(reversed(range(1, pages + 1))), list[int]()
        for length in lengths:
            taken = [next(free) for _ in range(-(-length // page))]
            slots += [page * each + offset for each in taken for offset in range(page)][:length]
        self.slots = torch.tensor(slots)
        self.k_buffer[self.slots], self.v_buffer[self.slots] = self.k, self.v

    @staticmethod
    def starts(lengths: list[int]) -> Tensor:
        return torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32)

    def expected(self) -> Tensor:
        cu = self.starts(self.queries), self.starts(self.lengths)
        return attention(self.q, self.k, self.v, cu_seqlens_q=cu[0], cu_seqlens_k=cu[1], scale=0.125)


@pytest.fixture
def backend(fake_sglang: Path) -> Any:
    """Make SGLang's backend from ours, with a stand-in for its own."""

    def make(page: int = 1, *, deterministic: bool = True, device: str = "cpu", **more: Any) -> Any:
        module = importlib.import_module("spanreplay_kernels.engines._sglang_attention")
        runner = SimpleNamespace(deterministic=deterministic, longest=128, page_size=page, device=device, **more)
        return module.Backend(runner)

    return make


@pytest.mark.parametrize("page", [1, 16])
def test_k12_sglang_extends_over_its_cache(page: int, backend: Any) -> None:
    """A prefill, a chunk after a prefix and one token together have the bits of our attention on packed keys."""
    cache, made = Cache([37, 50, 20], [37, 9, 1], page), backend(page)
    o = torch.empty_like(cache.q)
    made.extend_attention_fwd_unified(
        cache.q, o, cache.k_buffer, cache.v_buffer, 1.0, 1.0, cache.starts(cache.queries).long(),
        cache.starts(cache.lengths), cache.slots, torch.tensor([0, 41, 19], dtype=torch.int32), 37, custom_mask=None,
        mask_indptr=None, sm_scale=0.125, logit_cap=0, is_causal=True, sliding_window_size=-1, sinks=None,
        window_start_pos=None, xai_temperature_len=-1, page_size=page, score_mod=None, aux_tensors=None,
    )  # fmt: skip
    _same(o, cache.expected())


@pytest.mark.parametrize("page", [1, 16])
def test_k12_sglang_decodes_over_its_cache(page: int, backend: Any) -> None:
    """One token of each sequence, with a buffer of slots that is longer than needed, as under a CUDA graph."""
    cache, made = Cache([33, 1, 80], [1, 1, 1], page), backend(page)
    o = torch.empty_like(cache.q)
    slots = torch.nn.functional.pad(cache.slots, (0, 7))
    made.decode_attention_fwd(
        cache.q, cache.k_buffer, cache.v_buffer, o, cache.starts(cache.lengths), slots, None, None, None, 8, 0.125,
        1.0, 1.0, logit_cap=0, sinks=None, xai_temperature_len=-1, has_mla=False, use_pdl=True, page_size=page,
        score_mod=None, aux_tensors=None, enable_lean=False, lean_Mp=None, lean_Lp=None, lean_Op=None,
        lean_locks=None, uneven_batch=None,
    )  # fmt: skip
    _same(o, cache.expected())


NO_KERNEL: dict[str, tuple[dict[str, Any], str]] = {
    "scales": ({"k_scale": 0.5}, "a cache with scales"),
    "a soft cap": ({"logit_cap": 30.0}, "a soft cap of scores"),
    "sinks": ({"sinks": torch.zeros(4)}, "attention sinks"),
    "a mask": ({"custom_mask": torch.zeros(4)}, "a mask"),
    "a temperature": ({"xai_temperature_len": 8}, "a temperature by length"),
    "a window": ({"sliding_window_size": 8}, "a sliding window"),
    "changed scores": ({"score_mod": max}, "changed scores"),
}


@pytest.mark.parametrize("case", NO_KERNEL)
def test_k12_sglang_batches_without_a_kernel_are_refused(case: str, backend: Any) -> None:
    """Attention other than causal is refused, not ignored."""
    changed, message = NO_KERNEL[case]
    cache, made = Cache([33], [1], 1), backend()
    call = functools.partial(
        made.extend_attention_fwd_unified, q=cache.q, o=torch.empty_like(cache.q), k_buffer=cache.k_buffer,
        v_buffer=cache.v_buffer, v_scale=1.0, qo_indptr=cache.starts([1]), kv_indptr=cache.starts([33]),
        kv_indices=cache.slots, prefix_lens=None, max_len_extend=1, sm_scale=0.125,
    )  # fmt: skip
    call(k_scale=1.0)
    with pytest.raises(UnsupportedInput, match=message):
        call(**{"k_scale": 1.0, **changed})


def test_k12_sglang_outside_its_deterministic_mode_is_refused(backend: Any) -> None:
    """In its other mode SGLang would call other functions for its attention."""
    with pytest.raises(UnsupportedInput, match="deterministic inference is off"):
        backend(deterministic=False)


def test_k12_sglang_on_a_device_without_plans_is_refused(backend: Any) -> None:
    """A device that is neither a CPU nor an NVIDIA GPU of a known family has no attention of ours."""
    with pytest.raises(UnsupportedInput, match="no kernels for xpu"):
        backend(device="xpu")


def test_k12_sglang_states_what_it_has_computed_with(backend: Any, fake_sglang: Path, tmp_path: Path) -> None:
    """The computing process writes its statement before the first batch that follows one computed by our kernels."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    hf_config = transformers.LlamaConfig(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=16, intermediate_size=16
    )
    model = torch.nn.Linear(16, 16, bias=False)
    made = backend(
        model=model, model_config=SimpleNamespace(hf_config=hf_config, model_path=str(folder), revision=None),
        server_args=SimpleNamespace(skip_tokenizer_init=True),
    )  # fmt: skip
    made.init_forward_metadata(None)
    assert attestation.read_line() == ""
    cache = Cache([33], [1], 1)
    with torch.inference_mode():
        REPLACEMENTS["matmul_persistent"](normal(1, 16, dtype=torch.float32), model.weight.t())
        made.decode_attention_fwd(
            cache.q, cache.k_buffer, cache.v_buffer, torch.empty_like(cache.q), cache.starts([33]), cache.slots,
            None, None, None, 8, 0.125, 1.0, 1.0,
        )  # fmt: skip
    made.init_forward_metadata_out_graph(None, in_capture=True)
    assert made.batches == 2
    parts = dict(part.split("=", 1) for part in attestation.read_line().split("; "))
    assert (parts["engine"], parts["dtype"]) == ("sglang-0.5.23", "float32")
    stated = json.loads((fake_sglang / "rank-0.json").read_text(encoding="utf-8"))
    assert stated["engaged"] == {"product": 1, "paged_attention": 1}
