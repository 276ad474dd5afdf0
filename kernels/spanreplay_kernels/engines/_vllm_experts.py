"""Experts for vLLM: replaces its Triton experts with our permutation, products and sum."""

from __future__ import annotations

import importlib
from typing import Any, Final

from torch import Tensor
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.switch.custom_ops import experts

__all__ = ["CHOICE", "Experts", "replace"]

CHOICE: Final = "vllm.model_executor.layers.fused_moe.oracle.unquantized"
"""The module that chooses the class of unquantised experts."""
_HINT = "run the model without the plug-in, in vLLM's own batch-invariant mode"


class Experts(TritonExperts):
    """Unquantised silu-gated experts; the router stays vLLM's."""

    @staticmethod
    def _supports_batch_invariance() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return activation == MoEActivation.SILU

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return not moe_parallel_config.use_ep

    def apply(
        self,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: Tensor | None,
        a1q_scale: Tensor | None,
        a2_scale: Tensor | None,
        workspace13: Tensor,
        workspace2: Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        """Write output (T, H) for tokens (T, H), w1 (E, 2·I, H) with the gates first, w2 (E, H, I)."""
        quantised = a1q_scale is not None or a2_scale is not None
        biased = self.quant_config.w1_bias is not None or self.quant_config.w2_bias is not None
        clamped = self.quant_config.gemm1_clamp_limit is not None
        if quantised or biased or clamped or expert_map is not None or apply_router_weight_on_input:
            problem = "experts with scales, biases, a clamp, on other ranks or weighted before"
            raise UnsupportedInput("experts", f"{problem} have no kernel", hidden_states, hint=_HINT)
        output.copy_(experts(hidden_states, topk_ids.long(), topk_weights, w1, w2))


def replace() -> None:
    """Make vLLM choose these experts instead of its own, in this process; later calls are no-ops."""
    choice: Any = importlib.import_module(CHOICE)
    stock = choice.backend_to_kernel_cls
    if getattr(stock, "__module__", "") == __name__:
        return

    def backend_to_kernel_cls(backend: Any) -> list[type]:
        return [Experts if each is TritonExperts else each for each in stock(backend)]

    choice.backend_to_kernel_cls = backend_to_kernel_cls
