"""The SGLang plug-in: SGLang's deterministic inference, with its kernels replaced by ours.

Entry point of the group `sglang.srt.plugins`, called in every process of SGLang. It acts only if `SGLANG_PLUGINS` names
`spanreplay`; importing this module does nothing, and imports neither SGLang nor torch. SGLang only logs a plug-in's
exceptions and hooks that don't apply, and continues without them. So a refusal is a SystemExit here, and hooks are
checked as soon as they are applied.

    SGLANG_PLUGINS=spanreplay python -m sglang.launch_server … --enable-deterministic-inference \\
        --attention-backend spanreplay
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable
from typing import Any, Final

from spanreplay_kernels.engines import attestation
from spanreplay_kernels.engines._rules import PLUGIN, Rule, check, check_release, is_asked
from spanreplay_kernels.errors import KernelError, UnsupportedEngine

__all__ = ["RELEASES", "RULES", "register"]

ENGINE: Final = "sglang"
RELEASES: Final = ((0, 5, 21), (0, 5, 23))
"""First and last release whose names, signatures and callers were checked (`tools/engines.py`)."""
OPERATIONS: Final = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
RESOLUTION: Final = "sglang.srt.arg_groups.attention_hook.handle_deterministic_inference"
SERVER: Final = "sglang.srt.entrypoints.http_server"

_STOCK = "run it without the plug-in, with SGLang's own deterministic inference"


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


RULES: Final = (
    Rule("enable_deterministic_inference", _is(True), "start with --enable-deterministic-inference", absent=False),
    Rule("attention_backend", _is(PLUGIN), f"start with --attention-backend {PLUGIN}"),
    Rule("prefill_attention_backend", _is(None, PLUGIN), "choose one attention backend for all"),
    Rule("decode_attention_backend", _is(None, PLUGIN), "choose one attention backend for all"),
    Rule("enable_lora", _is(None, False), "serve the model without LoRA"),
    Rule("lora_paths", lambda value: not value, "serve the model without LoRA"),
    Rule("speculative_algorithm", _is(None), "leave out --speculative-algorithm"),
    Rule("quantization", _is(None), "serve a model that is not quantised"),
    Rule("kv_cache_dtype", _is(None, "auto", "bf16", "bfloat16"), "leave out --kv-cache-dtype"),
    Rule("dllm_algorithm", _is(None), _STOCK),
    Rule("rl_on_policy_target", _is(None), _STOCK),
    Rule("disaggregation_mode", _is(None, "null"), "prefill and decode in one server"),
    Rule("enable_two_batch_overlap", _is(None, False), "leave out --enable-two-batch-overlap"),
    Rule("enable_dp_attention", _is(None, False), "leave out --enable-dp-attention"),
    Rule("tokenizer_worker_num", _is(None, 1), "leave out --tokenizer-worker-num: other servers state no line"),
    *(
        Rule(name, _is(1), "split the model by tensors, on one node, and nothing else", absent=1)
        for name in ("dp_size", "pp_size", "ep_size", "attn_cp_size", "dcp_size", "nnodes")
    ),
)
"""Rules for a `ServerArgs`, checked in the process that reads it."""

MODEL_RULES: Final = (
    Rule("model_config.quantization", _is(None), "serve a model that is not quantised"),
    Rule("use_mla_backend", _is(None, False), _STOCK),
    Rule("sliding_window_size", lambda value: value is None or value < 0, _STOCK),
    Rule("model_config.is_encoder_decoder", _is(None, False), _STOCK),
    Rule("model_config.is_multimodal", _is(None, False), _STOCK),
    Rule("is_draft_worker", _is(None, False), "leave out --speculative-algorithm"),
)
"""Rules for a `ModelRunner`, checked in the compute process."""


def register() -> None:
    """Install our kernels in this SGLang process. No-op unless `SGLANG_PLUGINS` names the plug-in.

    Raises: SystemExit, the only exception that ends the process, for an unknown release and for hooks that didn't take
        effect. The server's arguments are checked when they are read, and refused by SystemExit too.
    """
    if not is_asked(os.environ.get("SGLANG_PLUGINS")):
        return
    try:
        check_release(ENGINE, *RELEASES)
        attestation.announce()
        _add_backend()
        hooks = _hooks()
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        for target, (hook, kind) in hooks.items():
            registry.HookRegistry.register(target, hook, getattr(registry.HookType, kind))
        registry.HookRegistry.apply_hooks()
        _check_applied(hooks)
    except Exception as error:
        # Any exception: SGLang would log it and compute without our kernels
        raise SystemExit(f"spanreplay: {_said(error)}") from error


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, KernelError) else f"{type(error).__name__}: {error}"


def _hooks() -> dict[str, tuple[Callable[..., Any], str]]:
    """Return target → (our function, kind of hook)."""
    from spanreplay_kernels.engines._replacements import NAMES, REPLACEMENTS, keep_originals

    keep_originals()
    hooks: dict[str, tuple[Callable[..., Any], str]] = {
        f"{OPERATIONS}.{name}": (REPLACEMENTS[name], "REPLACE") for name in NAMES[ENGINE]
    }
    hooks[RESOLUTION] = (_check_arguments, "AROUND")
    if multiprocessing.parent_process() is None:  # other processes serve nothing, and would import a server
        hooks[f"{SERVER}._setup_and_run_http_server"] = (_add_header, "BEFORE")
    return hooks


def _check_applied(hooks: dict[str, tuple[Callable[..., Any], str]]) -> None:
    """Check the hooks. Raises: UnsupportedEngine unless each target calls our function, however SGLang wraps it."""
    missed = []
    for target, (hook, _) in hooks.items():
        module, _, name = target.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        held = [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
        if found is not hook and not any(each is hook for each in held):
            missed.append(target)
    if missed:
        problem = f"hooks that do not hold: {', '.join(missed)}"
        raise UnsupportedEngine(ENGINE, problem, hint="take other plug-ins off SGLANG_PLUGINS, or report it")


def _add_backend() -> None:
    """Register our attention backend, and add its name to each list of choices that SGLang checks."""
    choices = importlib.import_module("sglang.srt.arg_groups.choices")
    for add in (
        choices.add_attention_backend_choices,
        choices.add_deterministic_attention_backend_choices,
        choices.add_radix_supported_deterministic_attention_backend_choices,
    ):
        add([PLUGIN])
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    registry.register_attention_backend(PLUGIN)(_make_backend)


def _make_backend(runner: Any) -> Any:
    """Return the attention backend of a model runner, in the compute process."""
    check(ENGINE, MODEL_RULES, runner)
    if importlib.import_module("sglang.srt.configs.hybrid_arch").mambaish_config(runner.model_config) is not None:
        raise UnsupportedEngine(ENGINE, "the model has layers that are not attention under a mask", hint=_STOCK)
    from spanreplay_kernels.engines._sglang_attention import Backend

    return Backend(runner)


def _check_arguments(stock: Callable[[Any], Any], server_args: Any) -> Any:
    """Check the arguments, then let SGLang resolve its deterministic mode."""
    try:
        check(ENGINE, RULES, server_args)
    except UnsupportedEngine as error:
        raise SystemExit(f"spanreplay: {error}") from error
    return stock(server_args)


def _add_header(*_args: Any, **_kwargs: Any) -> None:
    """Add the determinism line to each response; called before the server starts."""
    importlib.import_module(SERVER).app.add_middleware(attestation.Header)
