"""Keys and values of several sequences, packed for our operations and in an engine's cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kernels.samples import normal
from spanreplay_kernels.ops.attention import attention

__all__ = ["Sequences"]


class Sequences:
    """Keys and values of sequences of several lengths, packed, and in vLLM's cache in scattered pages."""

    PAGE, HEADS, KV_HEADS, SIZE = 16, 4, 2, 32

    def __init__(
        self, lengths: list[int], queries: list[int], dtype: torch.dtype, *, heads_first: bool = False
    ) -> None:  # fmt: skip
        self.lengths, self.queries = torch.tensor(lengths, dtype=torch.int32), torch.tensor(queries, dtype=torch.int32)
        total, pages = sum(lengths), sum(-(-length // self.PAGE) for length in lengths)
        self.q = normal(sum(queries), self.HEADS, self.SIZE, dtype=dtype)
        self.k, self.v = (normal(total, self.KV_HEADS, self.SIZE, dtype=dtype, seed=seed) for seed in (1, 2))
        # vLLM: logically (pages, heads, page, K then V); in memory a page's tokens come first, or its heads
        shape = (pages + 1, self.PAGE, self.KV_HEADS, 2 * self.SIZE)
        if heads_first:
            stored = torch.full((shape[0], shape[2], shape[1], shape[3]), float("nan"), dtype=dtype).transpose(1, 2)
        else:
            stored = torch.full(shape, float("nan"), dtype=dtype)
        self.cache = stored.transpose(1, 2)
        self.table = torch.zeros(len(lengths), 64, dtype=torch.int32)
        free = list(reversed(range(1, pages + 1)))
        start = 0
        for i, length in enumerate(lengths):
            for at in range(0, length, self.PAGE):
                page, end = free.pop(0), min(at + self.PAGE, length)
                self.table[i, at // self.PAGE] = page
                stored[page, : end - at, :, : self.SIZE] = self.k[start + at : start + end]
                stored[page, : end - at, :, self.SIZE :] = self.v[start + at : start + end]
            start += length

    def starts(self, lengths: Tensor) -> Tensor:
        return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)

    def metadata(self, **changed: Any) -> Any:
        fields: dict[str, Any] = {
            "num_actual_tokens": len(self.q), "max_query_len": int(self.queries.max()),
            "query_start_loc": self.starts(self.queries), "max_seq_len": int(self.lengths.max()),
            "seq_lens": self.lengths, "block_table": self.table, "causal": True, "mm_prefix_range_tensor": None,
            "rswa_prefix_lens": None,
        }  # fmt: skip
        return SimpleNamespace(**{**fields, **changed})

    def expected(self, scale: float, window: int | None = None) -> Tensor:
        cu = self.starts(self.queries), self.starts(self.lengths)
        return attention(
            self.q, self.k, self.v, cu_seqlens_q=cu[0], cu_seqlens_k=cu[1], scale=scale, window=window
        )  # fmt: skip
