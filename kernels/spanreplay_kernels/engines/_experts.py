"""An experts implementation for transformers' registry, used by its mixture-of-experts models.

    ALL_EXPERTS_FUNCTIONS.register("spanreplay", experts_forward)
    model.set_experts_implementation("spanreplay")

Source: transformers 5.23, integrations/moe.py, `ExpertsInterface` and `use_experts_implementation`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.ops.moe import experts

__all__ = ["experts_forward", "refusal_of"]

_SILU = ("SiLU", "SiLUActivation")
"""The classes with which transformers applies `silu`."""


def experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return the weighted sum of the chosen experts; bitwise batch-invariant, replaces `grouped_mm_experts_forward`.

    Shapes: hidden_states (T, H), top_k_index and top_k_weights (T, top_k), result (T, H).
    Dtypes: as `experts`; the weights are used as the router rounded them.
    Invariance: as `experts`. Slots of experts on another rank add zero.
    Raises: UnsupportedInput unless experts are silu-gated, with `[gate; up]` in one weight and without bias: other
        kinds have no order defined here.
    """
    _check(module, hidden_states)
    gate_up, down = module.gate_up_proj, module.down_proj
    if module.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    with torch.no_grad():
        return experts(hidden_states, top_k_index, top_k_weights, gate_up, down)


def refusal_of(module: Any) -> str:
    """Return the reason why these experts have no kernel; empty if they have one."""
    reasons = {
        "experts without a gate": not module.has_gate,
        "experts with a bias": module.has_bias,
        "experts with a norm behind them": getattr(module, "has_post_expert_norm", False),
        "gate and up are interleaved": not getattr(module, "is_concatenated", True),
        "a gate of its own": getattr(type(module)._apply_gate, "__name__", "") != "_default_apply_gate",
        f"activation {type(module.act_fn).__name__}": type(module.act_fn).__name__ not in _SILU,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _check(module: Any, hidden_states: Tensor) -> None:
    op = f"experts of {type(module).__name__}"
    if torch.is_grad_enabled() and (hidden_states.requires_grad or module.down_proj.requires_grad):
        problem = "a gradient is required, and these kernels are forward only"
        raise UnsupportedInput(op, problem, hidden_states, hint="run it under torch.inference_mode()")
    reason = refusal_of(module)
    if reason:
        raise UnsupportedInput(op, reason, hidden_states, hint='use "grouped_mm" within invariant()')
