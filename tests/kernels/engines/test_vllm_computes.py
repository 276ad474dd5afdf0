"""Computations of vLLM with the plug-in: products, norms, attention over its cache and experts, on the CPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.engines.caches import Sequences
from kernels.samples import normal
from spanreplay_kernels.engines import vllm
from spanreplay_kernels.engines._replacements import REPLACEMENTS
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.matmul import bmm, linear, matmul
from spanreplay_kernels.ops.moe import experts
from spanreplay_kernels.ops.rms_norm import rms_norm, rms_norm_residual
from spanreplay_kernels.ops.softmax import log_softmax, softmax


def _same(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_k12_vllm_functions_have_our_bits(dtype: torch.dtype, plugin_state: Path) -> None:
    """Each function that vLLM calls gives the bits of our operation, for one of many rows as for one alone."""
    x, w, bias = normal(33, 48, dtype=dtype), normal(40, 48, dtype=dtype, seed=1), normal(40, dtype=dtype, seed=2)
    call = REPLACEMENTS
    _same(call["linear_batch_invariant"](x[None], w, bias), linear(x, w, bias)[None])
    _same(call["linear_batch_invariant"](x[7:8], w), linear(x, w)[7:8])
    _same(call["matmul_persistent"](x, w.t(), bias=bias), matmul(x, w.t(), bias))
    weight, residual = normal(48, dtype=dtype, seed=3), normal(33, 48, dtype=dtype, seed=4)
    kept = residual.clone()
    _same(call["rms_norm_batch_invariant"](x, weight, 1e-5), rms_norm(x, weight, 1e-5))
    _same(call["rms_norm_batch_invariant"](x, None), rms_norm(x))
    for found, wanted in zip(
        call["rms_norm_batch_invariant"](x, weight, 1e-5, residual=residual),
        rms_norm_residual(x, residual, weight, 1e-5),
        strict=True,
    ):
        _same(found, wanted)
    _same(residual, kept)
    _same(call["softmax"](x), softmax(x))
    _same(call["log_softmax"](x[None], dim=-1), log_softmax(x)[None])
    batch = normal(3, 5, 16, dtype=dtype), normal(3, 16, 7, dtype=dtype, seed=1)
    _same(call["bmm_batch_invariant"](*batch), bmm(*batch))
    out = torch.empty(3, 5, 7, dtype=dtype)
    assert call["bmm_batch_invariant"](*batch, out=out) is out
    _same(out, bmm(*batch))


def test_k12_vllm_functions_stay_whole_in_a_graph(plugin_state: Path) -> None:
    """A compiler that allows no graph break sees one opaque operation for each, with the same bits."""

    def layer(x: Tensor, residual: Tensor, w: Tensor, weight: Tensor) -> Tensor:
        y, total = REPLACEMENTS["rms_norm_batch_invariant"](x, weight, 1e-6, residual=residual)
        return REPLACEMENTS["linear_batch_invariant"](y, w) + total

    x, residual, w, weight = (
        normal(9, 16, dtype=torch.float32), normal(9, 16, dtype=torch.float32, seed=1),
        normal(16, 16, dtype=torch.float32, seed=2), normal(16, dtype=torch.float32, seed=3),
    )  # fmt: skip
    with torch.inference_mode():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        _same(compiled(x, residual, w, weight), layer(x, residual, w, weight))


BATCHES = {
    "a prefill, a chunk and a token": ([37, 50, 20], [37, 9, 1]),
    "decoded tokens": ([33, 1, 80], [1, 1, 1]),
    "one token": ([70], [1]),
}


@pytest.mark.parametrize("window", [None, 24], ids=["all keys", "a window"])
@pytest.mark.parametrize("heads_first", [False, True], ids=["tokens first", "heads first"])
@pytest.mark.parametrize("case", BATCHES)
def test_k12_vllm_attention_reads_its_cache(case: str, heads_first: bool, window: int | None, fake_vllm: Path) -> None:
    """For pages in vLLM's layout, with padding at the end, the bits are those of our attention on packed keys."""
    sequences = Sequences(*BATCHES[case], torch.bfloat16, heads_first=heads_first)
    impl = vllm.Backend.get_impl_cls()(4, 32, 0.125, 2, None, window, "auto")
    padded = torch.nn.functional.pad(sequences.q, (0, 0, 0, 0, 0, 5))
    output = torch.full_like(padded, 7.0)
    found = impl.forward(
        torch.nn.Module(), padded, padded, padded, sequences.cache, sequences.metadata(), output
    )  # fmt: skip
    assert found is output
    expected = sequences.expected(0.125, window)
    _same(output[: len(sequences.q)], expected)
    assert (output[len(sequences.q) :] == 7.0).all()
    group = sequences.HEADS // sequences.KV_HEADS
    last = slice(-int(sequences.lengths[-1]), None)
    keys, values = (x[last].double().repeat_interleave(group, 1) for x in (sequences.k, sequences.v))
    scores = torch.einsum("hd,khd->hk", sequences.q[-1].double(), keys) * 0.125
    if window is not None:
        scores[:, :-window] = -torch.inf
    reference = torch.einsum("hk,khd->hd", scores.softmax(-1), values)
    torch.testing.assert_close(output[len(sequences.q) - 1].double(), reference, rtol=2e-2, atol=2e-2)


def test_k12_vllm_attention_is_the_tokens_own(fake_vllm: Path) -> None:
    """A decoded token has the same bits alone and in a batch, and nothing is computed while memory is measured."""
    together, alone = Sequences([33, 1, 80], [1, 1, 1], torch.float32), Sequences([33], [1], torch.float32)
    alone.q, alone.k, alone.v = together.q[:1], together.k[:33], together.v[:33]
    impl = vllm.Backend.get_impl_cls()(4, 32, 0.125, 2, None, None, "auto")
    outputs = []
    for batch, table in ((together, together.table), (alone, together.table[:1])):
        output = torch.empty_like(batch.q)
        metadata = batch.metadata(block_table=table)
        impl.forward(torch.nn.Module(), batch.q, batch.q, batch.q, together.cache, metadata, output)
        outputs.append(output)
    _same(outputs[0][:1], outputs[1])
    assert (impl.forward(torch.nn.Module(), together.q, None, None, None, None, outputs[0]) == 0).all()


NO_KERNEL: dict[str, tuple[dict[str, Any], str]] = {
    "alibi": ({"alibi_slopes": [1.0]}, "alibi has no kernel"),
    "soft cap": ({"logits_soft_cap": 30.0}, "a soft cap of scores"),
    "sinks": ({"sinks": torch.zeros(4)}, "attention sinks"),
    "an encoder": ({"attn_type": "encoder"}, "attention of type encoder"),
    "an fp8 cache": ({"kv_cache_dtype": "fp8"}, "a cache in fp8"),
    "lookback": ({"chunk_lookback": 1}, "lookback by chunks"),
}


@pytest.mark.parametrize("case", NO_KERNEL)
def test_k12_vllm_layers_without_a_kernel_are_refused(case: str, fake_vllm: Path) -> None:
    """A layer that changes scores other than by a mask is refused when it is made."""
    changed, message = NO_KERNEL[case]
    layer: dict[str, Any] = {
        "num_heads": 4, "head_size": 32, "scale": 0.125, "num_kv_heads": 2, "alibi_slopes": None,
        "sliding_window": None, "kv_cache_dtype": "auto",
    }  # fmt: skip
    impl = vllm.Backend.get_impl_cls()
    impl(**layer)
    with pytest.raises(UnsupportedInput, match=message):
        impl(**{**layer, **changed})


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"causal": torch.tensor([True])}, {}), ({"mm_prefix_range_tensor": torch.zeros(1)}, {}),
        ({"rswa_prefix_lens": torch.zeros(1)}, {}), ({}, {"output_scale": torch.ones(1)}),
    ],
    ids=["a mask for each sequence", "a prefix", "a window with a prefix", "a quantised result"],
)  # fmt: skip
def test_k12_vllm_batches_without_a_kernel_are_refused(
    changed: dict[str, Any], options: dict[str, Any], fake_vllm: Path
) -> None:
    """Attention other than causal in a batch's metadata is refused, not ignored."""
    sequences = Sequences([33], [1], torch.float32)
    impl = vllm.Backend.get_impl_cls()(4, 32, 0.125, 2, None, None, "auto")
    with pytest.raises(UnsupportedInput, match="has no kernel"):
        impl.forward(
            torch.nn.Module(), sequences.q, None, None, sequences.cache, sequences.metadata(**changed),
            torch.empty_like(sequences.q), **options,
        )  # fmt: skip


def test_k12_vllm_is_told_what_the_backend_can(fake_vllm: Path) -> None:
    """The backend states that it is invariant, has the registry's name, and accepts everything that has a plan."""
    backend = vllm.Backend
    assert backend.get_name() == "CUSTOM"
    assert backend.supports_batch_invariance()
    assert [size for size in (16, 32, 128, 256, 512) if backend.supports_head_size(size)] == [32, 128, 256]
    assert [size for size in (8, 16, 48, 64) if backend.supports_block_size(size)] == [16, 64]
    assert backend.supports_attn_type("decoder")
    answers = (backend.supports_sink, backend.supports_mm_prefix, backend.supports_rswa, backend.supports_alibi_sqrt)
    assert not any(answer() for answer in answers)
    assert not backend.supports_attn_type("encoder")


def _experts(fake_vllm: Path) -> Any:
    module = importlib.import_module("spanreplay_kernels.engines._vllm_experts")
    config = SimpleNamespace(w1_bias=None, w2_bias=None, gemm1_clamp_limit=None)
    return module.Experts(None, config)


def test_k12_vllm_experts_have_our_bits(fake_vllm: Path) -> None:
    """vLLM selects our experts, which compute the same as `ops.moe`; other experts are refused."""
    module = importlib.import_module("spanreplay_kernels.engines._vllm_experts")
    choice = importlib.import_module(module.CHOICE)
    module.replace()
    module.replace()
    assert choice.backend_to_kernel_cls("TRITON") == [module.Experts]
    assert choice.backend_to_kernel_cls("CUTLASS") == [int]
    activation = importlib.import_module("vllm.model_executor.layers.fused_moe.activation").MoEActivation
    assert module.Experts._supports_batch_invariance()
    assert [each.name for each in activation if module.Experts._supports_activation(each)] == ["SILU"]
    x, w1, w2 = (normal(*shape, dtype=torch.bfloat16, seed=len(shape)) for shape in ((9, 24), (4, 32, 24), (4, 24, 16)))
    ids = torch.stack([torch.arange(9) % 4, (torch.arange(9) + 1) % 4], 1).to(torch.int32)
    weights = normal(9, 2, dtype=torch.float32, seed=3).abs()
    output = torch.empty_like(x)
    common: dict[str, Any] = {
        "output": output, "hidden_states": x, "w1": w1, "w2": w2, "topk_weights": weights, "topk_ids": ids,
        "activation": activation.SILU, "global_num_experts": 4, "expert_map": None, "a1q_scale": None,
        "a2_scale": None, "workspace13": x, "workspace2": x, "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    }  # fmt: skip
    _experts(fake_vllm).apply(**common)
    _same(output, experts(x, ids.long(), weights, w1, w2))
    for changed in ({"expert_map": ids}, {"a1q_scale": weights}, {"apply_router_weight_on_input": True}):
        with pytest.raises(UnsupportedInput, match="have no kernel"):
            _experts(fake_vllm).apply(**{**common, **changed})
