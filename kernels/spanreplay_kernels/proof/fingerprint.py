"""The determinism line: everything besides the request that a response's bits depend on, in a recorded header.

If two lines are equal, the same request gets the same bits, unless the model is changed in memory. When a model's
answer differs from the recording, the line tells a change of the serving stack from a change of the prompt.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plans.arch import Arch, arch_of
from spanreplay_kernels.plans.plan import FP8, Plan, hash_plans, plan_attention, plan_matmul, plan_rows, plan_scaled

__all__ = [
    "HEADER", "HEADER_CHARS_MAX", "digest_model", "digest_sources", "fingerprint", "join_parts", "plans_of",
    "revision_of", "system_fingerprint",
]  # fmt: skip

HEADER: Final = "x-spanreplay-determinism"
HEADER_CHARS_MAX: Final = 256
"""The number of characters that recorders keep."""
_CHUNK_BYTES: Final = 1 << 20
_HASH_CHARS: Final = 16


def fingerprint(
    model: Any, *, engine: str, revision: str, tensor_parallel: int = 1, tokenizer: Any = None
) -> str:  # fmt: skip
    """Return `kernels=…; engine=…; torch=…; plan=…; device=…; threads=…; dtype=…; tp=…; model=…; revision=…`.

    `threads` appears on a CPU only, whose library's sums depend on it, and `triton` on a GPU only. `model` is the hash
    from `digest_model`. At most 256 characters: if there are more, the longest values are replaced by a hash.
    engine: name and version of the caller of the model, e.g. `transformers-5.23.0`; tokenizer: the tokenizer or
    processor, if requests hold text.
    """
    parts = {
        "kernels": f"{importlib.metadata.version('spanreplay')}+{digest_sources()}",
        "engine": engine,
        "torch": torch.__version__,
        "plan": hash_plans(*plans_of(model)),
        **_device_parts(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "tp": str(tensor_parallel),
        "model": digest_model(model, tokenizer),
        "revision": revision,
    }
    return join_parts(parts)


def join_parts(parts: dict[str, str]) -> str:
    """Return `name=value; …`, short enough for a recorder to keep in full: the longest values become hashes."""
    while len(line := "; ".join(f"{name}={value}" for name, value in parts.items())) > HEADER_CHARS_MAX:
        longest = max(parts, key=lambda name: len(parts[name]))
        if len(parts[longest]) <= _HASH_CHARS:
            raise UnsupportedInput(
                "fingerprint", f"{len(line)} characters in {len(parts)} parts", hint="leave some out"
            )
        parts = {**parts, longest: hashlib.sha256(parts[longest].encode()).hexdigest()[:_HASH_CHARS]}
    return line


def system_fingerprint(line: str) -> str:
    """Return OpenAI's `system_fingerprint` for a determinism line: its plan and a hash of the whole line."""
    plan = next((part.removeprefix("plan=") for part in line.split("; ") if part.startswith("plan=")), "")
    return "-".join(filter(None, ("fp", plan, hashlib.sha256(line.encode()).hexdigest()[:_HASH_CHARS])))


@functools.cache
def digest_sources() -> str:
    """Return 8 hexadecimal digits over this package's source files, so that an edited copy counts as different."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]  # the package
    for path in sorted(folder.rglob("*.py")):
        _add_file(digest, path, name=path.relative_to(folder).as_posix())
    return digest.hexdigest()[:8]


def digest_model(model: Any, tokenizer: Any = None) -> str:
    """Return 16 hexadecimal digits over everything a model computes with besides its weights.

    These are its configuration and generation configuration, the files that its tokenizer saves (vocabulary, special
    tokens, chat template), and the source files of its classes, which may have come with the weights.
    """
    digest = hashlib.sha256()
    for config in (model.config, getattr(model, "generation_config", None)):
        if config is not None:
            # The path it was loaded from doesn't affect results
            stated = json.loads(config.to_json_string(use_diff=False), object_hook=_without_place)
            digest.update(json.dumps(stated, sort_keys=True).encode() + b"\0")
    for name in sorted({type(module).__module__ for module in model.modules()}):
        if not name.startswith("torch."):  # identified by its version
            source = getattr(sys.modules.get(name), "__file__", None)
            if source:
                _add_file(digest, Path(source), name=name.rsplit(".", 1)[-1])
    if tokenizer is not None:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    _add_file(digest, path, name=path.relative_to(folder).as_posix())
    return digest.hexdigest()[:_HASH_CHARS]


def _without_place(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name != "_name_or_path"}


def plans_of(model: Any) -> set[Plan]:
    """Return the plans of a model's products, attention and row reductions."""
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
    """Return the plans of a weight as (N, K) and as (K, N): its shape doesn't tell which, for experts (E, …, …) too."""
    a, b = shape[-2:]
    return {plan_matmul(a, b, dtype, arch), plan_matmul(b, a, dtype, arch)}


def _device_parts(device: torch.device) -> dict[str, str]:
    if device.type == "cuda":
        name = str(torch.cuda.get_device_name(device)).replace(" ", "-")
        return {"device": name, "triton": importlib.metadata.version("triton")}
    name = f"cpu-{torch.backends.cpu.get_cpu_capability().replace(' ', '-')}"
    return {"device": name, "threads": str(torch.get_num_threads())}


@functools.lru_cache(maxsize=16)
def revision_of(model_name: str, commit: str | None) -> str:
    """Return the hub commit or, for a local directory, 16 hexadecimal digits of its files' SHA-256, read once.

    Raises: UnsupportedInput if there is neither a commit nor a directory with weights.
    """
    if commit:
        return commit
    files = sorted(path for path in Path(model_name).glob("[!.]*") if path.is_file())
    if not any(path.suffix in (".safetensors", ".bin") for path in files):
        raise UnsupportedInput("revision_of", f"{model_name!r} has no commit and no weights", hint="name a revision")
    digest = hashlib.sha256()
    for path in files:
        _add_file(digest, path, name=path.name)
    return digest.hexdigest()[:_HASH_CHARS]


def _add_file(digest: Any, path: Path, *, name: str) -> None:
    """Add a file's name, length and content to the digest."""
    digest.update(f"{name}\0{path.stat().st_size}\0".encode())
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
