"""Builds an engine process's attestation from its model, its configuration and the operations it has run."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spanreplay_kernels.engines import attestation
from spanreplay_kernels.engines._replacements import PRODUCTS
from spanreplay_kernels.errors import UnsupportedInput
from spanreplay_kernels.plans.plan import hash_plans
from spanreplay_kernels.proof.fingerprint import fingerprint, plans_of, revision_of, system_fingerprint
from spanreplay_kernels.switch.registry import engaged

__all__ = ["Served", "has_computed", "state"]


@dataclass(frozen=True)
class Served:
    """An engine's model, with the attributes that `fingerprint` reads from a transformers model."""

    model: Any
    config: Any
    """The model's transformers configuration."""
    defaults: Mapping[str, Any]
    """Default generation settings, for requests that set none."""
    device: torch.device
    dtype: torch.dtype

    @property
    def generation_config(self) -> Any:
        """The defaults, in the form of a transformers configuration."""
        return _Stated(self.defaults)

    def parameters(self) -> Iterator[Any]:
        """Yield the weights that this process holds."""
        yield from self.model.parameters()

    def modules(self) -> Iterator[Any]:
        """Yield the layers, whose classes lead to the model's source files."""
        yield from self.model.modules()


@dataclass(frozen=True)
class _Stated:
    members: Mapping[str, Any]

    def to_json_string(self, *, use_diff: bool) -> str:
        try:
            return json.dumps(dict(self.members), sort_keys=True)
        except TypeError as exc:  # the text of an object may hold an address, which no second process has
            hint = "pass JSON values in the generation configuration"
            raise UnsupportedInput("generation configuration", str(exc), hint=hint) from exc


def has_computed() -> bool:
    """Whether this process has run both our products and our attention."""
    counts = engaged()
    return any(counts.get(name) for name in PRODUCTS) and bool(counts.get("paged_attention"))


def state(served: Served, *, engine: str, release: str, name: str, commit: str | None, tokenizer: Any) -> None:
    """Write the attestation of this process, which may be one of several that compute together.

    name, commit: of the model, as `revision_of` takes them.
    Raises: UnsupportedInput if the revision can't be determined, or a weight has no plan.
    """
    is_parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if is_parallel else 0
    processes = torch.distributed.get_world_size() if is_parallel else 1
    line = fingerprint(
        served, engine=f"{engine}-{release}", revision=revision_of(name, commit), tensor_parallel=processes,
        tokenizer=tokenizer,
    )  # fmt: skip
    versions = {each: importlib.metadata.version(each) for each in ("spanreplay", "torch", "triton", engine)}
    attestation.write(
        attestation.Attestation(
            line=line,
            system_fingerprint=system_fingerprint(line),
            engaged=engaged(),
            plan=hash_plans(*plans_of(served)),
            versions=versions,
            rank=rank,
            processes=processes,
            pid=os.getpid(),
            started=attestation.started_of(os.getpid()),
        )
    )
