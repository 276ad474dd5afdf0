"""The attention backend for `--attention-backend spanreplay`: SGLang's Triton backend with our kernel.

Metadata, cache and writes to it stay SGLang's. In deterministic inference the backend calls two functions that it keeps
as attributes: one for extended sequences, one for decoded tokens. Both get the slots of a sequence's keys in order.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from torch import Tensor

from spanreplay_kernels.engines import attestation
from spanreplay_kernels.engines._replacements import paged_attention
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plans.arch import arch_of

ENGINE = "sglang"

__all__ = ["Backend", "decode", "extend"]

_HINT = "run the model without the plug-in, with SGLang's own deterministic inference"


class Backend(TritonAttnBackend):
    """SGLang's Triton backend with our attention kernel."""

    def __init__(self, model_runner: Any, **kwargs: Any) -> None:
        arch_of(torch.device(model_runner.device))
        super().__init__(model_runner, **kwargs)
        if not self.enable_deterministic:
            raise UnsupportedInput("attention", "deterministic inference is off", hint="start it with that flag")
        longest = int(self.max_context_len)
        self.extend_attention_fwd_unified = functools.partial(extend, longest=longest)
        self.decode_attention_fwd = functools.partial(decode, longest=longest)
        attestation.postpone(functools.partial(_state, model_runner))

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Settle the attestation before each batch outside a CUDA graph."""
        attestation.settle()
        super().init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Settle the attestation before each batch that a CUDA graph computes."""
        attestation.settle()
        super().init_forward_metadata_out_graph(forward_batch, in_capture)


def extend(
    q: Tensor,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    prefix_lens: Tensor,
    max_len_extend: int,
    custom_mask: Tensor | None = None,
    mask_indptr: Tensor | None = None,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    is_causal: bool = True,
    sliding_window_size: int = -1,
    sinks: Tensor | None = None,
    window_start_pos: Tensor | None = None,
    xai_temperature_len: int = -1,
    page_size: int = 1,
    score_mod: Any = None,
    aux_tensors: Any = None,
    *,
    longest: int,
) -> None:
    """Write the attention of extended sequences to o; q, o (T, Hq, D), buffers (slots, Hkv, D).

    kv_indices holds the slots of each sequence's keys, prefix and extension, starting at kv_indptr.
    """
    _refuse(
        q, k_scale, v_scale, logit_cap=logit_cap, sinks=sinks, mask=custom_mask, xai=xai_temperature_len,
        window=sliding_window_size, score_mod=score_mod,
    )  # fmt: skip
    sequences = qo_indptr.shape[0] - 1
    pages = _Pages(k_buffer, v_buffer, kv_indptr[: sequences + 1], kv_indices, page_size, longest)
    result = pages.attend(q, qo_indptr, sm_scale, is_causal)
    o.copy_(result)


def decode(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    attn_logits: Tensor,
    attn_lse: Tensor,
    num_kv_splits: Tensor,
    max_kv_splits: int,
    sm_scale: float,
    k_scale: float,
    v_scale: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    xai_temperature_len: int = -1,
    has_mla: bool = False,
    use_pdl: bool = False,
    page_size: int = 1,
    score_mod: Any = None,
    aux_tensors: Any = None,
    enable_lean: bool | None = None,
    lean_Mp: Tensor | None = None,
    lean_Lp: Tensor | None = None,
    lean_Op: Tensor | None = None,
    lean_locks: Tensor | None = None,
    uneven_batch: Tensor | None = None,
    *,
    longest: int,
) -> None:
    """Write the attention of one token per sequence to o; arguments as in `extend`. SGLang's key splits are ignored."""
    _refuse(
        q, k_scale, v_scale, logit_cap=logit_cap, sinks=sinks, mask=None, xai=xai_temperature_len, window=-1,
        score_mod=score_mod,
    )  # fmt: skip
    pages = _Pages(k_buffer, v_buffer, kv_indptr[: q.shape[0] + 1], kv_indices, page_size, longest)
    o.copy_(pages.attend(q, None, sm_scale, is_causal=True))


def _refuse(
    q: Tensor, k_scale: float, v_scale: float, *, logit_cap: float, sinks: Any, mask: Any, xai: int, window: int,
    score_mod: Any,
) -> None:  # fmt: skip
    refused = {
        "a cache with scales": (k_scale, v_scale) != (1.0, 1.0),
        "a soft cap of scores": bool(logit_cap),
        "attention sinks": sinks is not None,
        "a mask": mask is not None,
        "a temperature by length": xai > 0,
        "a sliding window": window > -1,
        "changed scores": score_mod is not None,
    }
    for problem in (name for name, is_there in refused.items() if is_there):
        raise UnsupportedInput("attention", f"{problem} has no kernel", q, hint=_HINT)


class _Pages:
    """SGLang's cache as pages; the slots of one page are consecutive."""

    def __init__(
        self, k_buffer: Tensor, v_buffer: Tensor, starts: Tensor, slots: Tensor, size: int, longest: int
    ) -> None:
        self._keys, self._values = (each.unflatten(0, (-1, size)) for each in (k_buffer, v_buffer))
        self._lengths = (starts[1:] - starts[:-1]).to(torch.int32)
        firsts = torch.arange(0, longest, size, device=slots.device)
        at = starts[:-1, None].long() + firsts
        # Entries past the end of a sequence are arbitrary: they are never read
        self._table = (slots[at.clamp(max=max(0, slots.shape[0] - 1))] // size).to(torch.int32)

    def attend(self, q: Tensor, starts: Tensor | None, scale: float | None, is_causal: bool) -> Tensor:
        cu = None if starts is None else starts.to(torch.int32)
        return paged_attention(
            q, self._keys, self._values, self._table, self._lengths, cu_seqlens_q=cu, scale=scale, causal=is_causal
        )


def _state(runner: Any) -> bool:
    """Write this process's attestation if its kernels have run; return whether it was written."""
    from spanreplay_kernels.engines._statement import Served, has_computed, state

    if not has_computed():
        return False
    from transformers import AutoTokenizer, GenerationConfig

    config, arguments = runner.model_config, runner.server_args
    weight = next(runner.model.parameters())
    tokenizer = None
    if not arguments.skip_tokenizer_init:
        tokenizer = AutoTokenizer.from_pretrained(
            arguments.tokenizer_path or config.model_path,
            revision=config.revision,
            trust_remote_code=arguments.trust_remote_code,
        )
    try:
        defaults = GenerationConfig.from_pretrained(config.model_path, revision=config.revision).to_dict()
    except OSError:  # a model without one
        defaults = {}
    served = Served(runner.model, config.hf_config, defaults, weight.device, weight.dtype)
    commit = getattr(config.hf_config, "_commit_hash", None)
    release = importlib.metadata.version(ENGINE)
    state(served, engine=ENGINE, release=release, name=config.model_path, commit=commit, tokenizer=tokenizer)
    return True
