"""Other libraries' kernels for the same operations, if installed: their fastest and their batch-invariant ones."""

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
"""The module since 0.27, and the one before."""
SDPA: Final = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa cuDNN": SDPBackend.CUDNN_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
}


_OFFSETS_MAX: Final = 2**31 - 1


def _import(*names: str) -> Any:
    """Import the first of the modules that can be imported; return None if none can."""
    for name in names:
        try:
            return importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 -- a foreign module may fail in any way if parts are missing
            continue
    return None


def product_anchors(x: Tensor, w: Tensor) -> Calls:
    """Return calls for x · wᵀ with others' batch-invariant kernels; only for operands on a GPU."""
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
    """Return a call for RMSNorm, with a residual sum if given, with vLLM's batch-invariant kernel."""
    norm = getattr(_import(*_VLLM), "rms_norm_batch_invariant", None) if x.device.type == "cuda" else None
    return {} if norm is None else {"vLLM batch invariant": partial(norm, x, weight, eps, residual=residual)}


def row_anchors(op: str, x: Tensor) -> Calls:
    """Return calls for `softmax`, `log_softmax` or `mean` over the last dimension, with others' invariant kernels."""
    if x.device.type != "cuda":
        return {}
    name = {"mean": "mean_dim"}.get(op, op)
    owners = {"batch_invariant_ops": _import("batch_invariant_ops"), "vLLM batch invariant": _import(*_VLLM)}
    if x.numel() > _OFFSETS_MAX:
        del owners["batch_invariant_ops"]  # its mean makes an illegal access, which ends all work on the GPU
    found = {owner: getattr(module, name, None) for owner, module in owners.items()}
    return {owner: partial(function, x, -1) for owner, function in found.items() if function is not None}


_compiled: dict[str, Any] = {}


def _inductor_linear() -> Callable[..., Tensor] | None:
    """Return `linear` from torch.compile's batch-invariant mode, which exists since PyTorch 2.14; else None."""
    from torch._inductor import config

    if not hasattr(config, "batch_invariant"):
        return None
    if "linear" not in _compiled:
        _compiled["linear"] = torch.compile(functional.linear, options={"batch_invariant": True})
    found: Callable[..., Tensor] = _compiled["linear"]
    return found


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, backend: SDPBackend | None = None) -> Tensor:
    """Compute torch's attention with the kernel that it chooses or with a given one."""
    if backend is None:
        chosen: Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
        return chosen
    with sdpa_kernel(backend):
        return sdpa(q, k, v, is_causal=is_causal)


def sdpa_calls(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Calls:
    """Return calls for torch's own choice and, on a GPU, each of its kernels, even those that refuse the operands."""
    calls: Calls = {"sdpa": partial(sdpa, q, k, v, is_causal=is_causal)}
    if q.device.type == "cuda":
        calls |= {name: partial(sdpa, q, k, v, is_causal=is_causal, backend=each) for name, each in SDPA.items()}
    return calls


def decode_anchors(q: Tensor, cache: tuple[Tensor, Tensor], table: Tensor, lengths: Tensor, L: int) -> Calls:
    """Return FlashAttention-3's and FlashInfer's calls for one query (B, H, D) per sequence against pages of keys."""
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
    """Make FlashInfer's wrapper; its plan is made once per batch, as in engines, and is not timed."""
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
