"""Our experts in transformers' registry: Qwen3Moe computes the same, and a token's bits don't depend on its batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernels.samples import normal

transformers = pytest.importorskip("transformers")

from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS  # noqa: E402 -- only where it is installed
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen  # noqa: E402

from spanreplay_kernels.engines._experts import experts_forward  # noqa: E402
from spanreplay_kernels.errors import UnsupportedInput  # noqa: E402
from spanreplay_kernels.switch.mode import invariant  # noqa: E402

NAME = "spanreplay-test"


@pytest.fixture
def block() -> Iterator[Any]:
    """A mixture of eight experts, three per token, whose implementation can be chosen."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    config = transformers.Qwen3MoeConfig(
        hidden_size=48, moe_intermediate_size=20, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True
    )
    torch.manual_seed(0)
    made = qwen.Qwen3MoeSparseMoeBlock(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn_like(weight) / 3)
    config._experts_implementation = NAME
    yield made
    del ALL_EXPERTS_FUNCTIONS._global_mapping[NAME]


def forward(block: Any, x: torch.Tensor, implementation: str = NAME) -> torch.Tensor:
    """One forward pass of (tokens, hidden) by an implementation."""
    block.experts.config._experts_implementation = implementation
    with torch.inference_mode():
        return block(x[None])[0]


@pytest.mark.parametrize("other", ["eager", "grouped_mm", "batched_mm"])
def test_k12_experts_compute_what_transformers_does(block: Any, other: str) -> None:
    """In fp32 all implementations agree except for the order of additions."""
    x = normal(33, 48, dtype=torch.float32)
    torch.testing.assert_close(forward(block, x), forward(block, x, other), rtol=1e-5, atol=1e-5)


def test_k12_experts_give_a_token_its_bits_in_every_batch(block: Any) -> None:
    """With fixed routing, a token has the same bits in parts of a batch and in reverse order."""
    x, ids = normal(40, 48, dtype=torch.float32), torch.stack([torch.arange(40) % 8, (torch.arange(40) + 3) % 8], 1)
    some = normal(40, 2, dtype=torch.float32, seed=1).abs()
    with torch.inference_mode():
        whole = block.experts(x, ids, some)
        for rows in (1, 2, 7, 16, 33):
            assert torch.equal(block.experts(x[:rows], ids[:rows], some[:rows]), whole[:rows]), rows
        assert torch.equal(block.experts(x.flip(0), ids.flip(0), some.flip(0)), whole.flip(0))


def test_k12_stock_experts_are_caught_by_the_same_check() -> None:
    """Negative control: with experts of usual size, transformers' own implementation does not pass."""
    config = transformers.Qwen3MoeConfig(hidden_size=1024, moe_intermediate_size=512, num_experts=2)
    made = qwen.Qwen3MoeExperts(config)
    config._experts_implementation = "grouped_mm"
    x, ids, some = normal(64, 1024, dtype=torch.float32), torch.zeros(64, 1, dtype=torch.int64), torch.ones(64, 1)
    with torch.inference_mode():
        for weight in made.parameters():
            weight.copy_(normal(*weight.shape, dtype=torch.float32) / 30)
        whole = made(x, ids, some)
        assert not all(torch.equal(made(x[:n], ids[:n], some[:n]), whole[:n]) for n in (1, 2, 7, 33))


def test_k12_qwen3_moe_gives_a_request_its_logits_in_every_batch(block: Any) -> None:
    """Within invariant() each request of a model has the same bits alone and among eight; stock, a control, has not."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=97, hidden_size=256, moe_intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(0, 97, (8, 12))

    def changed() -> int:
        whole = model(ids).logits
        return sum(int((model(ids[at : at + 1]).logits[0] != whole[at]).sum()) for at in range(8))

    with torch.inference_mode():
        assert changed() > 0
        stock = model(ids).logits
        model.set_experts_implementation(NAME)
        with invariant():
            assert changed() == 0
            torch.testing.assert_close(model(ids).logits, stock, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("has_bias", True, "with a bias"),
        ("has_gate", False, "without a gate"),
        ("has_post_expert_norm", True, "a norm behind"),
        ("is_concatenated", False, "interleaved"),
        ("act_fn", torch.nn.GELU(), "activation GELU"),
    ],
)
def test_k12_experts_of_another_kind_are_refused(block: Any, name: str, value: object, reason: str) -> None:
    """Other kinds are refused loudly and by name, since no other order is defined."""
    setattr(block.experts, name, value)
    with pytest.raises(UnsupportedInput, match=f"experts of Qwen3MoeExperts: .*{reason}"):
        forward(block, normal(2, 48, dtype=torch.float32))


def test_k12_gradients_are_refused(block: Any) -> None:
    """The kernels are forward-only, and the error says so."""
    with pytest.raises(UnsupportedInput, match=r"gradient is required.*inference_mode"):
        block(normal(2, 48, dtype=torch.float32)[None])
