"""Masks: the sequence that a query belongs to and its start, or a refusal."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- as everyone calls it

from kernels.samples import normal
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.packing import Span, masked_attention, spans_of
from spanreplay_kernels.switch.mode import invariant
from spanreplay_kernels.switch.registry import engaged


def causal_mask(keys: int, queries: int, padding: tuple[int, ...], window: int | None = None) -> Tensor:
    """(B, 1, queries, keys): rows padded on the left by these numbers; the queries are the last positions."""
    at, key = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)[None]
    seen = (key <= at) if window is None else (key <= at) & (key > at - window)
    return torch.stack([(seen & (key >= pad))[None] for pad in padding])


def as_scores(mask: Tensor) -> Tensor:
    """The same mask as an addend to scores."""
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("window", [None, 3], ids=["full", "window"])
@pytest.mark.parametrize("queries", [9, 4, 1], ids=["prefill", "chunk", "decode"])
def test_k9_padding_is_read_off_the_mask(queries: int, window: int | None) -> None:
    """Each row's first key, its end and its number of own queries are derived."""
    mask = causal_mask(9, queries, (0, 3, 6), window)
    for each in (mask, as_scores(mask)):
        spans, causal = spans_of(each, batch=3, window=window)
        assert causal
        if window is None:
            assert spans == [Span(first, 9, min(queries, 9 - first)) for first in (0, 3, 6)]


@pytest.mark.parametrize("queries", [9, 4, 1], ids=["prefill", "chunk", "decode"])
def test_k9_padding_changes_nothing(queries: int) -> None:
    """A row padded to its neighbours' length has the same bits as alone."""
    q, k, v = (normal(3, 4, n, 16, dtype=torch.float32, seed=s) for s, n in enumerate((queries, 9, 9)))
    together = masked_attention(q, k, v, causal_mask(9, queries, (0, 3, 6)), causal=True)
    for row, pad in enumerate((0, 3, 6)):
        own = min(queries, 9 - pad)
        part = (q[row : row + 1, :, queries - own :], k[row : row + 1, :, pad:], v[row : row + 1, :, pad:])
        assert torch.equal(masked_attention(*part, causal=True)[0], together[row, :, queries - own :])
        assert not together[row, :, : queries - own].any()


def test_k9_values_are_those_of_torch() -> None:
    """scaled_dot_product_attention under aten's name: causal, masked, bidirectional, grouped heads."""
    q, k, v = (normal(2, h, 5, 16, dtype=torch.float32, seed=h) for h in (4, 2, 2))
    k, v = torch.cat([k, k * 2], 2), torch.cat([v, v * 2], 2)
    calls = [
        {"is_causal": True},
        {"attn_mask": causal_mask(10, 5, (0, 2))},
        {"attn_mask": as_scores(causal_mask(10, 5, (1, 0)))},
        {"attn_mask": torch.ones(5, 10, dtype=torch.bool)},
        {"scale": 0.3},
    ]
    for options in calls:
        expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
        with torch.inference_mode(), invariant():
            result = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
            assert engaged()["scaled_dot_product_attention"] == 1
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_k9_other_masks_are_refused() -> None:
    """Biases, masks per head, holes and padding on the right have no planned order."""
    causal = causal_mask(6, 6, (0, 0))
    hole = causal.clone()
    hole[..., 2] = False
    right = causal & (torch.arange(6) < 4)
    heads = torch.cat([causal, causal & (torch.arange(6) > 0)], 1)
    bias = as_scores(causal) - torch.arange(6.0)
    problems = {"no sequences": hole, "not mean sequences": right, "between heads": heads, "adds values": bias}
    problems["no sequences"] = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    for problem, mask in problems.items():
        with pytest.raises(UnsupportedInput, match=f"{problem}|sees no key.*pad on the left"):
            spans_of(mask, batch=2)
    with pytest.raises(UnsupportedInput, match="not mean sequences"):
        spans_of(hole, batch=2)


def test_k9_dropout_and_too_many_queries_are_refused() -> None:
    """aten supports these, ours does not."""
    q = normal(1, 2, 5, 8, dtype=torch.float32)
    with torch.inference_mode(), invariant():
        with pytest.raises(UnsupportedInput, match="no dropout"):
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        with pytest.raises(UnsupportedInput, match="no more causal queries"):
            F.scaled_dot_product_attention(q, q[:, :, :2], q[:, :, :2], is_causal=True)


def test_k9_no_rows_give_no_rows() -> None:
    """An empty batch is valid."""
    q = torch.empty(0, 2, 5, 8)
    assert masked_attention(q, q, q, causal=True).shape == q.shape
    assert math.prod(masked_attention(q, q, q, causal=False).shape) == 0
