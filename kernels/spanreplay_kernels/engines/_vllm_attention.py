"""The attention backend for `--attention-backend CUSTOM`: vLLM's Triton backend with our kernel.

The cache's layout, writes to it and a batch's metadata stay vLLM's. Only the attention over keys is ours.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl

from spanreplay_kernels.engines import attestation
from spanreplay_kernels.engines._replacements import paged_attention
from spanreplay_kernels.errors import UnsupportedInput

__all__ = ["Backend", "Impl"]

_HINT = "run the model without the plug-in, in vLLM's own batch-invariant mode"
_HEAD_SIZE_MAX = 256
_PREFIXES = ("mm_prefix_range_tensor", "rswa_prefix_lens")


class Impl(TritonAttentionImpl):
    """One layer's attention."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refused = {
            "alibi": self.alibi_slopes is not None,
            "a soft cap of scores": bool(self.logits_soft_cap),
            "attention sinks": self.sinks is not None,
            f"attention of type {self.attn_type}": self.attn_type != "decoder",
            f"a cache in {self.kv_cache_dtype}": self.kv_cache_dtype not in ("auto", "float16", "bfloat16"),
            "lookback by chunks": getattr(self, "chunk_lookback", -1) > -1,
        }
        for problem in (name for name, is_there in refused.items() if is_there):
            raise UnsupportedInput("attention", f"{problem} has no kernel", hint=_HINT)
        before = self.sliding_window[0]
        self._window = None if before < 0 else before + 1

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """Return False: the result is written in the model's dtype."""
        return False

    def forward(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Compute attention; query (T, Hq, D), kv_cache (pages, Hkv, page size, 2·D), output as query.

        The keys and values of this batch are already in the cache. In a CUDA graph the longest sequence is unknown, so
        the whole block table counts.
        """
        if output_scale is not None or output_block_scale is not None:
            raise UnsupportedInput("attention", "a quantised result has no kernel", query, hint=_HINT)
        if attn_metadata is None:  # memory is being measured
            return output.fill_(0)
        if any(getattr(attn_metadata, name, None) is not None for name in _PREFIXES):
            raise UnsupportedInput("attention", "attention across a prefix has no kernel", query, hint=_HINT)
        if not isinstance(attn_metadata.causal, bool):
            raise UnsupportedInput("attention", "a mask for each sequence has no kernel", query, hint=_HINT)
        is_captured = query.is_cuda and torch.cuda.is_current_stream_capturing()
        if not is_captured:
            attestation.settle()
        count = attn_metadata.num_actual_tokens
        keys, values = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        sequences = attn_metadata.seq_lens.shape[0]
        has_one_each = attn_metadata.max_query_len == 1 and count == sequences
        result = paged_attention(
            query[:count].view(count, self.num_heads, self.head_size),
            keys,
            values,
            attn_metadata.block_table[:sequences],
            attn_metadata.seq_lens,
            cu_seqlens_q=None if has_one_each else attn_metadata.query_start_loc,
            scale=self.scale,
            causal=attn_metadata.causal,
            window=self._window,
            max_len_k=None if is_captured else attn_metadata.max_seq_len,
        )
        output[:count].view(result.shape).copy_(result)
        return output


class Backend(TritonAttentionBackend):
    """The properties that vLLM checks before it uses a backend."""

    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        """Return the name of the registry entry by which layers look it up."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        """Return the class of a layer's attention."""
        return Impl

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Return True: batch invariance is the purpose of this backend."""
        return True

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Whether there is a plan for heads of this size."""
        return super().supports_head_size(head_size) and head_size <= _HEAD_SIZE_MAX

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        """Whether the page size is a power of two that vLLM supports too."""
        is_power = block_size is None or block_size & (block_size - 1) == 0
        return is_power and super().supports_block_size(block_size)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Whether this is decoder attention, the only type with a kernel."""
        return attn_type == "decoder"

    @classmethod
    def supports_sink(cls) -> bool:
        """Return False: there is no kernel for it."""
        return False

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        """Return False: there is no kernel for it."""
        return False

    @classmethod
    def supports_rswa(cls) -> bool:
        """Return False: there is no kernel for it."""
        return False

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        """Return False: there is no kernel for it."""
        return False
