"""`make demo-kernels`: identical requests among random neighbours, with torch's kernels and with ours.

A tiny model with random weights, dense and as a mixture of experts, runs in fp32 on this machine's CPU, under
transformers' continuous batching. The demo counts distinct answers to one prompt (tokens and their probabilities, bit
by bit) and distinct texts (tokens only). A large model's text changes where two tokens are almost equally likely, once
in some thousand tokens. To show this with a few tokens of a tiny model, every second row of its head almost equals the
one before: each weight differs by one part in four million.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import logging
import random
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from spanreplay_kernels.engines.transformers import enable
from spanreplay_kernels.switch.registry import engaged

__all__ = ["KINDS", "Answer", "answers", "crowd_of", "distinct_so_far", "main", "tiny_model"]

KINDS: Final = ("dense", "mixture of experts")
_VOCABULARY: Final = 512
_COPIES, _NEIGHBOURS, _NEW_TOKENS = 32, 32, 16
_PROMPT_TOKENS, _NEIGHBOUR_TOKENS_MAX = 24, 60
_LONG_PROMPT_TOKENS = 60
_NEARLY: Final = 2.0**-22


class Answer(NamedTuple):
    """The answer to a request; two are equal if every bit is."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


def tiny_model(kind: str, *, seed: int = 0, has_near_ties: bool = False) -> PreTrainedModel:
    """Return a two-layer Qwen3 with random weights; `kind` is one of `KINDS`.

    has_near_ties: the head's rows come in pairs whose weights differ by one part in four million.
    """
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": _VOCABULARY, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "tie_word_embeddings": False,
    }  # fmt: skip
    if kind == KINDS[0]:
        config: Any = Qwen3Config(**shape)
    else:
        config = Qwen3MoeConfig(**shape, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    if has_near_ties:
        head = model.lm_head.weight.detach()
        signs = torch.randint(0, 2, head[::2].shape) * 2.0 - 1.0
        head[1::2] = head[::2] * (1.0 + signs * _NEARLY)
    return model


def answers(
    model: PreTrainedModel, prompts: list[list[int]], wanted: list[int], *, new_tokens: int, batch_tokens: int = 128,
    blocks: int = 0,
) -> list[Answer]:  # fmt: skip
    """Run all prompts together, as a server does, and return the answers to those that equal `wanted`.

    batch_tokens: the most tokens per step; longer prompts are split. blocks: cache blocks of 256 tokens; 0 for two
    more than there are prompts.
    """
    options = {"return_logprobs": True, "num_blocks": blocks or len(prompts) + 2, "max_batch_tokens": batch_tokens}
    if "auto_switch_to_flash" in inspect.signature(ContinuousBatchingConfig).parameters:
        options["auto_switch_to_flash"] = False  # transformers 5.18 and later; earlier ones never switch
    batching = ContinuousBatchingConfig(**options)
    greedy = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    outputs = model.generate_batch(
        prompts, generation_config=greedy, continuous_batching_config=batching, progress_bar=False
    )
    found = [o for o in outputs.values() if list(o.prompt_ids) == wanted]
    return [Answer(tuple(o.generated_tokens), tuple(o.logprobs)) for o in found]


def distinct_so_far(found: list[Answer]) -> list[int]:
    """Return for each answer the number of distinct answers up to it."""
    return [len(set(found[: at + 1])) for at in range(len(found))]


def crowd_of(copies: int, neighbours: int, prompt_tokens: int = _PROMPT_TOKENS) -> tuple[list[int], list[list[int]]]:
    """Return one prompt, and a shuffled crowd of its copies and random prompts of random lengths."""
    source = random.Random(0)  # noqa: S311 -- a demonstration is the same each time

    def draw(tokens: int) -> list[int]:
        return [source.randrange(2, _VOCABULARY) for _ in range(tokens)]

    wanted = draw(prompt_tokens)
    crowd = [list(wanted) for _ in range(copies)]
    crowd += [draw(source.randrange(1, _NEIGHBOUR_TOKENS_MAX)) for _ in range(neighbours)]
    source.shuffle(crowd)
    return wanted, crowd


def main(arguments: list[str]) -> int:
    """Run the demo; return 1 unless our kernels gave exactly one answer."""
    parser = argparse.ArgumentParser(prog="make demo-kernels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--copies", type=int, default=_COPIES, help="of the one prompt")
    parser.add_argument("--neighbours", type=int, default=_NEIGHBOURS, help="random prompts beside it")
    parser.add_argument("--new-tokens", type=int, default=_NEW_TOKENS)
    parser.add_argument("--picture", type=Path, help="where to draw the curves: .svg or .png")
    options = parser.parse_args(arguments)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    wanted, crowd = crowd_of(options.copies, options.neighbours, _LONG_PROMPT_TOKENS)
    curves: dict[str, list[int]] = {}
    for kind in KINDS:
        model = tiny_model(kind, has_near_ties=True)
        for name, context in (("stock", contextlib.nullcontext()), ("spanreplay", enable(model))):
            with context:
                alone = answers(model, [wanted], wanted, new_tokens=options.new_tokens)
                found = alone + answers(model, crowd, wanted, new_tokens=options.new_tokens)
                ours = sum(engaged().values()) if name == "spanreplay" else 0
            curves[f"{kind}, {name}"] = distinct_so_far(found)
            _report(kind, name, found, ours)
    if options.picture:
        _draw(curves, options)
        sys.stdout.write(f"picture: {options.picture}\n")
    return 0 if all(curve[-1] == 1 for name, curve in curves.items() if name.endswith("spanreplay")) else 1


def _report(kind: str, name: str, found: list[Answer], ours: int) -> None:
    texts = len({answer.tokens for answer in found})
    calls = f"; {ours} calls of our kernels" if ours else ""
    line = f"{kind:<20} {name:<10} {len(found)} identical requests, distinct answers: {len(set(found))}"
    sys.stdout.write(f"{line} (texts: {texts}){calls}\n")
    sys.stdout.flush()


def _draw(curves: dict[str, list[int]], options: argparse.Namespace) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, curve in curves.items():
        style = "-" if name.endswith("spanreplay") else "--"
        axes.step(range(1, len(curve) + 1), curve, style, where="post", label=f"{name}: {curve[-1]}")
    axes.set_xlabel(f"identical requests, among {options.neighbours} random ones")
    axes.set_ylabel("distinct answers so far")
    axes.set_ylim(bottom=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    axes.set_title("One prompt, greedy, continuous batching, fp32 on a CPU")
    figure.tight_layout()
    figure.savefig(options.picture)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
