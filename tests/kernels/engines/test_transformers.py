"""transformers: a request has the same bits alone, in a padded batch, and in any batch of a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
)

from kernels.samples import normal
from spanreplay_kernels.demo import KINDS, Answer, answers, tiny_model
from spanreplay_kernels.engines.transformers import NAME, attention_forward, check_continuous_batching, enable, register
from spanreplay_kernels.errors import UncoveredOp, UnsupportedInput
from spanreplay_kernels.switch.audit import Kind
from spanreplay_kernels.switch.compiled import compile_model
from spanreplay_kernels.switch.registry import engaged, is_invariant

SMALL: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "mistral": lambda: MistralConfig(**SMALL, sliding_window=4),
    "gemma3": lambda: Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=4),
    "gpt2": lambda: GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64, eos_token_id=None),
    "gptneox": lambda: GPTNeoXConfig(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                     num_attention_heads=4, eos_token_id=None),
    "olmo2": lambda: Olmo2Config(**SMALL),
    "phi3": lambda: Phi3Config(**SMALL),
    "mixtral": lambda: MixtralConfig(**SMALL, num_local_experts=4),
    "mixtral of another activation": lambda: MixtralConfig(**SMALL, num_local_experts=4, hidden_act="gelu"),
}  # fmt: skip


def prompt_of(tokens: int, seed: int) -> list[int]:
    """Random tokens, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 128, (tokens,), generator=generator).tolist()


def small_model(family: str) -> Any:
    """A model of a family, with random weights."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[family](), attn_implementation="sdpa", dtype=torch.float32).eval()


def scores_of(model: Any, prompts: list[list[int]], new_tokens: int = 5) -> Tensor:
    """The scores (B, T, V) of `generate` for these prompts, padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    return torch.stack(out.scores, 1)


def crowd_answers(model: Any, new_tokens: int = 5) -> set[Answer]:
    """The distinct answers to one prompt, alone and five times among others."""
    wanted = prompt_of(20, seed=1)
    crowd = [prompt_of(3 + 9 * n, seed=10 + n) for n in range(6)]
    for at in (0, 2, 4, 6, 8):
        crowd.insert(at, wanted)
    found = answers(model, [wanted], wanted, new_tokens=new_tokens) + answers(
        model, crowd, wanted, new_tokens=new_tokens
    )
    assert len(found) == 6
    return set(found)


@pytest.mark.parametrize("kind", KINDS)
def test_k11_continuous_batching_gives_one_answer(kind: str) -> None:
    """A prompt's tokens and their probabilities have the same bits alone and among random neighbours."""
    model = tiny_model(kind)
    with enable(model):
        assert len(crowd_answers(model)) == 1
        ran = engaged()
        assert ran["attention"] > 0
        assert ran["mm"] > 0
        assert ran["_softmax"] > 0
        assert ("experts" in ran) == (kind != KINDS[0])


def test_k5_how_a_prompt_is_cut_changes_nothing() -> None:
    """A prompt has the same answer whether it is computed at once, or in pieces between its neighbours' tokens."""
    model, wanted = tiny_model(KINDS[0]), prompt_of(50, seed=1)
    crowd = [prompt_of(3, seed=2), wanted, prompt_of(30, seed=3)]
    with enable(model, probe=False):
        found = [answers(model, crowd, wanted, new_tokens=3, batch_tokens=tokens) for tokens in (8, 128)]
    assert [len(each) for each in found] == [1, 1]
    assert found[0] == found[1]


def test_k11_stock_continuous_batching_gives_many() -> None:
    """Negative control: without ours the same prompts have more than one answer."""
    assert len(crowd_answers(tiny_model(KINDS[1]), new_tokens=8)) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_k11_generate_gives_a_prompt_its_scores_in_every_batch(family: str) -> None:
    """All scores of all steps have the same bits alone, beside shorter prompts, and padded beside a longer one."""
    model = small_model(family)
    prompts = [prompt_of(tokens, seed=tokens) for tokens in (9, 2, 14)]
    with enable(model) as report:
        assert report is not None
        assert report.of(Kind.UNCOVERED) == {}
        together = scores_of(model, prompts)
        for at, prompt in enumerate(prompts):
            assert torch.equal(scores_of(model, [prompt])[0], together[at]), at


def test_k11_stock_generate_is_caught_by_the_same_check() -> None:
    """Negative control: stock scores depend on the batch."""
    model = tiny_model(KINDS[0])
    prompts = [prompt_of(tokens, seed=tokens) for tokens in (9, 2, 14)]
    together = scores_of(model, prompts)
    assert not all(torch.equal(scores_of(model, [p])[0], together[at]) for at, p in enumerate(prompts))


def test_k11_ours_computes_what_stock_computes() -> None:
    """Our operations and stock ones compute the same model, up to rounding."""
    model = tiny_model(KINDS[1])
    prompts = [prompt_of(9, seed=1), prompt_of(5, seed=2)]
    stock = scores_of(model, prompts)
    with enable(model):
        torch.testing.assert_close(scores_of(model, prompts), stock, rtol=1e-4, atol=1e-4)


def test_k10_a_compiled_model_has_the_bits_of_the_eager_one() -> None:
    """torch.compile keeps our attention, experts and other operations, in every batch."""
    model = tiny_model(KINDS[1])
    ids = torch.tensor([prompt_of(9, seed=n) for n in range(4)])
    torch._dynamo.reset()
    with enable(model), torch.inference_mode():
        eager = model(input_ids=ids, use_cache=False).logits
        compiled = compile_model(model, backend="aot_eager")
        assert torch.equal(compiled(input_ids=ids, use_cache=False).logits, eager)
        assert torch.equal(compiled(input_ids=ids[2:3], use_cache=False).logits[0], eager[2])
    torch._dynamo.reset()


@contextmanager
def nothing_changed(model: Any) -> Iterator[None]:
    """Assert that the model's settings, transformers' registry and torch's dispatcher are as before."""
    config, registry = model.config, AttentionInterface._global_mapping

    def state() -> tuple[Any, ...]:
        names = (config._attn_implementation, config._experts_implementation)
        return (*names, dict(registry), torch._C._dispatch_dump("aten::mm"))

    before = state()
    yield
    assert state() == before
    assert all(registry[name] is function for name, function in before[2].items())
    assert not is_invariant()


def test_k10_enable_is_undone() -> None:
    """`enable` is undone on exit and after an exception, also if nested."""
    model = tiny_model(KINDS[1])
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    error = KeyError("own")
    with nothing_changed(model), pytest.raises(KeyError, match="own"), enable(model), enable(model, probe=False):
        raise error
    with nothing_changed(model), enable(model):
        assert (model.config._attn_implementation, model.config._experts_implementation) == ("sdpa", NAME)


def test_k10_the_last_of_two_models_restores() -> None:
    """One model's exit keeps another's attention ours."""
    first, second = small_model("llama"), small_model("gpt2")
    registry = AttentionInterface._global_mapping
    stock, one, two = registry["sdpa"], enable(first), enable(second)
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert registry["sdpa"] is attention_forward
    two.__exit__(None, None, None)
    assert registry["sdpa"] is stock


def test_k10_a_model_with_an_uncovered_operation_is_refused_by_name() -> None:
    """Such a model is refused before anything is served, with nothing changed."""
    model = small_model("llama")
    model.model.norm.register_forward_hook(lambda _module, _args, out: out.cumsum(-1))
    with nothing_changed(model), pytest.raises(UncoveredOp, match="cumsum is not covered"), enable(model):
        pytest.fail("a model with a cumsum was let in")


def test_k12_flash_attention_is_refused() -> None:
    """Continuous batching would switch to it silently where it is installed."""
    model = small_model("llama")
    with enable(model):
        flash = AttentionInterface._global_mapping["flash_attention_2"]
        with pytest.raises(UnsupportedInput, match="auto_switch_to_flash=False"):
            flash(model, torch.ones(1, 1, 1, 8))


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_k12_sliding_windows_are_refused_under_continuous_batching(family: str) -> None:
    """The cache of a sliding window drops a sequence's beginning."""
    with pytest.raises(UnsupportedInput, match=r"sliding_attention.*use generate"):
        check_continuous_batching(small_model(family))
    check_continuous_batching(tiny_model(KINDS[0]))


def test_k12_attention_has_a_name_of_its_own() -> None:
    """`attn_implementation="spanreplay"` uses our attention without `enable`, for those who want attention alone."""
    register()
    model = tiny_model(KINDS[0])
    stock = scores_of(model, [prompt_of(9, seed=1)])
    model.set_attn_implementation(NAME)
    torch.testing.assert_close(scores_of(model, [prompt_of(9, seed=1)]), stock, rtol=1e-4, atol=1e-4)


def test_k12_what_changes_scores_is_refused() -> None:
    """Neither a soft cap on scores nor a bias has a kernel."""
    q = normal(1, 2, 3, 8, dtype=torch.float32)
    ours = AttentionInterface._global_mapping.get(NAME)
    assert ours is not None
    for name in ("softcap", "s_aux", "position_bias"):
        with pytest.raises(UnsupportedInput, match=f"{name} has no kernel"):
            ours(torch.nn.Module(), q, q, q, None, **{name: 1.0})
