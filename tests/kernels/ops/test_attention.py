"""Attention: a query's bits don't depend on how its sequence is packed, chunked, or cached in pages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.samples import DTYPES, name_of, normal
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._attention_cpu import attention_cpu
from spanreplay_kernels.ops.attention import attention, attention_ref, attention_triton, paged_attention
from spanreplay_kernels.plans.arch import ARCHS, CPU
from spanreplay_kernels.plans.plan import AttentionPlan, plan_attention

D = 16
SCALE = 0.3
LENGTHS = (37, 1, 0, 16, 33)
"""Lengths of packed sequences: around the edges of blocks of 16 and splits of 32, and an empty one."""
POSITIONS = (0, 1, 15, 16, 31, 32, 33, 47, 48, 63, 64, 65, 69)


def small(dtype: torch.dtype, arch: str = "sm_90", *, split_kv: int = 32) -> AttentionPlan:
    """An architecture's plan with blocks so small that few keys cross many edges."""
    plan = plan_attention(D, name_of(dtype), ARCHS[arch])
    return dataclasses.replace(plan, block_q=16, block_kv=16, split_kv=split_kv)


def on_cpu(q: Tensor, k: Tensor, v: Tensor, *, plan: AttentionPlan | None = None, **options: Any) -> Tensor:
    """Attention by the CPU path."""
    return attention_cpu(q.cpu(), k.cpu(), v.cpu(), plan or small(q.dtype, "cpu"), scale=SCALE, **options)


def by_tiles(q: Tensor, k: Tensor, v: Tensor, *, plan: AttentionPlan | None = None, **options: Any) -> Tensor:
    """Attention by the prefill kernel, which iterates over all splits for its queries."""
    return attention_triton(q, k, v, plan or small(q.dtype), scale=SCALE, by_splits=False, **options)


def by_splits(q: Tensor, k: Tensor, v: Tensor, *, plan: AttentionPlan | None = None, **options: Any) -> Tensor:
    """Attention by the decode kernels: a block for each split, and one that merges."""
    options = {"max_len_k": 80, **options}
    return attention_triton(q, k, v, plan or small(q.dtype), scale=SCALE, by_splits=True, **options)


Way = Callable[..., Tensor]
ways = pytest.mark.parametrize("way", [on_cpu, by_tiles, by_splits], ids=lambda each: each.__name__)


def starts(lengths: tuple[int, ...] | list[int], device: str = "cpu") -> Tensor:
    """Return cu_seqlens for these lengths."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32).to(device)


def heads(tokens: int, group: int = 2, *, of_keys: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q, k, v for so many tokens, with `group` query heads for each key head."""
    shapes = (tokens, of_keys * group, D), (tokens, of_keys, D), (tokens, of_keys, D)
    return tuple(normal(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))


def prefill(way: Way, q: Tensor, k: Tensor, v: Tensor, device: str, **options: Any) -> Tensor:
    """Attention over one sequence, from the first token to the last; there may be more keys than queries."""
    device = "cpu" if way is on_cpu else device
    cu_q, cu_k = starts([q.shape[0]], device), starts([k.shape[0]], device)
    return way(q.to(device), k.to(device), v.to(device), cu_seqlens_q=cu_q, lengths=cu_k, **options).cpu()


def decode(
    way: Way, q: Tensor, k: Tensor, v: Tensor, positions: tuple[int, ...], device: str, **options: Any
) -> Tensor:
    """Queries at some positions of one sequence, each as a separate sequence with the keys up to itself."""
    device = "cpu" if way is on_cpu else device
    keys, values = (torch.cat([x[: i + 1] for i in positions]).to(device) for x in (k, v))
    lengths = starts([i + 1 for i in positions], device)
    cu_q = torch.arange(len(positions) + 1, dtype=torch.int32, device=device)
    return way(q[list(positions)].to(device), keys, values, cu_seqlens_q=cu_q, lengths=lengths, **options).cpu()


@ways
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k6_k9_packed_sequence_has_the_bits_of_it_alone(way: Way, dtype: torch.dtype, device: str) -> None:
    """A sequence's result is the same among neighbours of other lengths, and in another order."""
    q, k, v = heads(sum(LENGTHS), dtype=dtype)
    edges = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    alone = [prefill(way, q[a:b], k[a:b], v[a:b], device) for a, b in pairwise(edges)]
    where = "cpu" if way is on_cpu else device
    for order in ((0, 1, 2, 3, 4), (2, 4, 0, 3, 1)):
        rows = torch.cat([torch.arange(edges[i], edges[i + 1]) for i in order])
        cu = starts([LENGTHS[i] for i in order], where)
        packed = way(*(x[rows].to(where) for x in (q, k, v)), cu_seqlens_q=cu, lengths=cu)
        assert torch.equal(packed.cpu(), torch.cat([alone[i] for i in order])), order


@ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_k5_prefill_has_the_bits_of_decode(way: Way, dtype: torch.dtype, device: str) -> None:
    """Row i of a prefill equals the decode of token i, on both sides of every edge of blocks and splits."""
    q, k, v = heads(70, dtype=dtype)
    assert torch.equal(prefill(way, q, k, v, device)[list(POSITIONS)], decode(way, q, k, v, POSITIONS, device))


def test_k5_one_kernel_and_two_give_the_same_bits(device: str) -> None:
    """A sum by one thread block equals the sum by many blocks that one merges."""
    q, k, v = heads(70, dtype=torch.bfloat16)
    cases: tuple[dict[str, Any], ...] = ({}, {"window": 20}, {"causal": False})
    for options in cases:
        one, two = (prefill(way, q, k, v, device, **options) for way in (by_tiles, by_splits))
        assert torch.equal(one, two), options


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 256])
def test_k5_sums_held_in_pieces_have_the_bits_of_those_held_whole(head_dim: int, arch: str, device: str) -> None:
    """However many columns of two splits' sums fit into registers, none is left out or exchanged."""
    q, k, v = (normal(40, 2 - n % 2, head_dim, dtype=torch.bfloat16, seed=n, device=device) for n in range(3))
    k, v = k[:, :1].contiguous(), v[:, :1].contiguous()
    plan = plan_attention(head_dim, "bfloat16", ARCHS[arch])
    plan = dataclasses.replace(plan, block_q=16, block_kv=16, split_kv=16)
    one, two = (prefill(way, q, k, v, device, plan=plan) for way in (by_tiles, by_splits))
    assert torch.equal(one, two)


@ways
def test_k5_chunks_have_the_bits_of_the_whole(way: Way, device: str) -> None:
    """A chunked prefill or a prefix hit has the same bits for any cut."""
    q, k, v = heads(70)
    whole = prefill(way, q, k, v, device)
    for cuts in ((0, 1, 70), (0, 16, 48, 70), (0, 23, 24, 57, 70)):
        chunks = [prefill(way, q[a:b], k[:b], v[:b], device) for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat(chunks), whole), cuts


@ways
@pytest.mark.parametrize("size", [1, 8, 32], ids=lambda size: f"page_size={size}")
def test_k5_pages_have_the_bits_of_packed_keys(way: Way, size: int, device: str) -> None:
    """Pages in any order give the same bits, whatever is in their unused parts: for decode and for a prefill chunk."""
    where = "cpu" if way is on_cpu else device
    q, k, v = heads(70, of_keys=2)
    whole = prefill(way, q, k, v, device)
    lengths = (70, 33, 5)
    columns = -(-70 // size)
    order = torch.randperm(4 * columns, generator=torch.Generator().manual_seed(size))
    table = order[: 3 * columns].reshape(3, columns).to(torch.int32)
    k_cache, v_cache = (torch.full((4 * columns, size, 2, D), math.nan) for _ in range(2))
    for i, length in enumerate(lengths):
        for j in range(length):
            k_cache[table[i, j // size], j % size] = k[j]
            v_cache[table[i, j // size], j % size] = v[j]
    pages = {"lengths": torch.tensor(lengths, dtype=torch.int32).to(where), "block_table": table.to(where)}
    cache = k_cache.to(where), v_cache.to(where)
    last = [length - 1 for length in lengths]
    assert torch.equal(way(q[last].to(where), *cache, cu_seqlens_q=None, **pages).cpu(), whole[last])
    rows = [*range(60, 70), *range(32, 33), *range(5)]
    chunk = way(q[rows].to(where), *cache, cu_seqlens_q=starts([10, 1, 5], where), **pages)
    assert torch.equal(chunk.cpu(), whole[rows])


@ways
def test_k9_hostile_neighbours_change_nothing(way: Way, device: str) -> None:
    """NaN and infinities in neighbouring sequences, and in the queries beside a query, do not spread."""
    where = "cpu" if way is on_cpu else device
    q, k, v = heads(45)
    alone = prefill(way, q[20:39], k[20:39], v[20:39], device)
    for value in (math.nan, -math.inf, 1e30):
        for x in (q, k, v):
            x[:20], x[39:] = value, value
        cu = starts([20, 19, 6], where)
        packed = way(*(x.to(where) for x in (q, k, v)), cu_seqlens_q=cu, lengths=cu)
        assert torch.equal(packed[20:39].cpu(), alone), value
    q, k, v = heads(19)
    expected = prefill(way, q, k, v, device)
    q[7, 1] = math.nan
    changed = prefill(way, q, k, v, device)
    assert changed[7, 1].isnan().all()
    changed[7, 1] = expected[7, 1]
    assert torch.equal(changed, expected)


@ways
@pytest.mark.parametrize("group", [1, 4, 7])
def test_k5_heads_that_share_keys_have_the_bits_of_heads_alone(way: Way, group: int, device: str) -> None:
    """A query head gives the same bits whether or not it shares a tile with its group."""
    q, k, v = heads(35, group, of_keys=2)
    together = prefill(way, q, k, v, device)
    for head in {0, group - 1}:
        pair = [head, group + head]
        assert torch.equal(together[:, pair], prefill(way, q[:, pair], k, v, device)), head


@ways
def test_k5_window_has_the_bits_of_decode(way: Way, device: str) -> None:
    """The window begins inside a block, at an edge, and before the first key."""
    q, k, v = heads(70)
    positions = (0, 15, 16, 40, 69)
    for window in (1, 16, 33):
        whole = prefill(way, q, k, v, device, window=window)
        assert torch.equal(whole[list(positions)], decode(way, q, k, v, positions, device, window=window)), window


@pytest.mark.parametrize("control", ["blocks counted from the packed start", "splits counted by the batch"])
@pytest.mark.parametrize("way", [on_cpu, by_tiles], ids=lambda each: each.__name__)
def test_k5_other_orders_are_caught_by_the_same_check(way: Way, control: str, device: str) -> None:
    """Negative control: another order is right to a few ulps, but has other bits than a query alone."""
    q, k, v = heads(70)
    alone = decode(way, q, k, v, (69,), device)
    if control.startswith("blocks"):
        # 5 keys of a neighbour before the sequence, hidden by a window as long as the sequence
        keys, values = (torch.cat([normal(5, 1, D, dtype=x.dtype, seed=9), x]) for x in (k, v))
        other = prefill(way, q[69:], keys, values, device, window=70)
    else:
        plan = small(q.dtype, "cpu" if way is on_cpu else "sm_90", split_kv=48)
        other = decode(way, q, k, v, (69,), device, plan=plan)
    torch.testing.assert_close(other, alone, rtol=1e-4, atol=1e-5)
    assert not torch.equal(other, alone)


def test_k5_stock_attention_is_caught_by_the_same_check() -> None:
    """Negative control: torch's own attention gives different bits in a prefill and in a decode."""
    q, k, v = (normal(1, 2, 300, 64, dtype=torch.float32, seed=i) for i in range(3))
    stock = torch.nn.functional.scaled_dot_product_attention
    whole = stock(q, k, v, is_causal=True)
    rows = [stock(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(300)]
    assert not torch.equal(torch.cat(rows, 2), whole)


@ways
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_k6_k9_attention_follows_the_plan_and_fp64(way: Way, dtype: torch.dtype, device: str) -> None:
    """The result follows the definition, and is near to the exact one: causal, full, and within a window."""
    q, k, v = heads(50, dtype=dtype)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    if dtype is torch.float32:
        tolerance = {"rtol": 1e-5, "atol": 1e-6}
    cases: tuple[dict[str, Any], ...] = ({}, {"causal": False}, {"window": 20})
    for options in cases:
        result = prefill(way, q[10:], k, v, device, **options)
        expected = attention_ref(q[10:], k, v, small(dtype), scale=SCALE, **options)
        torch.testing.assert_close(result, expected, **tolerance)
        torch.testing.assert_close(result.double(), exact(q[10:], k, v, **options), **tolerance)


def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool = True, window: int | None = None) -> Tensor:
    """Attention in fp64, without blocks."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    ahead = torch.arange(k.shape[0]) - torch.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None]
    hidden = (ahead > 0) & causal if window is None else (ahead > 0) | (ahead <= -window)
    scores = (q.double().transpose(0, 1) @ keys.transpose(1, 2) * SCALE).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ values).transpose(0, 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_k11_cpu_keeps_bits_at_every_position(threads: int) -> None:
    """With the users' plan and any number of threads, each token's decode equals its row of the prefill."""
    torch.set_num_threads(threads)
    q, k, v = heads(150, 7, of_keys=2)
    whole = attention(q, k, v, cu_seqlens_q=starts([150]), cu_seqlens_k=starts([150]))
    for i in range(0, 150, 1 if threads == 2 else 13):
        one, some = starts([1]), starts([i + 1])
        alone = attention(q[i : i + 1], k[: i + 1], v[: i + 1], cu_seqlens_q=one, cu_seqlens_k=some)
        assert torch.equal(alone[0], whole[i]), i


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_k5_public_functions_agree_by_the_plan_that_users_get(dtype: torch.dtype, device: str) -> None:
    """With this device's own plan, over two edges of splits: prefill, chunk, decode, and both from pages."""
    q, k, v = (x.to(device) for x in heads(1090, 4, of_keys=2, dtype=dtype))
    rows = [0, 63, 64, 511, 512, 513, 1023, 1024, 1089]
    whole = attention(q, k, v, cu_seqlens_q=starts([1090], device), cu_seqlens_k=starts([1090], device))
    chunk = attention(q[1000:], k, v, cu_seqlens_q=starts([90], device), cu_seqlens_k=starts([1090], device))
    assert torch.equal(chunk, whole[1000:])
    for i in rows:
        one, some = starts([1], device), starts([i + 1], device)
        alone = attention(q[i : i + 1], k[: i + 1], v[: i + 1], cu_seqlens_q=one, cu_seqlens_k=some, max_len_k=i + 1)
        assert torch.equal(alone[0], whole[i]), i
    rest = torch.full((14, 2, D), math.nan, dtype=dtype, device=device)
    order = torch.randperm(69, generator=torch.Generator().manual_seed(0))
    keys, values = (torch.cat([x, rest]).view(69, 16, 2, D)[order.argsort().to(device)] for x in (k, v))
    table = order.to(torch.int32).expand(len(rows), 69).to(device)
    lengths = torch.tensor([i + 1 for i in rows], dtype=torch.int32, device=device)
    assert torch.equal(paged_attention(q[rows], keys, values, table, lengths), whole[rows])
    cu = starts([90], device)
    assert torch.equal(paged_attention(q[1000:], keys, values, table[:1], lengths[-1:], cu_seqlens_q=cu), whole[1000:])


def test_no_queries_and_no_keys_give_no_rows_and_zeros(device: str) -> None:
    """An empty batch is valid; a query without keys gives zero, not NaN."""
    q, k, v = heads(3)
    nothing = attention(q[:0], k[:0], v[:0], cu_seqlens_q=starts([]), cu_seqlens_k=starts([]))
    assert nothing.shape == (0, 2, D)
    for way in (on_cpu, by_tiles, by_splits):
        result = prefill(way, q, k[:1], v[:1], device)
        assert torch.equal(result[:2], torch.zeros(2, 2, D))
        assert torch.equal(result[2], v[0].repeat_interleave(2, 0))
        assert not prefill(way, q, k[:0], v[:0], device).any()


@pytest.mark.parametrize("way", [by_tiles, by_splits], ids=lambda each: each.__name__)
def test_k5_sequence_longer_than_its_caller_says_is_nan(way: Way, device: str) -> None:
    """A wrong max_len_k can't be detected without waiting for a GPU: that result is NaN, others are unaffected."""
    q, k, v = heads(60)
    cu = starts([20, 40], device)
    operands = [x.to(device) for x in (q, k, v)]
    short, whole = (way(*operands, cu_seqlens_q=cu, lengths=cu, max_len_k=keys) for keys in (32, 40))
    assert short[20:].isnan().all()
    assert torch.equal(short[:20], whole[:20])


def test_wrong_operands_are_refused() -> None:
    """The message names the operation, the shapes and what to pass."""
    q, k, v = heads(4, of_keys=2)
    cu = starts([4])
    with pytest.raises(UnsupportedInput, match=r"attention: these shapes.*float32\[4, 4, 16\].*pass q \(Tq, Hq, D\)"):
        attention(q, k, v[:3], cu_seqlens_q=cu, cu_seqlens_k=cu)
    with pytest.raises(UnsupportedInput, match="3 heads of queries over 2"):
        attention(q[:, :3], k, v, cu_seqlens_q=cu, cu_seqlens_k=cu)
    with pytest.raises(UnsupportedInput, match="differ in dtype"):
        attention(q, k.half(), v, cu_seqlens_q=cu, cu_seqlens_k=cu)
    with pytest.raises(UnsupportedInput, match="cu_seqlens_k does not rise from 0 to 4"):
        attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=starts([3]))
    with pytest.raises(UnsupportedInput, match="window 3 with causal=False"):
        attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=False, window=3)
    with pytest.raises(UnsupportedInput, match="scale is 0"):
        attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, scale=0.0)
    with pytest.raises(UnsupportedInput, match="a sequence is longer than max_len_k or its pages, 3 keys"):
        attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_len_k=3)
    pages, table, lengths = k[None], torch.zeros(4, 1, dtype=torch.int32), torch.ones(4, dtype=torch.int32)
    with pytest.raises(UnsupportedInput, match="page_size 3 is not a power of two"):
        paged_attention(q, pages[:, :3], pages[:, :3], table, lengths)
    with pytest.raises(UnsupportedInput, match="a sequence is longer than max_len_k or its pages, 4 keys"):
        paged_attention(q, pages, pages, table, lengths + 4)
    with pytest.raises(UnsupportedInput, match="the numbers of sequences differ"):
        paged_attention(q, pages, pages, table[:3], lengths)
    with pytest.raises(UnsupportedInput, match="layout has no kernel"):
        paged_attention(q, pages.repeat(1, 1, 1, 2)[..., ::2], pages, table, lengths)
    with pytest.raises(UnsupportedInput, match="head_dim 300 is above 256"):
        plan_attention(300, "bfloat16", CPU)
