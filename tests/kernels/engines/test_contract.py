"""Names, signatures and callers that the plug-ins rely on exist in each engine's newest releases, by their sources.

`releases.json` was read from the wheels by `tools/engines.py`, and `make matrix` reads it again: a wheel of vLLM is
336 MB, too large for each run.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.engines.stubs import NEWEST, RELEASES, write_vllm
from spanreplay_kernels.engines import sglang, vllm
from spanreplay_kernels.engines._replacements import NAMES, REPLACEMENTS

ENGINES = {"vllm": vllm, "sglang": sglang}
ALL = [(engine, release) for engine, releases in RELEASES.items() for release in releases]
COVERED = [
    (engine, release)
    for engine, release in ALL
    if tuple(map(int, release.split(".")))[: len(ENGINES[engine].RELEASES[0])] >= ENGINES[engine].RELEASES[0]
]
MISSING = {
    ("vllm", "0.31.0"): "vllm.model_executor.determinism.batch_invariant:softmax",
}
"""Releases among the newest three that a plug-in refuses, and the missing name."""


def _facts(engine: str, release: str) -> dict[str, Any]:
    facts: dict[str, Any] = RELEASES[engine][release]
    return facts


def _parameters(text: str) -> inspect.Signature:
    """A signature from the file, with the text of each default."""
    function: Callable[..., Any] = eval(f"lambda {text}: None")  # noqa: S307 -- of our own file
    return inspect.signature(function)


def _accepts(ours: Callable[..., Any], theirs: str, *, is_method: bool = False) -> None:
    """Assert that every call that fits theirs fits ours, by position and by name, with the same defaults."""
    wanted = list(_parameters(theirs).parameters.values())
    found = list(inspect.signature(ours).parameters.values())
    if is_method:
        assert (wanted.pop(0).name, found.pop(0).name) in {("self", "self"), ("cls", "cls")}
    for mine, other in zip(found, wanted, strict=False):
        assert (mine.name, mine.kind) == (other.name, other.kind)
        assert mine.default == other.default or (other.default is inspect.Parameter.empty), mine.name
    assert len(found) >= len(wanted), [each.name for each in wanted[len(found) :]]
    for more in found[len(wanted) :]:
        assert more.kind is inspect.Parameter.KEYWORD_ONLY or more.default is not inspect.Parameter.empty, more.name


@pytest.mark.parametrize("engine", ENGINES)
def test_k12_the_newest_three_releases_were_read(engine: str) -> None:
    """The file has three releases; a plug-in accepts those that have all it needs, and no newer one."""
    assert len(RELEASES[engine]) == 3
    newest = tuple(map(int, NEWEST[engine].split(".")))
    assert newest[: len(ENGINES[engine].RELEASES[1])] == ENGINES[engine].RELEASES[1]
    refused = [release for each, release in ALL if each == engine and (each, release) not in COVERED]
    assert refused == [release for each, release in MISSING if each == engine]
    for release in refused:
        assert _facts(engine, release)["signatures"][MISSING[engine, release]] is None


OPTIONAL = {
    "vllm.config.parallel:ParallelConfig.enable_hc_sp", "vllm.config.compilation:PassConfig.enable_sp",
}  # fmt: skip
"""Settings that some releases do not have: the rule then treats them as off."""


@pytest.mark.parametrize(("engine", "release"), COVERED)
def test_k12_every_name_and_caller_is_there(engine: str, release: str) -> None:
    """Each name exists, and each function is called where and as the plug-in expects."""
    facts = _facts(engine, release)
    assert [place for place, found in facts["signatures"].items() if found is None] == []
    assert [place for place, found in facts["names"].items() if not found and place not in OPTIONAL] == []
    assert [place for place, found in facts["calls"].items() if not found] == []


@pytest.mark.parametrize(("engine", "release"), COVERED)
def test_k12_replacements_take_what_the_stock_functions_take(engine: str, release: str) -> None:
    """Parameters by position and by name, and their defaults, match the function that is replaced."""
    for name in NAMES[engine]:
        place = f"{ENGINES[engine].OPERATIONS}:{name}"
        _accepts(REPLACEMENTS[name], _facts(engine, release)["signatures"][place])


def test_k12_who_imports_a_replaced_function_by_name_is_known() -> None:
    """The modules that import a stock function by name are known, and the stand-in packages do the same."""
    assert _facts("vllm", NEWEST["vllm"])["importers"] == {
        "linear_batch_invariant": [
            "vllm.model_executor.layers.linear", "vllm.model_executor.layers.vocab_parallel_embedding",
        ],
        "rms_norm_batch_invariant": ["vllm.model_executor.layers.layernorm"],
    }  # fmt: skip
    assert _facts("sglang", NEWEST["sglang"])["importers"] == {
        "rms_norm_batch_invariant": ["sglang.srt.layers.layernorm"]
    }


CONFIGS = {
    "model_config": "vllm.config.model:ModelConfig", "cache_config": "vllm.config.cache:CacheConfig",
    "parallel_config": "vllm.config.parallel:ParallelConfig",
    "attention_config": "vllm.config.attention:AttentionConfig", "pass_config": "vllm.config.compilation:PassConfig",
}  # fmt: skip


def test_k12_rules_read_settings_that_exist() -> None:
    """Each path in the tables of refusals exists in the releases; a misspelt one would refuse nothing."""
    names = _facts("vllm", NEWEST["vllm"])["names"]
    for rule in vllm.RULES:
        *owners, name = rule.path.split(".")
        owner = CONFIGS[owners[-1]] if owners else "vllm.config.vllm:VllmConfig"
        assert f"{owner}.{name}" in names, rule.path
    names = _facts("sglang", NEWEST["sglang"])["names"]
    for rule in sglang.RULES:
        assert f"sglang.srt.arg_groups.fields.*:{rule.path}" in names, rule.path


@pytest.mark.parametrize(("engine", "release"), COVERED)
def test_k12_subclasses_answer_the_engines_calls(engine: str, release: str, fake_vllm: Any, fake_sglang: Any) -> None:
    """Each method of our classes that overrides an engine's has its parameters."""
    signatures = _facts(engine, release)["signatures"]
    if engine == "sglang":
        from spanreplay_kernels.engines import _sglang_attention as attention

        _accepts(attention.decode, signatures["sglang.kernels.ops.attention.decode_attention:decode_attention_fwd"])
        _accepts(
            attention.extend, signatures["sglang.kernels.ops.attention.extend_attention:extend_attention_fwd_unified"]
        )
        return
    from spanreplay_kernels.engines import _vllm_attention, _vllm_experts

    for ours, theirs in (
        (_vllm_attention.Impl, "vllm.v1.attention.backends.triton_attn:TritonAttentionImpl"),
        (_vllm_attention.Backend, "vllm.v1.attention.backends.triton_attn:TritonAttentionBackend"),
        (_vllm_experts.Experts, "vllm.model_executor.layers.fused_moe.experts.triton_moe:TritonExperts"),
    ):
        for name, method in vars(ours).items():
            place = f"{theirs}.{name}"
            if name.startswith("__") or not (callable(method) or isinstance(method, (staticmethod, classmethod))):
                continue
            assert signatures.get(place) is not None, place
            function = method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
            _accepts(function, signatures[place], is_method=not isinstance(method, staticmethod))


@pytest.mark.parametrize("release", RELEASES["sglang"])
def test_k12_sglang_wraps_hooks_as_the_check_expects(release: str) -> None:
    """A hook is called by an enclosing function: with all arguments, after the result, or with the original."""
    found = _facts("sglang", release)["calls"]["sglang.srt.plugins.hook_registry:_wrap_fn → hook"]
    assert found == ["*args, **kwargs", "original_fn, *args, **kwargs", "result, *args, **kwargs"]


def test_k12_the_tool_sees_what_a_release_changes(tmp_path: Path) -> None:
    """In a package's sources the tool finds parameters, importers and calls; of renamed things it finds nothing."""
    path = Path(__file__).parents[3] / "tools" / "engines.py"
    spec = importlib.util.spec_from_file_location("tools_engines", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    place, home = "vllm.model_executor.determinism.batch_invariant:linear_batch_invariant", write_vllm(tmp_path)
    found = tool.read_facts("vllm", home)
    assert found["signatures"][place] == "input, weight, bias=None"
    assert found["importers"] == _facts("vllm", NEWEST["vllm"])["importers"]
    assert found["names"]["vllm.v1.attention.backends.registry:AttentionBackendEnum.CUSTOM"]
    worker = "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device → self.worker.init_device"
    assert found["calls"][worker] == [""]
    module = home / "vllm/model_executor/determinism/batch_invariant.py"
    module.write_text(module.read_text(encoding="utf-8").replace("def linear_batch", "def linear_"), encoding="utf-8")
    found = tool.read_facts("vllm", home)
    assert found["signatures"][place] is None
