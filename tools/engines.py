"""What the plug-ins for vLLM and SGLang rely on, read from the wheels of an engine's newest releases.

python tools/engines.py --check   # downloads the wheels, compares with tests/kernels/engines/releases.json
python tools/engines.py           # writes that file

The file holds facts, no source: which functions there are, with which parameters, who imports them, how they are
called. A wheel of vLLM has 336 MB, too much for every run of the tests: they compare the plug-ins with the file, and
`make matrix` compares the file with the wheels. Nothing of a wheel is ever imported.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[1] / "tests" / "kernels" / "engines" / "releases.json"
RELEASES: Final = {"vllm": ("0.31.0", "0.32.0", "0.33.0"), "sglang": ("0.5.21", "0.5.22", "0.5.23")}
"""The newest three of each; the last one is what the chart runs."""
PYTHON: Final = "3.11"

_BI = "vllm.model_executor.determinism.batch_invariant"
_LAYERS = "vllm.model_executor.layers"
_WORKER = "vllm.v1.worker.worker_base:WorkerWrapperBase"
_TRITON = "vllm.v1.attention.backends.triton_attn"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.triton_moe"
_OPS = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
_SGLANG_TRITON = "sglang.srt.layers.attention.triton_backend"

SIGNATURES: Final = {
    "vllm": (
        *(f"{_BI}:{name}" for name in (
            "bmm_batch_invariant", "linear_batch_invariant", "log_softmax", "matmul_persistent",
            "rms_norm_batch_invariant", "softmax", "mm_batch_invariant", "softmax_batch_invariant",
            "_log_softmax_batch_invariant", "enable_batch_invariant_mode", "init_batch_invariance",
        )),
        f"{_TRITON}:TritonAttentionImpl.__init__", f"{_TRITON}:TritonAttentionImpl.forward",
        f"{_TRITON}:TritonAttentionImpl.fused_output_quant_supported",
        *(f"{_TRITON}:TritonAttentionBackend.{name}" for name in (
            "get_name", "get_impl_cls", "supports_batch_invariance", "supports_head_size", "supports_block_size",
            "supports_attn_type", "supports_sink", "supports_mm_prefix", "supports_rswa", "supports_alibi_sqrt",
        )),
        *(f"{_EXPERTS}:TritonExperts.{name}" for name in (
            "apply", "_supports_batch_invariance", "_supports_no_act_and_mul", "_supports_activation",
            "_supports_quant_scheme", "_supports_parallel_config",
        )),
        "vllm.model_executor.layers.fused_moe.oracle.unquantized:backend_to_kernel_cls",
        "vllm.v1.attention.backends.registry:register_backend", "vllm.plugins:load_general_plugins",
        "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device",
        "vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model", "vllm.v1.worker.gpu_worker:Worker.get_model",
        "vllm.config.model:ModelConfig.try_get_generation_config",
        "vllm.platforms.interface:Platform.get_device_capability", "vllm.platforms.interface:Platform.is_cuda",
    ),
    "sglang": (
        *(f"{_OPS}:{name}" for name in (
            "bmm_batch_invariant", "log_softmax", "matmul_persistent", "mean_dim", "rms_norm",
            "rms_norm_batch_invariant", "mean_batch_invariant", "_mm_dtype_compat", "enable_batch_invariant_mode",
        )),
        "sglang.srt.plugins:load_plugins", "sglang.srt.plugins.hook_registry:HookRegistry.register",
        "sglang.srt.plugins.hook_registry:HookRegistry.apply_hooks",
        "sglang.srt.arg_groups.attention_hook:handle_deterministic_inference",
        "sglang.srt.layers.attention.attention_registry:register_attention_backend",
        f"{_SGLANG_TRITON}:TritonAttnBackend.__init__", f"{_SGLANG_TRITON}:TritonAttnBackend.init_forward_metadata",
        f"{_SGLANG_TRITON}:TritonAttnBackend.init_forward_metadata_out_graph",
        "sglang.kernels.ops.attention.decode_attention:decode_attention_fwd",
        "sglang.kernels.ops.attention.extend_attention:extend_attention_fwd_unified",
        "sglang.srt.entrypoints.http_server:_setup_and_run_http_server",
        "sglang.srt.configs.hybrid_arch:mambaish_config",
    ),
}  # fmt: skip
"""module:function → its parameters."""

NAMES: Final = {
    "vllm": (
        "vllm.v1.attention.backends.registry:AttentionBackendEnum.CUSTOM", "vllm.platforms:current_platform",
        "vllm.model_executor.layers.fused_moe.activation:MoEActivation.SILU",
        *(f"{_TRITON}:TritonAttentionMetadata.{name}" for name in (
            "num_actual_tokens", "max_query_len", "query_start_loc", "max_seq_len", "seq_lens", "block_table", "causal",
            "mm_prefix_range_tensor", "rswa_prefix_lens",
        )),
        *(f"vllm.config.vllm:VllmConfig.{name}" for name in (
            "model_config", "cache_config", "parallel_config", "attention_config", "compilation_config", "lora_config",
            "speculative_config", "diffusion_config", "kv_transfer_config", "weight_transfer_config",
        )),
        *(f"vllm.config.model:ModelConfig.{name}" for name in (
            "model", "tokenizer", "tokenizer_revision", "trust_remote_code", "skip_tokenizer_init", "dtype",
            "hf_config", "quantization", "use_mla", "is_hybrid", "is_attention_free", "is_encoder_decoder",
            "is_multimodal_model",
        )),
        *(f"vllm.config.parallel:ParallelConfig.{name}" for name in (
            "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size",
            "decode_context_parallel_size", "nnodes", "enable_expert_parallel", "enable_dbo", "enable_hc_sp",
            "use_sequence_parallel_moe",
        )),
        "vllm.config.cache:CacheConfig.cache_dtype", "vllm.config.attention:AttentionConfig.backend",
        "vllm.config.attention:AttentionConfig.backend_per_kind", "vllm.config.compilation:PassConfig.enable_sp",
        *(f"vllm.model_executor.layers.fused_moe.config:FusedMoEQuantConfig.{name}" for name in (
            "w1_bias", "w2_bias", "gemm1_clamp_limit",
        )),
        "vllm.model_executor.layers.fused_moe.config:FusedMoEParallelConfig.use_ep",
        *(f"vllm.entrypoints.*.cli_args:{name}" for name in (
            "host", "port", "middleware", "fingerprint_mode", "fingerprint_value",
        )),
        *(f"vllm.engine.arg_utils:EngineArgs.{name}" for name in (
            "model", "revision", "tokenizer_revision", "served_model_name", "seed", "dtype", "tensor_parallel_size",
            "max_model_len", "attention_backend",
        )),
    ),
    "sglang": (
        *(f"sglang.srt.arg_groups.choices:{name}" for name in (
            "add_attention_backend_choices", "add_deterministic_attention_backend_choices",
            "add_radix_supported_deterministic_attention_backend_choices",
        )),
        *(f"sglang.srt.plugins.hook_registry:HookType.{name}" for name in ("AROUND", "BEFORE", "REPLACE")),
        "sglang.srt.entrypoints.http_server:app",
        *(f"sglang.srt.arg_groups.fields.*:{name}" for name in (
            "model_path", "revision", "served_model_name", "host", "port", "random_seed", "dtype", "tp_size",
            "context_length", "enable_deterministic_inference", "attention_backend", "prefill_attention_backend",
            "decode_attention_backend", "enable_lora", "lora_paths", "speculative_algorithm", "quantization",
            "kv_cache_dtype", "dllm_algorithm", "rl_on_policy_target", "disaggregation_mode",
            "enable_two_batch_overlap", "enable_dp_attention", "tokenizer_worker_num", "dp_size", "pp_size", "ep_size",
            "attn_cp_size", "dcp_size", "nnodes", "skip_tokenizer_init", "tokenizer_path", "trust_remote_code",
        )),
    ),
}  # fmt: skip
"""module:name or module:Class.member → whether it is there; with `*` in the module, anywhere in those modules. The
fields of `EngineArgs`, `cli_args` and `arg_groups.fields` are the flags that the chart sets, by their own names."""

IMPORTED: Final = {"vllm": _BI, "sglang": _OPS}
"""Of these modules' functions: who imports them by name, at the top of a module."""

CALLS: Final = {
    "vllm": (
        ("vllm.plugins:load_general_plugins", "func"),
        (f"{_BI}:mm_batch_invariant", "matmul_persistent"), (f"{_BI}:linear_batch_invariant", "mm_batch_invariant"),
        (f"{_BI}:softmax_batch_invariant", "softmax"), (f"{_BI}:_log_softmax_batch_invariant", "log_softmax"),
        (f"{_LAYERS}.linear:UnquantizedLinearMethod.apply", "linear_batch_invariant"),
        (f"{_LAYERS}.vocab_parallel_embedding:UnquantizedEmbeddingMethod.apply", "linear_batch_invariant"),
        (f"{_LAYERS}.layernorm:RMSNorm.*", "rms_norm_batch_invariant"),
        ("vllm.v1.worker.gpu_worker:init_worker_distributed_environment", "init_batch_invariance"),
        (f"{_WORKER}.init_device", "self.worker.init_device"),
        (f"{_WORKER}.__getattr__", "getattr"),
        (f"{_WORKER}.init_worker", "load_general_plugins"),
        (f"{_TRITON}:TritonAttentionImpl.forward", "kv_cache.transpose"),
        (f"{_TRITON}:TritonAttentionImpl.forward", "kv_cache.split"),
        (f"{_TRITON}:TritonAttentionImpl.do_kv_cache_update", "kv_cache.transpose"),
        ("vllm.entrypoints.serve.middleware.register:init_entrypoints_middleware", "app.add_middleware"),
        (f"{_LAYERS}.fused_moe.oracle.unquantized:select_unquantized_moe_backend", "backend_to_kernel_cls"),
    ),
    "sglang": (
        ("sglang.srt.plugins:load_plugins", "func"), ("sglang.srt.plugins:load_plugins", "HookRegistry.apply_hooks"),
        ("sglang.srt.plugins.hook_registry:_wrap_fn", "hook"),
        (f"{_SGLANG_TRITON}:TritonAttnBackend.forward_decode", "self.decode_attention_fwd"),
        (f"{_SGLANG_TRITON}:TritonAttnBackend.forward_extend", "self._forward_extend_unified"),
        (f"{_SGLANG_TRITON}:TritonAttnBackend._forward_extend_unified", "self.extend_attention_fwd_unified"),
        (f"{_OPS}:mm_batch_invariant", "matmul_persistent"), (f"{_OPS}:_mm_dtype_compat", "matmul_persistent"),
        (f"{_OPS}:rms_norm_batch_invariant", "rms_norm"), (f"{_OPS}:mean_batch_invariant", "mean_dim"),
        (f"{_OPS}:_log_softmax_batch_invariant", "log_softmax"),
        ("sglang.srt.arg_groups.pipeline:*", "run_hook(handle_deterministic_inference"),
        ("sglang.srt.entrypoints.http_server:launch_server", "_setup_and_run_http_server"),
        ("sglang.srt.model_executor.model_runner:ModelRunner.*", "enable_batch_invariant_mode"),
        ("sglang.srt.layers.layernorm:RMSNorm.*", "rms_norm_batch_invariant"),
    ),
}  # fmt: skip
"""(module:function, what it calls, maybe with its first argument) → each call's arguments: names and plain values as
they are, anything longer as `…`. `*` stands for all of a module or class."""

Json = dict[str, object]


class Sources:
    """The Python files of one unpacked wheel."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def modules(self, pattern: str) -> Iterator[tuple[str, ast.Module]]:
        """Every module of a name, which may end in `.*`."""
        path = pattern.replace(".", "/")
        for name in (f"{path}.py", f"{path}/__init__.py"):
            for found in sorted(self._folder.glob(name)):
                yield found.relative_to(self._folder).with_suffix("").as_posix().replace("/", "."), self._parse(found)

    @functools.lru_cache(maxsize=256)  # noqa: B019 -- the tool ends with it
    def _parse(self, path: Path) -> ast.Module:
        return ast.parse(path.read_text(encoding="utf-8"))

    def find(self, place: str) -> list[ast.AST]:
        """What defines `module:a.b`, or every statement of a module for `module:*`."""
        module, _, dotted = place.partition(":")
        found: list[ast.AST] = [tree for _, tree in self.modules(module)]
        for name in dotted.removesuffix("*").strip(".").split("."):
            if not name:
                break
            found = [node for each in found for node in _members(each) if name in _defined(node)]
        return found

    def importers(self, module: str) -> dict[str, list[str]]:
        """Function of a module → the modules that hold it under a name of theirs; nothing of inner imports."""
        found: dict[str, set[str]] = {}
        top = module.partition(".")[0]
        package, _, _ = module.rpartition(".")
        for path in sorted(self._folder.glob(f"{top}/**/*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if package.rpartition(".")[2] not in text:
                continue
            name = path.relative_to(self._folder).with_suffix("").as_posix().replace("/", ".")
            for node in self._parse(path).body:
                if isinstance(node, ast.ImportFrom) and node.module in (module, package):
                    for alias in node.names:
                        found.setdefault(alias.name, set()).add(name)
        return {name: sorted(holders) for name, holders in sorted(found.items())}


def _members(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module or class, those within `if` and `try` too."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, (ast.If, ast.Try, ast.With)):
            yield from _members(child)


def _defined(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.AnnAssign):
        return {ast.unparse(node.target)}
    if isinstance(node, ast.Assign):
        return {ast.unparse(target) for target in node.targets}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    return set()


def _parameters(node: ast.AST) -> str:
    """Names, kinds and defaults, without types."""
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    arguments = node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None:
            each.annotation = None
    return ast.unparse(arguments)


def _calls(node: ast.AST, callee: str) -> set[str]:
    function, _, first = callee.partition("(")
    return {
        ", ".join([*map(_short, call.args), *(_keyword(each) for each in call.keywords)])
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == function
        if not first or (call.args and ast.unparse(call.args[0]) == first)
    }


def _keyword(node: ast.keyword) -> str:
    return f"{node.arg}={_short(node.value)}" if node.arg else f"**{_short(node.value)}"


def _short(node: ast.expr) -> str:
    is_plain = isinstance(node, (ast.Name, ast.Constant, ast.UnaryOp, ast.Starred))
    return ast.unparse(node) if is_plain else "…"


def read_facts(engine: str, folder: Path) -> Json:
    """What the plug-in relies on, as it stands in one release."""
    sources = Sources(folder)
    places = {place: sources.find(place) for place in SIGNATURES[engine]}
    names = {name: _has(sources, name) for name in NAMES[engine]}
    calls = {
        f"{place} → {callee}": sorted({each for node in sources.find(place) for each in _calls(node, callee)})
        for place, callee in CALLS[engine]
    }
    return {
        "signatures": {place: _parameters(nodes[-1]) if nodes else None for place, nodes in places.items()},
        "names": names,
        "importers": {
            name: holders
            for name, holders in sources.importers(IMPORTED[engine]).items()
            if f"{IMPORTED[engine]}:{name}" in SIGNATURES[engine]
        },
        "calls": calls,
    }


def _has(sources: Sources, place: str) -> bool:
    module, _, name = place.partition(":")
    if "*" not in module:
        return bool(sources.find(place))
    return any(name in _defined(node) for _, tree in sources.modules(module) for node in ast.walk(tree))


def unpack(engine: str, release: str, cache: Path) -> Path:
    """The folder with a wheel's Python files, downloaded where it is not there yet."""
    folder = cache / f"{engine}-{release}"
    if not folder.is_dir():
        command = [
            sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", f"--python-version={PYTHON}", "--platform=manylinux_2_28_x86_64",
            "--platform=manylinux_2_34_x86_64", "-d", str(cache), f"{engine}=={release}",
        ]  # fmt: skip
        if not list(cache.glob(f"{engine}-{release}-*.whl")):
            subprocess.run(command, check=True)
        (wheel,) = cache.glob(f"{engine}-{release}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    return folder


def main(arguments: list[str]) -> int:
    """0 if the file is as the wheels are, or was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--wheels", type=Path, help="folder that keeps the wheels; else they are downloaded each time")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.wheels or Path(temporary)
        facts = {
            engine: {release: read_facts(engine, unpack(engine, release, cache)) for release in releases}
            for engine, releases in RELEASES.items()
        }
    text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    if not options.check:
        FILE.write_text(text, encoding="utf-8")
        return 0
    kept = FILE.read_text(encoding="utf-8")
    for line in difflib.unified_diff(kept.splitlines(), text.splitlines(), FILE.name, "wheels", lineterm="", n=1):
        print(line)  # noqa: T201 -- the tool's result
    return int(kept != text)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (subprocess.CalledProcessError, OSError) as error:
        sys.stderr.write(f"the wheels of the engines cannot be had here, nothing was compared: {error}\n")
        sys.exit(2)
