"""Hugging Face transformers: forward, `generate()` and continuous batching with a model's own classes.

Attention is replaced through transformers' registry, everything else through aten. Continuous batching packs the keys
of all requests into one tensor together with their lengths, so blocks of keys are counted from each request's own first
token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.finegrained_fp8 import FP8ExpertsInterface
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward
from transformers.masking_utils import sdpa_mask

from spanreplay_kernels.engines._experts import refusal_of
from spanreplay_kernels.engines._fp8 import fp8_experts_forward, fp8_is_ours
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.switch.audit import Report, audit
from spanreplay_kernels.switch.custom_ops import attention, experts, masked_attention
from spanreplay_kernels.switch.mode import invariant
from spanreplay_kernels.switch.nesting import shared

__all__ = ["NAME", "attention_forward", "check", "check_continuous_batching", "enable", "register"]

NAME: Final = "spanreplay"
"""Our name in transformers' registries: `attn_implementation="spanreplay"`, `experts_implementation="spanreplay"`."""
_SDPA: Final = "sdpa"
"""The name that continuous batching accepts: transformers 5.23 refuses unknown names there."""
_SDPA_NAMES: Final = (_SDPA, "paged|sdpa")
"""All names of transformers' `sdpa`; continuous batching before 5.18 uses the second."""
_PROBE_TOKENS: Final = 3
_NO_HINT: Final = "use a model whose attention is softmax(q · k) · v under a causal mask"


def register() -> None:
    """Register our attention and experts with transformers by name, permanently; nothing else changes."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    ExpertsInterface.register(NAME, experts_forward)
    FP8ExpertsInterface.register(NAME, fp8_experts_forward)


@contextmanager
def enable(model: PreTrainedModel, *, probe: bool = True) -> Iterator[Report | None]:
    """Make the model batch-invariant: within this context, a request gets the same bits whatever shares its batch.

    Sets the model's attention and experts, replaces transformers' `sdpa` for the whole process (continuous batching
    accepts no other name) and the products of fp8 layers, and enters `invariant()`. Everything is undone on exit, also
    after an exception. With probe, a few tokens are first run under `audit()`, and its report is yielded.
    Raises: UncoveredOp if the model runs an uncovered operation, UnsupportedInput if an operation has no kernel for
        the model's inputs; both name the operation, and everything is undone.
    """
    with ExitStack() as stack:
        stack.enter_context(invariant())
        stack.enter_context(_attention_is_ours())
        stack.enter_context(fp8_is_ours())
        stack.callback(model.set_attn_implementation, model.config._attn_implementation)
        model.set_attn_implementation(_SDPA)
        if model._can_set_experts_implementation():
            register()
            stack.callback(model.set_experts_implementation, model.config._experts_implementation)
            model.set_experts_implementation(NAME)
        yield check(model) if probe else None


@shared
@contextmanager
def _attention_is_ours() -> Iterator[None]:
    """Replace transformers' `sdpa` with ours, and refuse the flash attention that continuous batching may switch to.

    The registry is shared by the whole process.
    """
    registry = AttentionInterface._global_mapping
    originals = {name: each for name, each in registry.items() if name in _SDPA_NAMES or "flash" in name}
    registry.update({name: attention_forward if name in _SDPA_NAMES else _refuse_flash for name in originals})
    try:
        yield
    finally:
        registry.update(originals)


def _refuse_flash(module: torch.nn.Module, query: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, None]:
    hint = "set auto_switch_to_flash=False in the ContinuousBatchingConfig"
    raise UnsupportedInput("attention", "flash attention was asked for, whose order is not ours", query, hint=hint)


def check(model: PreTrainedModel, *, fail: bool = True) -> Report:
    """Run the model on a few tokens and report its operations; for use within `enable`.

    With fail=False uncovered operations are listed instead of raising.
    Raises: UncoveredOp, UnsupportedInput as `enable`.
    """
    if model.config._attn_implementation not in (_SDPA, NAME):
        raise UnsupportedInput(type(model).__name__, "its attention cannot be replaced", hint=_NO_HINT)
    ids = torch.zeros((1, _PROBE_TOKENS), dtype=torch.int64, device=model.device)
    inputs = {"input_ids": ids} if model.main_input_name == "input_ids" else dict(model.dummy_inputs)
    with torch.inference_mode(), audit(fail=fail) as report:
        model(**inputs, use_cache=False)
    return report


def check_continuous_batching(model: PreTrainedModel) -> None:
    """Refuse models that aren't batch-invariant under continuous batching.

    The cache of a sliding window drops earlier tokens, and with them the position at which blocks of keys begin.
    Raises: UnsupportedInput for a model whose result would depend on how its prompt is cut among neighbours.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"} or (not kinds and getattr(config, "sliding_window", None)):
        problem = f"layers of {', '.join(sorted(kinds)) or 'sliding_attention'} under continuous batching"
        hint = "use generate(), or a model of full attention"
        raise UnsupportedInput(type(model).__name__, problem, hint=hint)


def experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute experts as transformers' registry calls them: (T, H) for tokens (T, H).

    Silu-gated experts are one operation. Others use transformers' grouped_mm implementation, which sorts rows by expert
    and calls only operations that `invariant()` replaces. Its other implementations add up with atomics.
    """
    if refusal_of(module):
        return grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
    gate_up, down = module.gate_up_proj, module.down_proj
    if module.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    return experts(hidden_states, top_k_index, top_k_weights, gate_up, down)


def attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute attention as transformers' registry calls it.

    Shapes: query (B, Hq, Q, D), key, value (B, Hkv, S, D), mask as in `masked_attention`; result (B, Q, Hq, D).
    Raises: UnsupportedInput if anything but a mask changes scores, and as `masked_attention`.
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise UnsupportedInput("attention", f"{name} has no kernel", query, hint=_NO_HINT)
    if dropout and module.training:
        raise UnsupportedInput("attention", "dropout has no kernel", query, hint="call model.eval()")
    if kwargs.get("cache") is not None:
        return _packed(module, query, key, value, scaling, kwargs), None
    is_causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = kwargs.get("sliding_window")
    out = masked_attention(query, key, value, attention_mask, causal=causal, scale=scaling, window=window)
    return out.transpose(1, 2).contiguous(), None


def _packed(
    module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, kwargs: dict[str, Any]
) -> Tensor:
    """Attend under continuous batching: one row holds the tokens of all requests, with their lengths."""
    if kwargs.get("sliding_window") is not None or kwargs.get("block_table") is not None:
        problem = "a sliding window, or a block table, under continuous batching"
        raise UnsupportedInput("attention", problem, query, hint="use generate(), or a model of full attention")
    update: Callable[..., tuple[Tensor, Tensor]] = kwargs["cache"].update
    new = {"key_states": key, "value_states": value, "layer_idx": module.layer_idx}
    if "kwargs" in inspect.signature(update).parameters:
        k, v = (x[0].transpose(0, 1) for x in update(**new, kwargs=kwargs))
    else:  # before transformers 5.18
        k, v = update(**new, read_index=kwargs["read_index"], write_index=kwargs["write_index"])
    q = query[0].transpose(0, 1)
    lengths = (kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"])
    longest = kwargs["max_length_k"] if "max_length_k" in kwargs else kwargs["max_seqlen_k"]
    out = attention(q, k, v, *lengths, scale=scaling, max_len_k=longest)
    return out[None]
