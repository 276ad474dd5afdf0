"""transformers' layers in fp8: a request has the same bits in every batch, and anything without a kernel is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Qwen3Config, Qwen3MoeConfig
from transformers.integrations import finegrained_fp8

from kernels.samples import normal
from spanreplay_kernels.demo import Answer, answers
from spanreplay_kernels.engines._fp8 import fp8_linear
from spanreplay_kernels.engines.transformers import enable
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.scaled import quantize_weight
from spanreplay_kernels.plans.plan import FP8
from spanreplay_kernels.proof.fingerprint import plans_of
from spanreplay_kernels.switch.audit import Kind
from spanreplay_kernels.switch.registry import engaged

SIZES: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "dense": lambda: Qwen3Config(**SIZES),
    "experts": lambda: Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128),
}
kinds = pytest.mark.parametrize("kind", CONFIGS)
BLOCKS = (128, 128)


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight (N, K), or one per expert, in fp8 with its scales, as in a checkpoint."""
    if weight.dim() == 3:
        packed = [pack(each) for each in weight]
        return torch.stack([q for q, _ in packed]), torch.stack([scale for _, scale in packed])
    q, scale = quantize_weight(weight.t(), 128)
    return q.t().contiguous(), scale.t().contiguous()


def models(kind: str) -> tuple[Any, Any]:
    """A model in fp8, with transformers' own layers, and the one that it was quantised from."""
    torch.manual_seed(0)
    wide = AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=torch.float32).eval()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=torch.float32)
    config = FineGrainedFP8Config(weight_block_size=BLOCKS)
    skipped = ["lm_head", *(name for name, _ in model.named_modules() if name.endswith("mlp.gate"))]
    model = finegrained_fp8.replace_with_fp8_linear(model, skipped, config, pre_quantized=True)
    state = dict(wide.state_dict())
    for name, parameter in model.state_dict().items():
        if parameter.dtype == torch.float8_e4m3fn:
            scale = name.replace(".weight", ".weight_scale_inv") if ".weight" in name else f"{name}_scale_inv"
            state[name], state[scale] = pack(state[name])
    model.load_state_dict(state, assign=True)
    for module in model.modules():  # buffers that no checkpoint holds
        for name, buffer in wide.get_submodule("model.rotary_emb").named_buffers():
            if type(module).__name__.endswith("RotaryEmbedding"):
                module.register_buffer(name, buffer.clone(), persistent=False)
    return model.eval(), wide


def crowd_answers(model: Any) -> set[Answer]:
    """The distinct answers to one prompt, alone and three times among others."""
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(2, 128, (size,), generator=generator).tolist() for size in (20, 3, 31, 12)]
    wanted = prompts[0]
    crowd = [wanted, prompts[1], wanted, prompts[2], prompts[3], wanted]
    found = answers(model, [wanted], wanted, new_tokens=4) + answers(model, crowd, wanted, new_tokens=4)
    assert len(found) == 4
    return set(found)


@kinds
def test_k11_fp8_continuous_batching_gives_one_answer(kind: str) -> None:
    """Tokens and probabilities have the same bits alone and among others; every product of a layer is ours."""
    model, _ = models(kind)
    with enable(model) as report:
        assert report is not None
        assert report.of(Kind.UNCOVERED) == {}
        assert len(crowd_answers(model)) == 1
        assert engaged()["scaled_product"] > 0
        assert ("combine" in engaged()) == (kind == "experts")


@kinds
def test_k11_fp8_layers_compute_what_they_were_quantised_from(kind: str) -> None:
    """The result is close to the model in fp32, within the precision of a three-bit mantissa."""
    model, wide = models(kind)
    ids = torch.arange(2, 26)[None]
    with enable(model), torch.inference_mode():
        found = model(ids).logits
    with torch.inference_mode():
        expected = wide(ids).logits
    assert nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.98


@kinds
def test_k10_fp8_products_are_transformers_own_behind_it(kind: str) -> None:
    """The module's function is restored by identity, after an exception too; transformers' own needs a hub."""
    model, _ = models(kind)
    before = finegrained_fp8.fp8_linear
    with enable(model, probe=False):
        with pytest.raises(UnsupportedInput), enable(model, probe=False):
            fp8_linear(torch.zeros(2, 256), torch.zeros(32, 256), torch.ones(1, 2), BLOCKS)
        assert finegrained_fp8.fp8_linear is fp8_linear
    assert finegrained_fp8.fp8_linear is before
    with pytest.raises(ImportError), torch.inference_mode():
        model(torch.arange(2, 6)[None])


def test_k12_fp8_layers_have_plans_of_their_own() -> None:
    """The fingerprint hashes plans that name fp8, so that a dequantised model has another line."""
    model, wide = models("dense")
    of_model, of_wide = ({plan.dtype for plan in plans_of(each)} for each in (model, wide))
    assert of_model - of_wide == {FP8}


def test_fp8_weight_of_blocks_has_tokens_scaled_by_blocks() -> None:
    """A token with one large group keeps small values in the other, which one common scale would round to zero."""
    x, w = normal(3, 256, dtype=torch.float32), normal(32, 256, dtype=torch.float32, seed=1)
    x[:, 128:] *= 1e5
    w[:, 128:] = 0.0
    q, scale = pack(w)
    out = fp8_linear(x, q, scale, BLOCKS)
    torch.testing.assert_close(out, x @ w.t(), rtol=0.1, atol=1.5)
    assert (out - x @ w.t()).norm() < 0.1 * (x @ w.t()).norm()


def test_fp8_static_scale_of_a_model_is_taken() -> None:
    """A scale from the model does not depend on the batch; values above its range are cut to the largest."""
    x, w = normal(5, 256, dtype=torch.bfloat16), normal(32, 256, dtype=torch.bfloat16, seed=1)
    q, scale = quantize_weight(w.t())
    out = fp8_linear(x, q.t(), scale.amax(), None, None, torch.tensor(0.002))
    cut = (x.float() / 0.002).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.002
    expected = cut @ (q.float() * scale.amax())
    torch.testing.assert_close(out, expected.to(torch.bfloat16), rtol=1e-2, atol=1e-2)
    assert torch.equal(fp8_linear(x[2:4], q.t(), scale.amax(), None, None, torch.tensor(0.002)), out[2:4])


@pytest.mark.parametrize(
    ("weight", "block_size", "message"),
    [
        (torch.zeros(32, 128, dtype=torch.int8), BLOCKS, r"weights of torch\.int8 have no kernel"),
        (torch.zeros(32, 256).to(torch.float8_e4m3fn), (64, 64), r"blocks of \(64, 64\) have no kernel"),
    ],
    ids=["fp4", "blocks"],
)
def test_fp8_what_has_no_kernel_is_refused(weight: Tensor, block_size: tuple[int, int], message: str) -> None:
    """The message says how to load the model instead."""
    with pytest.raises(UnsupportedInput, match=f"{message}.*dequantize=True"):
        fp8_linear(torch.zeros(2, 256), weight, torch.ones(1, 2), block_size)
