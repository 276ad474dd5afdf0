"""What others offer for the same, where it can be imported: their best, and their batch-invariant kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["SDPA", "decode_anchors", "norm_anchors", "product_anchors", "row_anchors", "sdpa", "sdpa_calls"]

Calls = dict[str, Callable[[], object]]
_VLLM: Final = ("vllm.model_executor.determinism.batch_invariant", "vllm.model_executor.layers.batch_invariant")
"""Where it stands since 0.27, and where it stood."""
SDPA: Final = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
}


_OFFSETS_MAX: Final = 2**31 - 1


def _import(*names: str) -> Any:
    """The first of the modules that can be imported; None if none can."""
    for name in names:
        try:
            return importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 -- another's module may fail in any way where its parts are missing
            continue
    return None


def product_anchors(x: Tensor, w: Tensor) -> Calls:
    """x · wᵀ by batch-invariant kernels of others; of a GPU's operands alone."""
    if x.device.type != "cuda":
        return {}
    calls: Calls = {}
    persistent = getattr(_import("batch_invariant_ops"), "matmul_persistent", None)
    if persistent is not None:
        calls["batch_invariant_ops"] = partial(persistent, x, w.t())
    linear = getattr(_import(*_VLLM), "linear_batch_invariant", None)
    if linear is not None:
        calls["vLLM batch invariant"] = partial(linear, x, w)
    compiled = _inductor_linear()
    if compiled is not None:
        calls["inductor batch_invariant"] = partial(compiled, x, w)
    return calls


def norm_anchors(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> Calls:
    """RMSNorm, of the sum with a residual where there is one, by a batch-invariant kernel of others."""
    norm = getattr(_import(*_VLLM), "rms_norm_batch_invariant", None) if x.device.type == "cuda" else None
    return {} if norm is None else {"vLLM batch invariant": partial(norm, x, weight, eps, residual=residual)}


def row_anchors(op: str, x: Tensor) -> Calls:
    """`softmax`, `log_softmax` or `mean` over the last dimension, by batch-invariant kernels of others."""
    if x.device.type != "cuda":
        return {}
    name = {"mean": "mean_dim"}.get(op, op)
    owners = {"batch_invariant_ops": _import("batch_invariant_ops"), "vLLM batch invariant": _import(*_VLLM)}
    if x.numel() > _OFFSETS_MAX:
        del owners["batch_invariant_ops"]  # its mean ends all work on the GPU by an illegal access
    found = {owner: getattr(module, name, None) for owner, module in owners.items()}
    return {owner: partial(function, x, -1) for owner, function in found.items() if function is not None}


_compiled: dict[str, Any] = {}


def _inductor_linear() -> Callable[..., Tensor] | None:
    """`linear` by torch.compile in its batch-invariant mode, which PyTorch has from 2.14 on."""
    from torch._inductor import config

    if not hasattr(config, "batch_invariant"):
        return None
    if "linear" not in _compiled:
        _compiled["linear"] = torch.compile(functional.linear, options={"batch_invariant": True})
    found: Callable[..., Tensor] = _compiled["linear"]
    return found


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, backend: SDPBackend | None = None) -> Tensor:
    """Torch's attention, by the kernel that it chooses or by a named one."""
    if backend is None:
        chosen: Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
        return chosen
    with sdpa_kernel(backend):
        return sdpa(q, k, v, is_causal=is_causal)


def sdpa_calls(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Calls:
    """Torch's own choice; on a GPU each of its kernels too, one that takes no such operands among them."""
    calls: Calls = {"sdpa": partial(sdpa, q, k, v, is_causal=is_causal)}
    if q.device.type == "cuda":
        calls |= {name: partial(sdpa, q, k, v, is_causal=is_causal, backend=each) for name, each in SDPA.items()}
    return calls


def decode_anchors(q: Tensor, cache: tuple[Tensor, Tensor], table: Tensor, lengths: Tensor, L: int) -> Calls:
    """One query (B, H, D) a sequence against pages of keys, by FlashAttention-3 and FlashInfer."""
    if q.device.type != "cuda":
        return {}
    calls: Calls = {}
    flash = getattr(_import("flash_attn_interface"), "flash_attn_with_kvcache", None)
    if flash is not None:
        calls["FlashAttention-3"] = partial(flash, q[:, None], *cache, cache_seqlens=lengths, page_table=table)
    flashinfer = _import("flashinfer")
    if flashinfer is not None:
        calls["FlashInfer"] = partial(_flashinfer(flashinfer, q, cache[0], table, L).run, q, cache)
    return calls


def _flashinfer(module: Any, q: Tensor, keys: Tensor, table: Tensor, L: int) -> Any:
    """Its plan is made once for a batch, as engines do, and is no part of the time."""
    B, page = q.shape[0], keys.shape[1]
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(128 * 2**20, dtype=torch.uint8, device=q.device), "NHD", use_tensor_cores=True
    )
    ends = torch.arange(B + 1, dtype=torch.int32, device=q.device) * table.shape[1]
    last = torch.full((B,), (L - 1) % page + 1, dtype=torch.int32, device=q.device)
    wrapper.plan(
        ends, table.flatten(), last, q.shape[1], keys.shape[2], q.shape[2], page,
        q_data_type=q.dtype, kv_data_type=keys.dtype,
    )  # fmt: skip
    return wrapper
