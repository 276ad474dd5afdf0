"""Sorts rows by expert, and adds up each token's rows from its experts.

The sort is stable, and a token's experts are added up in the order of its own slots, so nothing depends on the order
in which threads run: no atomics, no index_add.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._tile import IS_INTERPRETED, rounded
from spanreplay_kernels.ops.grouped import GROUPS_MAX
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import check_dtype

__all__ = ["Permutation", "combine", "combine_ref", "combine_triton", "permute", "permute_ref", "permute_triton"]

_PROGRAMS_MAX = 64
"""The maximum number of programs; each reads the counts of all."""
_COMPARED_MAX = 16_384
"""Slots times experts that a program compares at once."""


class Permutation(NamedTuple):
    """Slots sorted by expert. Slot s is choice number s % top_k of token s // top_k."""

    order: Tensor
    """(T · top_k,) int64: the slot at each sorted position; slots without an expert come last."""
    offsets: Tensor
    """(E,) int32: where each expert's slots end, as `grouped_mm` takes them."""
    inverse: Tensor
    """(T, top_k) int64: the sorted position of each slot."""


def permute_ref(ids: Tensor, num_experts: int) -> Permutation:
    """Sort slots by expert, in plain PyTorch: the definition."""
    flat = ids.reshape(-1)
    expert = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    order = expert.sort(stable=True).indices
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=ids.device)
    counts = torch.bincount(expert, minlength=num_experts + 1)[:num_experts]
    return Permutation(order, counts.cumsum(0).to(torch.int32), inverse.view(ids.shape))


def permute(ids: Tensor, num_experts: int) -> Permutation:
    """Sort slots by expert, keeping the order of the batch within each expert.

    An id outside 0 … num_experts − 1 names no expert: its slot comes after the last expert's.

    Shapes: ids (T, top_k) any T; num_experts ≤ 4095.
    Dtypes: ids int32 or int64.
    Invariance: integers only. A slot's position depends on the batch; the results of `grouped_mm` and `combine` don't.
    Raises: UnsupportedInput for other shapes, dtypes or devices.
    """
    if ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
        raise UnsupportedInput("permute", "these are not experts' ids", ids, hint="pass int64 (T, top_k)")
    if not 1 <= num_experts <= GROUPS_MAX:
        raise UnsupportedInput("permute", f"num_experts is {num_experts}", ids, hint=f"pass 1 to {GROUPS_MAX}")
    if arch_of(ids.device) is CPU or ids.numel() == 0:
        return permute_ref(ids, num_experts)
    return permute_triton(ids, num_experts)


def combine_ref(expert_out: Tensor, inverse: Tensor, weights: Tensor) -> Tensor:
    """Return each token's weighted sum over its slots, first to last, in plain PyTorch: the definition."""
    total: Tensor | None = None
    for slot in range(inverse.shape[1]):
        term = expert_out[inverse[:, slot]].float() * weights[:, slot, None].float()
        total = term if total is None else total + term
    assert total is not None
    return total.to(expert_out.dtype)


def combine(expert_out: Tensor, inverse: Tensor, weights: Tensor) -> Tensor:
    """Return each token's weighted sum over its experts; bitwise batch-invariant.

    y[t] = w[t, 0] · expert_out[inverse[t, 0]] + w[t, 1] · expert_out[inverse[t, 1]] + …, in slot order.

    Shapes: expert_out (T · top_k, H) sorted by expert, inverse and weights (T, top_k), result (T, H); top_k, H ≥ 1.
    Dtypes: expert_out bf16, fp16, fp32; weights any of these; products and sums in fp32, each rounded, and the total
        once more to expert_out's dtype.
    Invariance: row t depends only on its own slots' rows and weights; by construction CPU and GPU give the same bits.
    Raises: UnsupportedInput if shapes, dtypes or devices don't fit.
    """
    _check_combine(expert_out, inverse, weights)
    arch = arch_of(expert_out.device)
    if inverse.shape[0] == 0:
        return expert_out.new_empty((0, expert_out.shape[1]))
    if arch is CPU:
        # One multiplication and one addition per element, each rounded as IEEE 754 says, at every position
        return combine_ref(expert_out, inverse, weights)
    return combine_triton(expert_out, inverse, weights)


def _check_combine(expert_out: Tensor, inverse: Tensor, weights: Tensor) -> None:
    hint = "pass (T · top_k, H), int64 (T, top_k) and (T, top_k)"
    slots = inverse.numel()
    if expert_out.dim() != 2 or expert_out.shape[0] != slots or inverse.shape != weights.shape:
        raise UnsupportedInput("combine", "the shapes do not fit", expert_out, inverse, weights, hint=hint)
    if inverse.dim() != 2 or 0 in (inverse.shape[1], expert_out.shape[1]) or inverse.dtype != torch.int64:
        raise UnsupportedInput("combine", "these are not slots of tokens", expert_out, inverse, hint=hint)
    check_dtype("combine", expert_out)
    check_dtype("combine", weights)
    if not expert_out.device == inverse.device == weights.device:
        raise UnsupportedInput("combine", "the devices differ", expert_out, inverse, weights, hint="bring them to one")


@triton.jit
def _load_experts(ids_ptr, slots, end, E):
    """Load the experts of slots: E for a slot without an expert, −1 past the end."""
    ids = tl.load(ids_ptr + slots, mask=slots < end, other=0)
    return tl.where(slots < end, tl.where((ids >= 0) & (ids < E), ids, E), -1).to(tl.int32)


@triton.jit(do_not_specialize=["S", "slots_each"])
def count_kernel(ids_ptr, counts_ptr, S, E, slots_each, BLOCK: tl.constexpr, BLOCK_E: tl.constexpr):
    """Count the slots of each expert among this program's slots."""
    program = tl.program_id(0)
    experts = tl.arange(0, BLOCK_E)
    end = tl.minimum((program + 1) * slots_each, S)
    counts = tl.zeros((BLOCK_E,), dtype=tl.int32)
    for start in range(program * slots_each, end, BLOCK):
        expert = _load_experts(ids_ptr, start + tl.arange(0, BLOCK), end, E)
        counts += tl.sum((expert[:, None] == experts[None, :]).to(tl.int32), 0)
    tl.store(counts_ptr + program * BLOCK_E + experts, counts)


@triton.jit(do_not_specialize=["S", "slots_each"])
def place_kernel(
    ids_ptr, counts_ptr, order_ptr, offsets_ptr, inverse_ptr, S, E, slots_each,
    BLOCK: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Place this program's slots: after all slots of lower experts and after earlier slots of the same expert."""
    program = tl.program_id(0)
    experts = tl.arange(0, BLOCK_E)
    totals = tl.zeros((BLOCK_E,), dtype=tl.int32)
    earlier = tl.zeros((BLOCK_E,), dtype=tl.int32)
    for each in range(tl.num_programs(0)):
        counts = tl.load(counts_ptr + each * BLOCK_E + experts)
        totals += counts
        earlier += tl.where(each < program, counts, 0)
    ends = tl.cumsum(totals, 0)
    if program == 0:
        tl.store(offsets_ptr + experts, ends, mask=experts < E)
    base = ends - totals + earlier
    inside = tl.arange(0, BLOCK)
    end = tl.minimum((program + 1) * slots_each, S)
    for start in range(program * slots_each, end, BLOCK):
        slots = start + inside
        expert = _load_experts(ids_ptr, slots, end, E)
        is_expert = expert[:, None] == experts[None, :]
        is_earlier = (expert[:, None] == expert[None, :]) & (inside[None, :] < inside[:, None])
        rank = tl.sum(is_earlier.to(tl.int32), 1)
        at = (tl.sum(tl.where(is_expert, base[None, :], 0), 1) + rank).to(tl.int64)
        tl.store(inverse_ptr + slots, at, mask=slots < end)
        tl.store(order_ptr + at, slots.to(tl.int64), mask=slots < end)
        base += tl.sum(is_expert.to(tl.int32), 0)


def permute_triton(ids: Tensor, num_experts: int) -> Permutation:
    """Run `permute` with the kernels, as a counting sort; the caller has checked the operands."""
    ids, device = ids.contiguous(), ids.device
    S = ids.numel()
    block_e = triton.next_power_of_2(num_experts + 1)
    block = max(16, min(64, _COMPARED_MAX // block_e))
    slots_each = triton.cdiv(triton.cdiv(S, _PROGRAMS_MAX), block) * block
    grid = (triton.cdiv(S, slots_each),)
    counts = torch.empty((grid[0], block_e), dtype=torch.int32, device=device)
    order = torch.empty(S, dtype=torch.int64, device=device)
    offsets = torch.empty(num_experts, dtype=torch.int32, device=device)
    inverse = torch.empty(ids.shape, dtype=torch.int64, device=device)
    shape = {"BLOCK": block, "BLOCK_E": block_e, "num_warps": 8}
    launch(count_kernel, grid, ids, counts, S, num_experts, slots_each, **shape)
    launch(place_kernel, grid, ids, counts, order, offsets, inverse, S, num_experts, slots_each, **shape)
    return Permutation(order, offsets, inverse)


@triton.jit
def combine_kernel(
    rows_ptr, inverse_ptr, weights_ptr, out_ptr, H,
    TOP_K: tl.constexpr, BLOCK_H: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Combine BLOCK_H columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for slot in tl.static_range(TOP_K):
        row = tl.load(inverse_ptr + token * TOP_K + slot)
        weight = tl.load(weights_ptr + token * TOP_K + slot).to(tl.float32)
        term = tl.load(rows_ptr + row * H + columns, mask=columns < H, other=0.0).to(tl.float32) * weight
        total = term if slot == 0 else total + term
    tl.store(out_ptr + token * H + columns, rounded(total, out_ptr.dtype.element_ty, INTERPRET), mask=columns < H)


def combine_triton(expert_out: Tensor, inverse: Tensor, weights: Tensor) -> Tensor:
    """Run `combine` with the kernel; the caller has checked the operands."""
    expert_out, inverse, weights = expert_out.contiguous(), inverse.contiguous(), weights.contiguous()
    (T, top_k), H = inverse.shape, expert_out.shape[1]
    out = torch.empty((T, H), dtype=expert_out.dtype, device=expert_out.device)
    block = min(1024, triton.next_power_of_2(H))
    launch(
        combine_kernel, (T, triton.cdiv(H, block)), expert_out, inverse, weights, out, H,
        TOP_K=top_k, BLOCK_H=block, INTERPRET=IS_INTERPRETED, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
