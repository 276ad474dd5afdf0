"""What a response's bits depend on besides its request, in one line: the header that a recorder keeps.

Two equal lines: the same request has the same bits. Where a model answers differently from its recording, the line
tells a change of the serving stack from one of the prompt.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any, Final

import torch

from spanreplay_kernels.arch import Arch, arch_of
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plan import FP8, Plan, hash_plans, plan_attention, plan_matmul, plan_rows, plan_scaled

__all__ = ["HEADER", "HEADER_CHARS_MAX", "fingerprint", "plans_of", "revision_of"]

HEADER: Final = "x-spanreplay-determinism"
HEADER_CHARS_MAX: Final = 256
"""What recorders keep of it."""
_CHUNK_BYTES: Final = 1 << 20


def fingerprint(model: Any, *, engine: str, revision: str, tensor_parallel: int = 1) -> str:
    """`kernels=…; engine=…; torch=…; plan=…; device=…; threads=…; dtype=…; tp=…; revision=…` of a loaded model.

    Threads are named on a CPU only, whose library adds up by them, and triton on a GPU only. At most 256 characters; a
    longer revision is cut. engine: name and version of what calls the model, e.g. `transformers-5.23.0`.
    """
    device = model.device
    parts = {
        "kernels": importlib.metadata.version("spanreplay"),
        "engine": engine,
        "torch": torch.__version__,
        "plan": hash_plans(*plans_of(model)),
        "device": _device_name(device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "tp": str(tensor_parallel),
        "revision": revision,
    }
    return "; ".join(f"{name}={value}" for name, value in parts.items())[:HEADER_CHARS_MAX]


def plans_of(model: Any) -> set[Plan]:
    """The plans by which a model's weights are multiplied, its heads attended and its rows reduced."""
    arch, dtype = arch_of(model.device), str(model.dtype).removeprefix("torch.")
    plans: set[Plan] = set()
    for weight in model.parameters():
        if weight.dim() == 2 and str(weight.dtype).endswith(FP8):
            plans.add(plan_scaled(weight.shape[0], weight.shape[1], FP8, arch))
        elif weight.dim() >= 2:
            plans |= _plans_of_weight(tuple(weight.shape), dtype, arch)
        elif weight.dim() == 1:
            plans |= {plan_rows(op, weight.shape[0], dtype, arch) for op in ("mean", "rms_norm")}
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 0)
    head_dim = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    if head_dim:
        plans.add(plan_attention(head_dim, dtype, arch))
    return plans


def _plans_of_weight(shape: tuple[int, ...], dtype: str, arch: Arch) -> set[Plan]:
    """Of a layer (N, K), a layer that is kept transposed, or experts (E, …, …); which, the shape does not tell."""
    a, b = shape[-2:]
    return {plan_matmul(a, b, dtype, arch), plan_matmul(b, a, dtype, arch)}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        name = str(torch.cuda.get_device_name(device)).replace(" ", "-")
        return f"{name}; triton={importlib.metadata.version('triton')}"
    return f"cpu-{torch.backends.cpu.get_cpu_capability().replace(' ', '-')}; threads={torch.get_num_threads()}"


@functools.lru_cache(maxsize=16)
def revision_of(model_name: str, commit: str | None) -> str:
    """A hub's commit; of a local directory, 16 hexadecimal digits of its weights' SHA-256, read once.

    Raises: UnsupportedInput if there is neither a commit nor a directory with weights.
    """
    if commit:
        return commit
    files = sorted(p for pattern in ("*.safetensors", "*.bin") for p in Path(model_name).glob(pattern))
    if not files:
        raise UnsupportedInput("revision_of", f"{model_name!r} has no commit and no weights", hint="name a revision")
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()[:16]
