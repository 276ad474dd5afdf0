"""The router of a mixture of experts: it chooses each token's experts and their weights.

A difference of one unit in the last place can send a token to another expert. So the softmax is computed in fp32 with
an explicit order of additions and an exponential that is the same on every device, and ties go to the lowest id.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops._portable import exp, exp_in_kernel, sum_in_kernel
from spanreplay_kernels.ops._rows import sum_cpu
from spanreplay_kernels.plans.arch import CPU, arch_of
from spanreplay_kernels.plans.launch import launch
from spanreplay_kernels.plans.operands import check_dtype, dense_rows, dtype_name
from spanreplay_kernels.plans.plan import RowPlan, plan_rows

__all__ = ["EXPERTS_MAX", "TOP_K_MAX", "route", "route_ref", "route_triton"]

EXPERTS_MAX = 4095
"""One program holds a whole row of logits; `grouped_mm` has the same limit on groups."""
TOP_K_MAX = 64


def route_ref(router_logits: Tensor, top_k: int, normalise: bool, plan: RowPlan) -> tuple[Tensor, Tensor]:
    """Choose experts by (−logit, id) and weight them by softmax, in plain PyTorch: the definition."""
    # (1) Experts are chosen by logits, since rounding in the softmax could create ties; NaN counts as the smallest
    logits = router_logits.float()
    keys = torch.where(logits == logits, logits, -torch.inf)
    ids = keys.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    # (2) fp32 softmax; the upper half of the row is added to the lower until one sum is left
    powers = exp(logits - keys.amax(1, keepdim=True))
    padded = torch.nn.functional.pad(powers, (0, plan.block - plan.width))
    weights = powers.gather(1, ids) / sum_cpu(padded)[:, None]
    if not normalise:
        return weights, ids
    # (3) Scale the chosen weights to add up to one; they are summed from the first to the last
    total = weights[:, 0]
    for slot in range(1, top_k):
        total = total + weights[:, slot]
    return weights / total[:, None], ids


def route(router_logits: Tensor, top_k: int, *, normalise: bool = True) -> tuple[Tensor, Tensor]:
    """Return (weights, expert ids) of each token's `top_k` experts, largest first; bitwise batch-invariant.

    weights = softmax(logits) of the chosen experts, divided by their sum if `normalise`.
    Of equal logits the lowest id comes first. NaN counts as the smallest logit, and makes all its token's weights NaN.

    Shapes: router_logits (T, E) any T, E ≤ 4095, weights and ids (T, top_k), top_k ≤ min(E, 64).
    Dtypes: router_logits bf16, fp16, fp32; weights fp32, ids int64. Sums in fp32.
    Invariance: row i depends only on router_logits[i]; by construction CPU and GPU give the same bits.
    Raises: UnsupportedInput for other shapes, dtypes or devices.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 3–5 without noise; renormalised as in Mixtral, arXiv:2401.04088.
    """
    _check(router_logits, top_k)
    arch = arch_of(router_logits.device)
    plan = plan_rows("softmax", router_logits.shape[1], dtype_name(router_logits), arch)
    if router_logits.shape[0] == 0:
        return router_logits.new_empty((0, top_k), dtype=torch.float32), router_logits.new_empty((0, top_k)).long()
    if arch is CPU:
        # Only sorting, comparisons and operations with one IEEE 754 rounding: the batch can't change anything
        return route_ref(router_logits, top_k, normalise, plan)
    return route_triton(router_logits, top_k, normalise, plan)


def _check(router_logits: Tensor, top_k: int) -> None:
    if router_logits.dim() != 2 or not 1 <= router_logits.shape[1] <= EXPERTS_MAX:
        hint = f"pass (T, E) with at most {EXPERTS_MAX} experts"
        raise UnsupportedInput("route", "these are not tokens times experts", router_logits, hint=hint)
    check_dtype("route", router_logits)
    if not 1 <= top_k <= min(router_logits.shape[1], TOP_K_MAX):
        hint = f"choose 1 to {min(router_logits.shape[1], TOP_K_MAX)}"
        raise UnsupportedInput("route", f"top_k is {top_k}", router_logits, hint=hint)


@triton.jit
def route_kernel(
    logits_ptr, weights_ptr, ids_ptr, E,
    TOP_K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    """Route one token; the numbered steps are those of `route_ref`."""
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * E + experts, mask=experts < E, other=float("-inf")).to(tl.float32)
    # (1)
    keys = tl.where(logits == logits, logits, float("-inf"))
    peak = tl.max(keys, 0)
    # (2)
    powers = tl.where(experts < E, exp_in_kernel(logits - peak), 0.0)
    total = sum_in_kernel(powers, BLOCK, STEPS)
    slots = tl.arange(0, BLOCK_K)
    weights = tl.zeros((BLOCK_K,), dtype=tl.float32)
    ids = tl.zeros((BLOCK_K,), dtype=tl.int32)
    is_free = experts < E
    chosen = 0.0
    for slot in tl.static_range(TOP_K):
        best = tl.max(tl.where(is_free, keys, float("-inf")), 0)
        at = tl.min(tl.where(is_free & (keys == best), experts, BLOCK), 0)
        is_free = is_free & (experts != at)
        # Only one term is not 0, so the order of the sum doesn't matter
        weight = tl.math.div_rn(tl.sum(tl.where(experts == at, powers, 0.0), 0), total)
        weights = tl.where(slots == slot, weight, weights)
        ids = tl.where(slots == slot, at, ids)
        # (3)
        chosen = weight if slot == 0 else chosen + weight
    if NORMALISE:
        weights = tl.math.div_rn(weights, chosen)
    at = row * TOP_K + slots
    tl.store(weights_ptr + at, weights, mask=slots < TOP_K)
    tl.store(ids_ptr + at, ids.to(tl.int64), mask=slots < TOP_K)


def route_triton(router_logits: Tensor, top_k: int, normalise: bool, plan: RowPlan) -> tuple[Tensor, Tensor]:
    """Run `route` with the kernel; the caller has checked the operands and made a plan."""
    logits = dense_rows(router_logits)
    T = logits.shape[0]
    weights = torch.empty((T, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((T, top_k), dtype=torch.int64, device=logits.device)
    launch(
        route_kernel, (T,), logits, weights, ids, plan.width,
        TOP_K=top_k, BLOCK_K=triton.next_power_of_2(top_k), BLOCK=plan.block, STEPS=plan.block.bit_length() - 1,
        NORMALISE=normalise, num_warps=1 if plan.block <= 512 else 8, enable_fp_fusion=False,
    )  # fmt: skip
    return weights, ids
