"""Packages that stand in for vLLM and SGLang, which need a GPU: the registries of each, with the true signatures.

They contain only what a plug-in meets: its callers, the functions that it replaces, the classes that it
subclasses. The signatures come from `releases.json`, which shows that the names are the engines' own.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, Final

RELEASES: Final[dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "releases.json").read_text(encoding="utf-8")
)
"""Engine → release → facts read by `tools/engines.py`."""
NEWEST: Final = {engine: list(releases)[-1] for engine, releases in RELEASES.items()}


def signature(engine: str, place: str, release: str = "") -> str:
    """The parameters of `module:function` in a release, the newest by default."""
    return str(RELEASES[engine][release or NEWEST[engine]]["signatures"][place])


def _write(root: Path, module: str, source: str) -> None:
    path = root / (module.replace(".", "/") + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.relative_to(root).parents:
        if parent != Path() and not (root / parent / "__init__.py").exists():
            (root / parent / "__init__.py").touch()
    path.write_text("from __future__ import annotations\n" + textwrap.dedent(source), encoding="utf-8")


def _distribution(root: Path, name: str, release: str) -> None:
    folder = root / f"{name}-{release}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n", encoding="utf-8")


def _stock(engine: str, module: str, names: tuple[str, ...]) -> str:
    functions = (f"def {name}({signature(engine, f'{module}:{name}')}):\n    return 'stock'\n" for name in names)
    return "\n".join(functions)


_TRITON: Final = "vllm.v1.attention.backends.triton_attn"
_EXPERTS: Final = "vllm.model_executor.layers.fused_moe.experts.triton_moe"
_VLLM: Final[dict[str, str]] = {
    "vllm.plugins": """
        import os
        from importlib.metadata import entry_points

        def load_general_plugins():
            allowed = os.environ.get("VLLM_PLUGINS")
            for point in entry_points(group="vllm.general_plugins"):
                if allowed is None or point.name in allowed.split(","):
                    try:
                        function = point.load()
                    except Exception as error:
                        print("swallowed", error)
                        continue
                    function()
    """,
    "vllm.platforms": """
        import os
        from typing import NamedTuple

        class DeviceCapability(NamedTuple):
            major: int
            minor: int

        class Platform:
            def is_cuda(self):
                return os.environ.get("STUB_GPU", "9.0") != "rocm"

            def get_device_capability(self, device_id=0):
                stated = os.environ.get("STUB_GPU", "9.0")
                return DeviceCapability(*map(int, stated.split("."))) if stated != "none" else None

        current_platform = Platform()
    """,
    "vllm.v1.attention.backends.registry": """
        from enum import Enum

        OVERRIDES = {}

        class AttentionBackendEnum(Enum):
            TRITON_ATTN = "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"
            CUSTOM = None

        def register_backend(backend, class_path=None, is_mamba=False):
            OVERRIDES[backend.name] = class_path
    """,
    "vllm.v1.worker.worker_base": """
        class WorkerWrapperBase:
            def __init__(self, worker, vllm_config):
                self.worker, self.vllm_config = worker, vllm_config

            def init_device(self):
                self.worker.init_device()

            def __getattr__(self, attr):
                return getattr(self.worker, attr)
    """,
    _EXPERTS: """
        class TritonExperts:
            def __init__(self, moe_config, quant_config):
                self.quant_config = quant_config
    """,
    "vllm.model_executor.layers.fused_moe.activation": """
        from enum import Enum

        class MoEActivation(Enum):
            SILU = 'silu'
            GELU = 'gelu'
    """,
    "vllm.model_executor.layers.fused_moe.oracle.unquantized": f"""
        from {_EXPERTS} import TritonExperts

        def backend_to_kernel_cls(backend):
            return [TritonExperts] if backend == "TRITON" else [int]
    """,
}
"""Module → source, for modules without a signature of the engine's."""
_IMPORTED: Final = (
    ("linear", "linear_batch_invariant"),
    ("vocab_parallel_embedding", "linear_batch_invariant"),
    ("layernorm", "rms_norm_batch_invariant"),
)
"""Layers that import a function of the engine by name."""


def write_vllm(root: Path, release: str = "") -> Path:
    """Write a package `vllm` into a folder to be put on the path."""
    home = "vllm.model_executor.determinism.batch_invariant"
    init = signature("vllm", f"{_TRITON}:TritonAttentionImpl.__init__").replace("AttentionType.DECODER", "'decoder'")
    _distribution(root, "vllm", release or NEWEST["vllm"])
    for module, source in _VLLM.items():
        _write(root, module, source)
    names = ("bmm_batch_invariant", "linear_batch_invariant", "log_softmax", "matmul_persistent")
    _write(root, home, _stock("vllm", home, (*names, "rms_norm_batch_invariant", "softmax")))
    for module, name in _IMPORTED:
        _write(root, f"vllm.model_executor.layers.{module}", f"from {home} import {name}\n")
    _write(
        root,
        _TRITON,
        f"""
        class TritonAttentionImpl:
            def __init__({init}):
                self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
                self.num_kv_heads, self.alibi_slopes, self.attn_type = num_kv_heads, alibi_slopes, attn_type
                self.sliding_window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
                self.kv_cache_dtype, self.sinks, self.chunk_lookback = kv_cache_dtype, sinks, chunk_lookback
                self.logits_soft_cap = logits_soft_cap or 0

        class TritonAttentionBackend:
            @classmethod
            def supports_head_size(cls, head_size):
                return head_size >= 32

            @classmethod
            def supports_block_size(cls, block_size):
                return block_size is None or block_size % 16 == 0
        """,
    )
    return root


_HOOKS: Final = "sglang.srt.plugins.hook_registry"
_BACKEND: Final = "sglang.srt.layers.attention.triton_backend"
_SERVER: Final = "sglang.srt.entrypoints.http_server"
_SGLANG: Final[dict[str, str]] = {
    _HOOKS: """
        import functools
        import importlib
        from enum import Enum

        class HookType(Enum):
            BEFORE = "before"
            AFTER = "after"
            AROUND = "around"
            REPLACE = "replace"

        class HookRegistry:
            hooks = {}
            patched = set()

            @classmethod
            def register(REGISTER):
                cls.hooks[target] = (hook, hook_type)

            @classmethod
            def apply_hooks(cls):
                for target in cls.hooks.keys() - cls.patched:
                    try:
                        if LOSES_HOOKS and target.endswith(".rms_norm"):
                            raise AttributeError(target)
                        module, _, name = target.rpartition(".")
                        module = importlib.import_module(module)
                        setattr(module, name, wrap(getattr(module, name), *cls.hooks[target]))
                        cls.patched.add(target)
                    except Exception as error:
                        print("logged", type(error).__name__)

        def wrap(original, hook, kind):
            @functools.wraps(original)
            def wrapper(*args, **kwargs):
                if kind is HookType.REPLACE:
                    return hook(*args, **kwargs)
                if kind is HookType.AROUND:
                    return hook(original, *args, **kwargs)
                args, kwargs = hook(*args, **kwargs) or (args, kwargs)
                return original(*args, **kwargs)

            return wrapper
    """,
    "sglang.srt.plugins.__init__": """
        import os
        from importlib.metadata import entry_points

        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        def load_plugins():
            allowed = os.environ.get("SGLANG_PLUGINS")
            for point in entry_points(group="sglang.srt.plugins"):
                if not allowed or point.name in allowed.split(","):
                    try:
                        point.load()()
                    except Exception as error:
                        print("logged", error)
            HookRegistry.apply_hooks()
    """,
    "sglang.srt.arg_groups.choices": """
        CHOICES, DETERMINISTIC, RADIX = [], [], []
        add_attention_backend_choices = CHOICES.extend
        add_deterministic_attention_backend_choices = DETERMINISTIC.extend
        add_radix_supported_deterministic_attention_backend_choices = RADIX.extend
    """,
    "sglang.srt.arg_groups.attention_hook": """
        def handle_deterministic_inference(server_args):
            return 'resolved'
    """,
    "sglang.srt.configs.hybrid_arch": """
        def mambaish_config(config):
            return getattr(config, 'mamba', None)
    """,
    "sglang.srt.layers.attention.attention_registry": """
        ATTENTION_BACKENDS = {}

        def register_attention_backend(name):
            def decorator(fn):
                ATTENTION_BACKENDS[name] = fn
                return fn

            return decorator
    """,
    _BACKEND: """
        class TritonAttnBackend:
            def __init__(INIT):
                self.enable_deterministic = model_runner.deterministic
                self.max_context_len, self.page_size = model_runner.longest, model_runner.page_size
                self.batches = 0

            def init_forward_metadata(self, forward_batch):
                self.batches += 1

            def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
                self.batches += 1
    """,
    _SERVER: """
        class App:
            def __init__(self):
                self.middleware = []

            def add_middleware(self, each):
                self.middleware.append(each)

        app = App()

        def _execute_server_warmup():
            pass

        def _setup_and_run_http_server(SERVE):
            return [each.__name__ for each in app.middleware]
    """,
}
"""Module → source; words in capitals are replaced by facts of a release, or by a test's settings."""


def write_sglang(root: Path, release: str = "", *, loses_hooks: bool = False) -> Path:
    """Write a package `sglang` into a folder to be put on the path; loses_hooks: hooks are logged as failed."""
    home = "sglang.srt.batch_invariant_ops.batch_invariant_ops"
    said = {
        "REGISTER": signature("sglang", f"{_HOOKS}:HookRegistry.register"),
        "INIT": signature("sglang", f"{_BACKEND}:TritonAttnBackend.__init__"),
        "SERVE": signature("sglang", f"{_SERVER}:_setup_and_run_http_server"),
        "LOSES_HOOKS": str(loses_hooks),
    }
    _distribution(root, "sglang", release or NEWEST["sglang"])
    names = ("bmm_batch_invariant", "log_softmax", "matmul_persistent", "mean_dim", "rms_norm")
    _write(root, home, _stock("sglang", home, names))
    for module, source in _SGLANG.items():
        for word, meant in said.items():
            source = source.replace(word, meant)
        _write(root, module, source)
    return root
