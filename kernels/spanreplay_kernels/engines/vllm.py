"""The vLLM plug-in: vLLM's own batch-invariant mode, with its kernels replaced by ours.

Entry point of the group `vllm.general_plugins`, called in every process of vLLM. It acts only if `VLLM_PLUGINS` names
`spanreplay`; importing this module does nothing, and imports neither vLLM nor torch. Everything that vLLM fixes by
itself in that mode stays: NCCL with its one-stage all-reduce, reductions in fixed order, piecewise CUDA graphs, the
sampler, the gates of experts.

    VLLM_PLUGINS=spanreplay VLLM_BATCH_INVARIANT=1 vllm serve … --attention-backend CUSTOM \\
        --middleware spanreplay_kernels.engines.vllm.header
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from spanreplay_kernels.engines import attestation
from spanreplay_kernels.engines._rules import Rule, check, check_release, field, is_asked
from spanreplay_kernels.errors import UnsupportedEngine
from spanreplay_kernels.plans.arch import arch_of_capability

__all__ = ["RELEASES", "RULES", "header", "register"]

ENGINE: Final = "vllm"
RELEASES: Final = ((0, 32), (0, 33))
"""First and last release with the required names, signatures and callers (`tools/engines.py`); 0.31 has no separate
softmax function."""
OPERATIONS: Final = "vllm.model_executor.determinism.batch_invariant"
_ATTENTION: Final = "CUSTOM"

header = attestation.Header
"""For `--middleware`: adds the determinism line to each response."""

_STOCK = "run it without the plug-in, in vLLM's own batch-invariant mode"


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _is_named(name: str) -> Callable[[Any], bool]:
    return lambda value: getattr(value, "name", value) == name


RULES: Final = (
    Rule("attention_config.backend", _is_named(_ATTENTION), "start with --attention-backend CUSTOM"),
    Rule("attention_config.backend_per_kind", lambda value: not value, "choose one attention backend for all layers"),
    Rule("lora_config", _is(None), "serve the model without LoRA"),
    Rule("speculative_config", _is(None), "leave out --speculative-config"),
    Rule("diffusion_config", _is(None), _STOCK),
    Rule("kv_transfer_config", _is(None), "leave out --kv-transfer-config"),
    Rule("weight_transfer_config", _is(None), "weights that change in memory have no revision; leave it out"),
    Rule("model_config.quantization", _is(None), "serve a model that is not quantised"),
    Rule("model_config.use_mla", _is(False), _STOCK, absent=False),
    Rule("model_config.is_hybrid", _is(False), _STOCK, absent=False),
    Rule("model_config.is_attention_free", _is(False), _STOCK, absent=False),
    Rule("model_config.is_encoder_decoder", _is(False), _STOCK, absent=False),
    Rule("model_config.is_multimodal_model", _is(False), _STOCK, absent=False),
    Rule("cache_config.cache_dtype", _is("auto", "bfloat16", "float16"), "leave out --kv-cache-dtype"),
    Rule("compilation_config.pass_config.enable_sp", _is(None, False), "leave sequence parallelism off"),
    Rule("parallel_config.enable_hc_sp", _is(None, False), "leave sequence parallelism off"),
    Rule("parallel_config.use_sequence_parallel_moe", _is(None, False), "leave sequence parallelism off"),
    Rule("parallel_config.enable_expert_parallel", _is(False), "leave out --enable-expert-parallel", absent=False),
    Rule("parallel_config.enable_dbo", _is(False), "leave out --enable-dbo", absent=False),
    *(
        Rule(f"parallel_config.{name}", _is(1), "split the model by tensors, on one node, and nothing else", absent=1)
        for name in (
            "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size",
            "decode_context_parallel_size", "nnodes",
        )
    ),
)  # fmt: skip
"""Rules for a `VllmConfig`, checked in the compute process before it loads the model."""


def __getattr__(name: str) -> Any:
    if name != "Backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("spanreplay_kernels.engines._vllm_attention").Backend


def register() -> None:
    """Install our kernels in this vLLM process. No-op unless `VLLM_PLUGINS` names the plug-in, and on later calls.

    Raises: UnsupportedEngine, which ends the process, for an unknown release, outside the batch-invariant mode, and on
        a platform or GPU without plans. Checks that depend on the model run before it is loaded.
    """
    if not is_asked(os.environ.get("VLLM_PLUGINS")):
        return
    release = check_release(ENGINE, *RELEASES)
    if os.environ.get("VLLM_BATCH_INVARIANT") != "1":
        raise UnsupportedEngine(ENGINE, "its batch-invariant mode is off", hint="set VLLM_BATCH_INVARIANT=1")
    _check_platform()
    attestation.announce()
    _replace_operations()
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    registry.register_backend(registry.AttentionBackendEnum.CUSTOM, f"{__name__}.Backend")
    _watch_workers(release)


def _check_platform() -> None:
    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cuda():
        raise UnsupportedEngine(ENGINE, "its platform is not CUDA", hint="use an NVIDIA GPU")
    capability = platform.get_device_capability()
    if capability is None:
        raise UnsupportedEngine(ENGINE, "it sees no GPU", hint="give the process one")
    arch_of_capability(capability.major, capability.minor)


_stock: dict[str, Any] = {}
"""vLLM's own function for each replaced name."""


def _replace_operations() -> None:
    """Replace the functions in vLLM's own module, and in every module that has imported them by name."""
    from spanreplay_kernels.engines._replacements import NAMES, REPLACEMENTS, keep_originals

    keep_originals()
    home = importlib.import_module(OPERATIONS)
    for name in NAMES[ENGINE]:
        if getattr(home, name) is not REPLACEMENTS[name]:
            _stock[name] = getattr(home, name)
            setattr(home, name, REPLACEMENTS[name])
    for module, attribute, name in _leftovers():
        setattr(module, attribute, REPLACEMENTS[name])


def _leftovers() -> list[tuple[Any, str, str]]:
    """Return (module, attribute, name) of every stock function that a vLLM module still holds."""
    names = {id(function): name for name, function in _stock.items()}
    return [
        (module, attribute, names[id(value)])
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == ENGINE and isinstance(module, ModuleType)
        for attribute, value in list(vars(module).items())
        if id(value) in names
    ]


def _watch_workers(release: str) -> None:
    """Wrap workers: check the configuration before the model is loaded, and write an attestation after warm-up."""
    wrapper = importlib.import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    stock = wrapper.init_device
    if hasattr(stock, "__wrapped__") and stock.__module__ == __name__:
        return

    def init_device(self: Any) -> Any:
        check(ENGINE, RULES, self.vllm_config)
        importlib.import_module("spanreplay_kernels.engines._vllm_experts").replace()
        result = stock(self)
        warm_up = self.worker.compile_or_warm_up_model

        @functools.wraps(warm_up)
        def compile_or_warm_up_model(*args: Any, **kwargs: Any) -> Any:
            times = warm_up(*args, **kwargs)
            _check_replaced()
            attestation.postpone(functools.partial(_state, self, release))
            attestation.settle()
            return times

        self.worker.compile_or_warm_up_model = compile_or_warm_up_model
        return result

    init_device.__wrapped__ = stock  # type: ignore[attr-defined] # as functools.wraps would, but under our module's name
    wrapper.init_device = init_device


def _check_replaced() -> None:
    """Check that no stock function is left. Raises: UnsupportedEngine if a module would still call one."""
    if left := _leftovers():
        places = ", ".join(sorted(f"{module.__name__}.{attribute}" for module, attribute, _ in left))
        raise UnsupportedEngine(ENGINE, f"not replaced: {places}", hint="report it: this release is not covered")


def _state(wrapper: Any, release: str) -> bool:
    """Write the worker's attestation if its kernels have run; return whether it was written."""
    from spanreplay_kernels.engines._statement import Served, has_computed, state

    if not has_computed():
        return False
    config, model = wrapper.vllm_config.model_config, wrapper.worker.get_model()
    weight = next(model.parameters())
    served = Served(model, config.hf_config, config.try_get_generation_config(), weight.device, config.dtype)
    commit = getattr(config.hf_config, "_commit_hash", None)
    tokenizer = None
    if not field(config, "skip_tokenizer_init", False):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(
            config.tokenizer, revision=config.tokenizer_revision, trust_remote_code=config.trust_remote_code
        )
    state(served, engine=ENGINE, release=release, name=config.model, commit=commit, tokenizer=tokenizer)
    return True
