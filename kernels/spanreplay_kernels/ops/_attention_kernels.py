"""Attention kernels: each program attends one tile of queries to the blocks of keys of the tile's own sequence.

`attention_kernel` loops over all splits of its tile. `split_kernel` computes one split, and `merge_kernel` merges the
splits' partial sums. They share every function that rounds.

The queries of all heads that share a key are rows of one tile: row r is query r // GROUP, head r % GROUP.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spanreplay_kernels.ops._tile import dot, rounded

__all__ = ["MERGED_ROWS", "attention_kernel", "merge_kernel", "split_kernel"]

MERGED_ROWS = 16
"""Rows of a tile that one program of `merge_kernel` merges."""
CHUNK = tl.constexpr(MERGED_ROWS)


@triton.jit
def _place(cu_q_ptr, sequences, tile, GROUP: tl.constexpr, BLOCK_Q: tl.constexpr, IS_DECODE: tl.constexpr):
    """Return (sequence, first row of the tile within it, first query, number of queries) for a tile of the launch.

    Sequence i's tiles start at cu_q[i] · GROUP // BLOCK_Q + i, so the sum of all lengths is enough to size the grid;
    some tiles have no rows.
    """
    if IS_DECODE:
        tiles: tl.constexpr = (GROUP + BLOCK_Q - 1) // BLOCK_Q
        sequence = tile // tiles
        row = tile % tiles * BLOCK_Q
        first = sequence
        count = 1
    else:
        low = 0
        high = sequences
        while high - low > 1:
            middle = (low + high) // 2
            is_at_or_behind = tl.load(cu_q_ptr + middle) * GROUP // BLOCK_Q + middle <= tile
            low = tl.where(is_at_or_behind, middle, low)
            high = tl.where(is_at_or_behind, high, middle)
        sequence = low
        first = tl.load(cu_q_ptr + low)
        row = (tile - (first * GROUP // BLOCK_Q + low)) * BLOCK_Q
        count = tl.load(cu_q_ptr + low + 1) - first
    return sequence, row, first, count


@triton.jit
def _bounds(row, queries, length, window,
            GROUP: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr,
            IS_CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr):  # fmt: skip
    """Return (first key, end of keys, end of the keys that every row sees) for a tile.

    The first and the third are multiples of BLOCK_KV.
    """
    rows = queries * GROUP
    start = 0
    end = length
    full = length
    if IS_CAUSAL:
        end = tl.maximum(length - queries + (tl.minimum(row + BLOCK_Q, rows) - 1) // GROUP + 1, 0)
        lowest = tl.maximum(length - queries + row // GROUP + 1, 0)
        full = lowest
        if HAS_WINDOW:
            start = tl.maximum(lowest - window, 0) // BLOCK_KV * BLOCK_KV
            full = 0
    return start, end, full // BLOCK_KV * BLOCK_KV


@triton.jit
def _positions(rows, queries, length, GROUP: tl.constexpr, IS_CAUSAL: tl.constexpr):
    """Return the last key that each row may see; negative if there is none."""
    if IS_CAUSAL:
        return length - queries + tl.minimum(rows // GROUP, queries - 1)
    return rows * 0 + (length - 1)


@triton.jit
def _blocks(
    m, w, acc, q, k_ptr, v_ptr, table_ptr, positions, start, end, length, window, scale, stride_page, stride_key,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_KV: tl.constexpr, PAGE: tl.constexpr,
    HAS_WINDOW: tl.constexpr, IS_MASKED: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Add the blocks of keys from `start` up to `end` to the sums (m, w, acc) of a split."""
    d = tl.arange(0, BLOCK_D)
    inside = tl.arange(0, BLOCK_KV)
    for block in range(start, end, BLOCK_KV):
        keys = block + inside
        if PAGE > 0:
            pages = tl.load(table_ptr + keys // PAGE, mask=keys < length, other=0).to(tl.int64)
            at = (pages * stride_page + (keys % PAGE) * stride_key)[:, None] + d[None, :]
        else:
            at = (keys.to(tl.int64) * stride_key)[:, None] + d[None, :]
        # (1) Memory past the end of a sequence is never read: zero times NaN would be NaN
        if IS_MASKED:
            mask = (keys < length)[:, None] & (d < D)[None, :]
            k = tl.load(k_ptr + at, mask=mask, other=0.0)
            v = tl.load(v_ptr + at, mask=mask, other=0.0)
        elif D == BLOCK_D:
            k = tl.load(k_ptr + at)
            v = tl.load(v_ptr + at)
        else:
            k = tl.load(k_ptr + at, mask=(d < D)[None, :], other=0.0)
            v = tl.load(v_ptr + at, mask=(d < D)[None, :], other=0.0)
        s = dot(q, tl.trans(k), tl.zeros((q.shape[0], BLOCK_KV), dtype=tl.float32), INTERPRET)
        if IS_MASKED:
            allowed = keys[None, :] <= positions[:, None]
            if HAS_WINDOW:
                allowed = allowed & (keys[None, :] > positions[:, None] - window)
            s = tl.where(allowed, s, -float("inf"))
        # (2) A block with no visible key leaves a row's sums unchanged: the maximum stays, 2⁰ = 1, 2^-inf = 0
        top = tl.maximum(m, tl.max(s, 1) * scale)
        finite = tl.where(top == -float("inf"), 0.0, top)
        p = tl.exp2(tl.fma(s, scale, -finite[:, None]))
        old = tl.exp2(m - finite)
        w = w * old + tl.sum(p, 1)
        acc = dot(rounded(p, v.dtype, INTERPRET), v, acc * old[:, None], INTERPRET)
        m = top
    return m, w, acc


@triton.jit
def _split(
    q, k_ptr, v_ptr, table_ptr, positions, split, start, end, full, length, window, scale, stride_page, stride_key,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, SPLIT_KV: tl.constexpr,
    PAGE: tl.constexpr, HAS_WINDOW: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Return the sums (m, w, acc) of one split, started from zero: first the unmasked blocks, then the masked ones."""
    m = tl.full((BLOCK_Q,), -float("inf"), dtype=tl.float32)
    w = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_Q, BLOCK_D), dtype=tl.float32)
    first = tl.maximum(split * SPLIT_KV, start)
    behind = tl.minimum((split + 1) * SPLIT_KV, end)
    masked = tl.maximum(tl.minimum(behind, full), first)
    if not HAS_WINDOW:
        m, w, acc = _blocks(
            m, w, acc, q, k_ptr, v_ptr, table_ptr, positions, first, masked, length, window, scale,
            stride_page, stride_key, D, BLOCK_D, BLOCK_KV, PAGE, HAS_WINDOW, False, INTERPRET,
        )  # fmt: skip
    return _blocks(
        m, w, acc, q, k_ptr, v_ptr, table_ptr, positions, masked, behind, length, window, scale,
        stride_page, stride_key, D, BLOCK_D, BLOCK_KV, PAGE, HAS_WINDOW, True, INTERPRET,
    )  # fmt: skip


@triton.jit
def _weights(m, m_new):
    """Return (largest score, weight of the sums so far, weight of the new split's sums) for each row."""
    top = tl.maximum(m, m_new)
    finite = tl.where(top == -float("inf"), 0.0, top)
    return top, tl.exp2(m - finite), tl.exp2(m_new - finite)


@triton.jit
def _merge(sums, old, sums_new, new):
    """Add the sums of one more split to those of all splits so far."""
    return sums * old + sums_new * new


@triton.jit
def _finish(out_ptr, at, mask, w, acc, is_cut, INTERPRET: tl.constexpr):
    """Store the weighted mean of values: zero if there was no key, NaN if not all keys were read."""
    # + 0.0 turns -0.0 into 0.0
    out = tl.where(is_cut, float("nan"), acc / tl.where(w == 0.0, 1.0, w)[:, None] + 0.0)
    tl.store(out_ptr + at, rounded(out, out_ptr.dtype.element_ty, INTERPRET), mask=mask)


@triton.jit
def _queries(
    q_ptr, first, row, queries, head, HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Return (rows of a tile, their row numbers in (Tq · Hq), the queries); rows past the last query are zero."""
    rows = row + tl.arange(0, BLOCK_Q)
    flat = (first + rows // GROUP).to(tl.int64) * HEADS + head * GROUP + rows % GROUP
    d = tl.arange(0, BLOCK_D)
    mask = (rows < queries * GROUP)[:, None] & (d < D)[None, :]
    return rows, flat, tl.load(q_ptr + flat[:, None] * D + d[None, :], mask=mask, other=0.0)


@triton.jit
def _keys(lengths_ptr, sequence, limit, PAGE: tl.constexpr):
    """Return (first key within a packed tensor, number of keys, whether the sequence exceeds `limit`)."""
    number = tl.load(lengths_ptr + sequence)
    first = number * 0
    if PAGE == 0:
        first = number
        number = tl.load(lengths_ptr + sequence + 1) - first
    return first, tl.minimum(number, limit), number > limit


@triton.jit
def _merge_in_memory(
    sums_ptr, old, sums_new, new, has_old, is_kept, BLOCK_Q: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Add one more split's sums to those in memory (BLOCK_Q, COLUMNS), if any; store the result there if `is_kept`."""
    at = sums_ptr + tl.arange(0, BLOCK_Q)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = _merge(tl.load(at, mask=has_old, other=0.0), old[:, None], sums_new, new[:, None])
    tl.store(at, sums, mask=is_kept)
    return sums


@triton.jit
def _merge_halves(
    sums_ptr, old, sums_new, new, has_old, is_kept,
    BLOCK_Q: tl.constexpr, COLUMNS: tl.constexpr, COLUMNS_MAX: tl.constexpr,
):  # fmt: skip
    """Like `_merge_in_memory`, COLUMNS_MAX columns at a time: the sums of two splits don't fit into registers."""
    HALF: tl.constexpr = COLUMNS // 2
    left, right = tl.split(tl.permute(tl.reshape(sums_new, (BLOCK_Q, 2, HALF)), (0, 2, 1)))
    if HALF <= COLUMNS_MAX:
        left = _merge_in_memory(sums_ptr, old, left, new, has_old, is_kept, BLOCK_Q, HALF)
        right = _merge_in_memory(sums_ptr + BLOCK_Q * HALF, old, right, new, has_old, is_kept, BLOCK_Q, HALF)
    else:
        left = _merge_halves(sums_ptr, old, left, new, has_old, is_kept, BLOCK_Q, HALF, COLUMNS_MAX)
        right_ptr = sums_ptr + BLOCK_Q * HALF
        right = _merge_halves(right_ptr, old, right, new, has_old, is_kept, BLOCK_Q, HALF, COLUMNS_MAX)
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (BLOCK_Q, COLUMNS))


@triton.jit(do_not_specialize=["sequences", "window", "limit", "stride_table", "behind"])
def attention_kernel(
    q_ptr, k_ptr, v_ptr, sums_ptr, out_ptr, cu_q_ptr, lengths_ptr, sequences, window, limit,
    table_ptr, scale, stride_table, stride_page, stride_key, stride_head, behind,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, SPLIT_KV: tl.constexpr, PAGE: tl.constexpr,
    IS_DECODE: tl.constexpr, IS_CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, INTERPRET: tl.constexpr,
    COLUMNS_MAX: tl.constexpr, HOLDS_LAST: tl.constexpr,
):  # fmt: skip
    """Compute one tile of queries for one key head: all splits, in order. Tiles count down from `behind` - 1.

    COLUMNS_MAX: columns of two splits' sums in registers at a time. HOLDS_LAST: the final sums stay in registers.
    """
    sequence, row, first, queries = _place(
        cu_q_ptr, sequences, behind - 1 - tl.program_id(0), GROUP, BLOCK_Q, IS_DECODE
    )
    if row >= queries * GROUP:
        return
    head = tl.program_id(1)
    first_key, length, is_cut = _keys(lengths_ptr, sequence, limit, PAGE)
    rows, flat, q = _queries(q_ptr, first, row, queries, head, HEADS, GROUP, D, BLOCK_D, BLOCK_Q)
    positions = _positions(rows, queries, length, GROUP, IS_CAUSAL)
    start, end, full = _bounds(row, queries, length, window, GROUP, BLOCK_Q, BLOCK_KV, IS_CAUSAL, HAS_WINDOW)
    offset = first_key.to(tl.int64) * stride_key + head.to(tl.int64) * stride_head
    table = table_ptr + sequence.to(tl.int64) * stride_table
    # (3) The sums of the splits so far are kept in memory; each element is read by the thread that wrote it. Nothing is
    # read for the first split. The sums after the last split are written only if registers can't hold them to the end
    sums_ptr += (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + head) * (BLOCK_Q * BLOCK_D)
    m = tl.full((BLOCK_Q,), -float("inf"), dtype=tl.float32)
    w = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q, BLOCK_D if HOLDS_LAST else 1), dtype=tl.float32)
    begin = start // SPLIT_KV
    last = tl.maximum(tl.cdiv(end, SPLIT_KV) - 1, begin)
    for split in range(begin, last + 1):
        m_new, w_new, acc = _split(
            q, k_ptr + offset, v_ptr + offset, table, positions, split, start, end, full, length, window, scale,
            stride_page, stride_key, D, BLOCK_D, BLOCK_Q, BLOCK_KV, SPLIT_KV, PAGE, HAS_WINDOW, INTERPRET,
        )  # fmt: skip
        m, old, new = _weights(m, m_new)
        w = _merge(w, old, w_new, new)
        is_kept = split < last if HOLDS_LAST else split <= last
        acc = _merge_halves(sums_ptr, old, acc, new, split > begin, is_kept, BLOCK_Q, BLOCK_D, COLUMNS_MAX)
        total = acc if HOLDS_LAST else total
        tl.debug_barrier()
    is_row = (rows < queries * GROUP)[:, None]
    if HOLDS_LAST:
        d = tl.arange(0, BLOCK_D)
        _finish(out_ptr, flat[:, None] * D + d[None, :], is_row & (d < D)[None, :], w, total, is_cut, INTERPRET)
    else:
        some = tl.arange(0, COLUMNS_MAX)
        for piece in tl.range(0, BLOCK_D // COLUMNS_MAX):
            d = piece * COLUMNS_MAX + some
            at = sums_ptr + (piece * BLOCK_Q + tl.arange(0, BLOCK_Q)[:, None]) * COLUMNS_MAX + some[None, :]
            mask = is_row & (d < D)[None, :]
            _finish(out_ptr, flat[:, None] * D + d[None, :], mask, w, tl.load(at), is_cut, INTERPRET)


@triton.jit(do_not_specialize=["sequences", "window", "limit", "stride_table", "splits"])
def split_kernel(
    q_ptr, k_ptr, v_ptr, m_ptr, w_ptr, acc_ptr, cu_q_ptr, lengths_ptr, sequences, window, limit,
    table_ptr, scale, stride_table, stride_page, stride_key, stride_head, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, SPLIT_KV: tl.constexpr, PAGE: tl.constexpr,
    IS_DECODE: tl.constexpr, IS_CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, INTERPRET: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Compute one split of one tile of queries: m and w (Tq · Hq, splits), acc (Tq · Hq, splits, BLOCK_D)."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    sequence, row, first, queries = _place(cu_q_ptr, sequences, tl.program_id(2), GROUP, BLOCK_Q, IS_DECODE)
    if row >= queries * GROUP:
        return
    head = tl.program_id(1)
    split = tl.program_id(0)
    first_key, length, _ = _keys(lengths_ptr, sequence, limit, PAGE)
    start, end, full = _bounds(row, queries, length, window, GROUP, BLOCK_Q, BLOCK_KV, IS_CAUSAL, HAS_WINDOW)
    if (split < start // SPLIT_KV) | (split >= tl.cdiv(end, SPLIT_KV)):
        return
    rows, flat, q = _queries(q_ptr, first, row, queries, head, HEADS, GROUP, D, BLOCK_D, BLOCK_Q)
    positions = _positions(rows, queries, length, GROUP, IS_CAUSAL)
    offset = first_key.to(tl.int64) * stride_key + head.to(tl.int64) * stride_head
    table = table_ptr + sequence.to(tl.int64) * stride_table
    m, w, acc = _split(
        q, k_ptr + offset, v_ptr + offset, table, positions, split, start, end, full, length, window, scale,
        stride_page, stride_key, D, BLOCK_D, BLOCK_Q, BLOCK_KV, SPLIT_KV, PAGE, HAS_WINDOW, INTERPRET,
    )  # fmt: skip
    at = flat * splits + split
    mask = rows < queries * GROUP
    tl.store(m_ptr + at, m, mask=mask)
    tl.store(w_ptr + at, w, mask=mask)
    tl.store(acc_ptr + at[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :], acc, mask=mask[:, None])


@triton.jit(do_not_specialize=["sequences", "window", "limit", "splits"])
def merge_kernel(
    m_ptr, w_ptr, acc_ptr, out_ptr, cu_q_ptr, lengths_ptr, sequences, window, limit, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, SPLIT_KV: tl.constexpr, PAGE: tl.constexpr,
    IS_DECODE: tl.constexpr, IS_CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, INTERPRET: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one tile that `split_kernel` stored, from the first to the last, and store the result.

    OVERLAPS: this kernel is launched while `split_kernel` still runs, and waits on the device until it has ended.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
    sequence, row, first, queries = _place(cu_q_ptr, sequences, tl.program_id(0), GROUP, BLOCK_Q, IS_DECODE)
    if row + tl.program_id(2) * CHUNK >= queries * GROUP:
        return
    _, length, is_cut = _keys(lengths_ptr, sequence, limit, PAGE)
    start, end, _full = _bounds(row, queries, length, window, GROUP, BLOCK_Q, BLOCK_KV, IS_CAUSAL, HAS_WINDOW)
    rows = row + tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    flat = (first + rows // GROUP).to(tl.int64) * HEADS + tl.program_id(1) * GROUP + rows % GROUP
    mask = rows < queries * GROUP
    d = tl.arange(0, BLOCK_D)
    m = tl.full((CHUNK,), -float("inf"), dtype=tl.float32)
    w = tl.zeros((CHUNK,), dtype=tl.float32)
    acc = tl.zeros((CHUNK, BLOCK_D), dtype=tl.float32)
    for split in range(start // SPLIT_KV, tl.cdiv(end, SPLIT_KV)):
        at = flat * splits + split
        m_new = tl.load(m_ptr + at, mask=mask, other=0.0)
        w_new = tl.load(w_ptr + at, mask=mask, other=0.0)
        acc_new = tl.load(acc_ptr + at[:, None] * BLOCK_D + d[None, :], mask=mask[:, None], other=0.0)
        m, old, new = _weights(m, m_new)
        w = _merge(w, old, w_new, new)
        acc = _merge(acc, old[:, None], acc_new, new[:, None])
    _finish(out_ptr, flat[:, None] * D + d[None, :], mask[:, None] & (d < D)[None, :], w, acc, is_cut, INTERPRET)
