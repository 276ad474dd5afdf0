"""The chart of inference pods: values that it refuses, settings of its pods, and the life of a release."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import re
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spanreplay_kernels import probe
from spanreplay_kernels.engines import sglang, vllm
from support.helm import CHARTS, ROOT, Object, containers, helm, labels, matches, pods, refuse, render, value_files
from support.kube import KubeApi

CHART = "spanreplay-inference"
ALL = CHARTS / CHART / "ci" / "all.yaml"
OPENSHIFT = CHARTS / CHART / "ci" / "openshift.yaml"
VLLM = CHARTS / CHART / "examples" / "vllm.yaml"
COMMIT = "0" * 40
GOOD = {"model": "org/model", "revision": COMMIT, "gpuProduct": "NVIDIA-H200"}


def _with(**changed: Any) -> str:
    """One model `m` in the form of --set-json; None omits a key."""
    return "models.m=" + json.dumps({k: v for k, v in {**GOOD, **changed}.items() if v is not None})


BAD_MODELS = {
    "no model": ("models={}", "models is empty"),
    "no revision": (_with(revision=None), "models.m: revision is required"),
    "no name of the model": (_with(model=None), "models.m: model is required"),
    "a branch as revision": (_with(revision="main"), "models.m.revision: Does not match pattern"),
    "a key that does not exist": (_with(gpu=1), "Additional property gpu is not allowed"),
    "an unknown engine": (_with(engine="tgi"), '"vllm", "sglang", "transformers"'),
    "an unknown dtype": (_with(dtype="int8"), '"bfloat16", "float16", "float32"'),
    "GPUs without product": (_with(gpuProduct=None), "models.m.gpuProduct is required with GPUs"),
    "vLLM on the CPU": (_with(gpus=0), "models.m.gpus=0 needs engine=transformers"),
    "transformers without image": (_with(engine="transformers"), "images.transformers.repository is required"),
    "a claim without name": (_with(cache={"type": "existingClaim"}), "models.m.cache.existingClaim is required"),
    "a claim for one pod under two": (_with(replicas=2, cache={"type": "pvc"}), "must be ReadWriteMany"),
    "a surge": (_with(strategy="RollingUpdate"), '"Recreate", "OneByOne"'),
    "attention beside the plug-in's": (_with(attentionBackend="FLASH_ATTN"), "the plug-in brings its own"),
    "a line from an engine that states none": (
        _with(kernels={"plugin": False, "expectedLine": "plan=1"}),
        "models.m.kernels.expectedLine needs kernels.plugin=true: vllm states no line by itself",
    ),
    "a startup of no time": (_with(startup={"maxSeconds": 1}), "Must be greater than or equal to 60"),
    "shared memory that Kubernetes can't read": (_with(shmSize="8 GB"), "models.m.shmSize: Does not match pattern"),
    "a product that no label says": (_with(gpuProduct="NVIDIA H200"), "models.m.gpuProduct: Does not match pattern"),
    "a resource without domain": (_with(gpuResource="gpu"), "models.m.gpuResource: Does not match pattern"),
    "no prompt to warm up with": (_with(startup={"warmUpTokens": []}), "warmUpTokens: Array must have at least 1 item"),
    "a line of two lines": (_with(kernels={"expectedLine": "a\nb"}), "expectedLine: Does not match pattern"),
    "a backend with a blank": (_with(attentionBackend="A B"), "models.m.attentionBackend: Does not match pattern"),
    "a model with a blank": (_with(model="org/my model"), "models.m.model: Does not match pattern"),
    "the name of helm's test": (
        "models.test=" + json.dumps(GOOD),
        "models.test: that name belongs",
    ),
    "transformers on two GPUs": (_with(engine="transformers", gpus=2), "models.m.gpus: transformers serves on one GPU"),
    "transformers with another's attention": (
        _with(engine="transformers", attentionBackend="FLASH_ATTN"),
        "attentionBackend and maxModelLen are of vllm",
    ),
    "transformers with another's limit": (
        _with(engine="transformers", maxModelLen=4096),
        "models.m: attentionBackend and maxModelLen are of vllm",
    ),
    "a name with capitals": ('models.Qwen={"model": "a"}', "Property name"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_h3_bad_models_are_refused_readably(case: str) -> None:
    """Each bad model is refused before anything is sent, and the message names the key."""
    sets, message = BAD_MODELS[case]
    assert message in refuse(CHART, sets)


def test_h3_latest_is_refused() -> None:
    """An image tagged latest is refused: tomorrow it is another one."""
    assert "images.vllm.tag: latest is refused" in refuse(CHART, _with(), 'images.vllm.tag="latest"')


def _deployments(values: Path) -> dict[str, Object]:
    objects = [item for item in render(CHART, values) if item["kind"] == "Deployment"]
    return {labels(item)["app.kubernetes.io/component"]: item for item in objects}


def _engine(deployment: Object) -> Object:
    return next(c for c in containers(deployment["spec"]["template"]) if c["name"] == "engine")


def test_h3_a_deployment_has_one_product_and_no_spare_gpu() -> None:
    """Every pod of a model is pinned to one GPU product, and an update never needs an extra GPU."""
    for name, deployment in {**_deployments(ALL), **_deployments(VLLM)}.items():
        spec = deployment["spec"]["template"]["spec"]
        assert spec["nodeSelector"]["nvidia.com/gpu.product"], name
        assert int(_engine(deployment)["resources"]["limits"]["nvidia.com/gpu"]) >= 1
        strategy = deployment["spec"]["strategy"]
        assert strategy["type"] == "Recreate" or strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


OTHER_BITS: dict[str, dict[str, Any]] = {
    "the commit": {"revision": "1" * 40},
    "the engine": {"engine": "sglang"},
    "the type": {"dtype": "float16"},
    "the number of GPUs": {"gpus": 2},
    "the product": {"gpuProduct": "NVIDIA-L40S"},
    "the plug-in": {"kernels": {"plugin": False}},
    "an argument": {"extraArgs": ["--enforce-eager"]},
    "a variable": {"extraEnv": [{"name": "VLLM_X", "value": "1"}]},
    "the length": {"maxModelLen": 4096},
}
SAME_BITS: dict[str, dict[str, Any]] = {
    "memory": {"resources": {"limits": {"memory": "80Gi"}}},
    "a label": {"podLabels": {"a": "b"}},
    "a toleration": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "the time of a start": {"startup": {"maxSeconds": 3600}},
}


@pytest.mark.parametrize("change", [*OTHER_BITS, *SAME_BITS])
def test_h3_an_update_never_serves_two_kinds_of_answers(change: str) -> None:
    """A Service sends to pods of one kind: a change that affects the bits excludes the old pods, any other does not."""
    before, after = (
        render(CHART, sets=(_with(strategy="OneByOne", replicas=2, **more),))
        for more in ({}, {**OTHER_BITS, **SAME_BITS}[change])
    )
    old, new = ({item["kind"]: item for item in objects} for objects in (before, after))
    assert old["Deployment"]["spec"]["selector"] == new["Deployment"]["spec"]["selector"]
    for mine, other in ((old, new), (new, old)):
        selector = mine["Service"]["spec"]["selector"]
        assert matches(selector, mine["Deployment"]["spec"]["template"])
        assert matches(selector, other["Deployment"]["spec"]["template"]) == (change in SAME_BITS)


def test_h3_another_image_is_another_kind_of_answers() -> None:
    """Changing the engine's or the kernels' image counts as well."""
    selectors = [
        next(i["spec"]["selector"] for i in render(CHART, sets=(_with(), *more)) if i["kind"] == "Service")
        for more in ((), ('images.vllm.tag="v0.32.0"',), ('images.kernels.tag="0.1.1"',))
    ]
    assert len({json.dumps(each) for each in selectors}) == 3


def test_h3_a_pod_has_its_startup_budget_and_is_ready_by_a_completion() -> None:
    """Loading gets its configured seconds; readiness asks for a completion, and for its line where there is one."""
    deployments = _deployments(ALL)
    for name, deployment in deployments.items():
        engine = _engine(deployment)
        startup = engine["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800, name
        assert deployment["spec"]["progressDeadlineSeconds"] > 1800
        assert startup["timeoutSeconds"] > probe.TIMEOUT_S
        for command in (startup["exec"]["command"], engine["readinessProbe"]["exec"]["command"]):
            assert command[:3] == ["python3", "-m", "spanreplay_kernels.probe"]
            options = probe._parse(command[3:])
            served = "/cache/models/c" if name == "c" else name  # transformers' server accepts no other name
            assert (options.url, options.model) == ("http://127.0.0.1:8000", served)
            assert options.header, "no line, no readiness"
    assert probe._parse(_engine(deployments["a"])["startupProbe"]["exec"]["command"][3:]).tokens == [1, 16, 128, 512]
    (stock,) = _deployments(OPENSHIFT).values()
    assert not probe._parse(_engine(stock)["readinessProbe"]["exec"]["command"][3:]).header
    (cpu,) = _deployments(CHARTS / CHART / "examples" / "transformers-cpu.yaml").values()
    asked = probe._parse(_engine(cpu)["readinessProbe"]["exec"]["command"][3:]).model
    assert re.fullmatch(r"Qwen/Qwen3-0.6B@[0-9a-f]{40}", asked)
    expected = probe._parse(_engine(deployments["c"])["readinessProbe"]["exec"]["command"][3:]).expect
    assert expected == "kernels=0.1.0; engine=transformers-5.23.0"


@pytest.mark.parametrize("values", value_files(CHART), ids=lambda path: path.stem)
def test_h3_the_pod_of_helm_test_asks_what_the_probe_understands(values: Path) -> None:
    """The test pod's arguments parse, ask the model's own Service by its served name, and expect the pods' line."""
    objects = render(CHART, values)
    services = {
        f"http://{i['metadata']['name']}:{i['spec']['ports'][0]['port']}" for i in objects if i["kind"] == "Service"
    }
    ready = {}
    for deployment in _deployments(values).values():
        options = probe._parse(_engine(deployment)["readinessProbe"]["exec"]["command"][3:])
        ready[options.model] = (options.header, options.expect)
    asked = {}
    for owner, pod in pods(objects):
        if owner.startswith("Pod/"):
            (container,) = containers(pod)
            assert container["command"] == ["python", "-m", probe.__spec__.name]
            options = probe._parse(container["args"])
            assert (options.check, options.prompts) == (probe.check_invariance, 50)
            asked[options.url] = (options.model, options.header, options.expect)
    assert asked.keys() == services
    assert {model: rest for model, *rest in asked.values()} == {model: [*line] for model, line in ready.items()}


def test_h3_everything_written_lies_on_the_cache_or_in_memory() -> None:
    """Home, weights and compiled kernels are on the volume; shared memory is in memory; the root is read-only."""
    for deployment in _deployments(ALL).values():
        engine = _engine(deployment)
        environ = {variable["name"]: variable.get("value", "") for variable in engine["env"]}
        for name in ("HOME", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"):
            assert environ[name].startswith("/cache/"), name
        mounts = {mount["mountPath"]: mount["name"] for mount in engine["volumeMounts"]}
        assert {"/cache", "/dev/shm", "/tmp"} <= mounts.keys()
        volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def test_h3_engines_are_told_to_be_deterministic() -> None:
    """Each engine gets the model at its commit, one seed, its own invariant mode, and only flags that it knows."""
    engines = {name: _engine(deployment) for name, deployment in _deployments(ALL).items()}
    vllm, sglang, ours = engines["a"], engines["b"], engines["c"]
    assert vllm["command"] == ["vllm", "serve"]
    assert {f"--revision={COMMIT}", f"--tokenizer-revision={COMMIT}", "--seed=0", "--dtype=bfloat16"} <= set(
        vllm["args"]
    )
    assert {"name": "VLLM_BATCH_INVARIANT", "value": "1"} in vllm["env"]
    assert vllm["args"][-1] == '--override-generation-config={"temperature": 0}'
    assert {"--enable-deterministic-inference", "--tp-size=2", "--attention-backend=spanreplay"} <= set(sglang["args"])
    assert "HF_TOKEN" in {variable["name"] for variable in sglang["env"]}
    assert ours["command"] == ["python3", "-m", "spanreplay_kernels", "serve"]
    known = (ROOT / "kernels" / "spanreplay_kernels" / "serve.py").read_text(encoding="utf-8")
    flags = [word.partition("=")[0] for word in ours["args"] if word.startswith("--")]
    assert flags
    assert all(f'"{flag}"' in known for flag in flags)
    assert not any("revision" in word for word in ours["args"]), "a directory has no commit"


FLAGS = {
    "vllm": r"vllm\.(engine\.arg_utils:EngineArgs\.|entrypoints\.\*\.cli_args:)",
    "sglang": r"sglang\..+\.fields\.\*:",
}
"""Patterns for an engine's flags among the names of tests/kernels/engines/releases.json."""


@pytest.mark.parametrize(("engine", "plugin"), [("vllm", vllm), ("sglang", sglang)], ids=["vllm", "sglang"])
def test_h3_every_flag_is_one_that_the_engine_has(engine: str, plugin: ModuleType) -> None:
    """Every flag that the chart sets for any values is a field of each release that the plug-in covers."""
    source = ROOT / "tests" / "kernels" / "engines" / "releases.json"
    releases = json.loads(source.read_text(encoding="utf-8"))[engine]
    everything = ("models.x=" + json.dumps({**GOOD, "engine": engine, "maxModelLen": 4096}),)
    plain = (
        "models.x="
        + json.dumps({**GOOD, "engine": engine, "attentionBackend": "triton", "kernels": {"plugin": False}}),
    )
    cases = [render(CHART, path) for path in value_files(CHART)] + [render(CHART, sets=s) for s in (everything, plain)]
    args = [
        word
        for objects in cases
        for item in objects
        if item["kind"] == "Deployment" and _annotation(item, "engine") == engine
        for word in _engine(item)["args"]
    ]
    flags = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in args if word.startswith("--")}
    assert len(flags) > 8
    for release, facts in releases.items():
        if tuple(map(int, release.split(".")))[: len(plugin.RELEASES[0])] < plugin.RELEASES[0]:
            continue
        known = {
            re.split(r"[:.]", name)[-1]
            for name, is_there in facts["names"].items()
            if is_there and re.match(FLAGS[engine], name)
        }
        assert flags - known - {"override_generation_config"} == set(), release  # that one is the user's


def _annotation(deployment: Object, name: str) -> str:
    return str(deployment["spec"]["template"]["metadata"]["annotations"][f"spanreplay.dev/{name}"])


def test_h3_engines_are_asked_for_the_plug_in_as_it_wants_to_be() -> None:
    """Flags and environment name an entry point that exists, and pass the plug-ins' tables of refused settings."""
    engines = {name: _engine(deployment) for name, deployment in _deployments(ALL).items()}
    environs = {
        name: {variable["name"]: variable.get("value", "") for variable in engine["env"]}
        for name, engine in engines.items()
    }
    flags = {
        name: dict(word.removeprefix("--").partition("=")[::2] for word in engine["args"] if word.startswith("--"))
        for name, engine in engines.items()
    }
    for name, group, variable in (
        ("a", "vllm.general_plugins", "VLLM_PLUGINS"),
        ("b", "sglang.srt.plugins", "SGLANG_PLUGINS"),
    ):
        (point,) = entry_points(group=group, name=environs[name][variable])
        assert point.load().__module__.startswith("spanreplay_kernels.engines."), name
    backend = SimpleNamespace(name=flags["a"]["attention-backend"])
    refused = {rule.path: rule for rule in vllm.RULES}
    assert refused["attention_config.backend"].is_covered(backend)
    module, _, header = flags["a"]["middleware"].rpartition(".")
    assert inspect.isclass(getattr(importlib.import_module(module), header)), "vLLM adds classes as middleware"
    given = {
        "attention_backend": flags["b"]["attention-backend"],
        "enable_deterministic_inference": "enable-deterministic-inference" in flags["b"],
    }
    assert all(rule.is_covered(given[rule.path]) for rule in sglang.RULES if rule.path in given)
    (stock,) = _deployments(OPENSHIFT).values()
    assert not any("middleware" in word or "CUSTOM" in word for word in _engine(stock)["args"])
    assert "VLLM_PLUGINS" not in {variable["name"] for variable in _engine(stock)["env"]}


def test_h3_the_images_are_of_releases_that_the_plug_ins_cover() -> None:
    """The engine that the chart starts by default is one that the plug-in accepts."""
    for name, plugin in (("a", vllm), ("b", sglang)):
        release = tuple(map(int, _engine(_deployments(ALL)[name])["image"].rpartition(":v")[2].split(".")))
        first, last = plugin.RELEASES
        assert first <= release[: len(first)] <= last, name


def test_h3_the_fingerprint_of_a_pinned_line_is_the_packages_own() -> None:
    """With an expected line vLLM answers the system_fingerprint that the package makes of that line."""
    engine = _engine(_deployments(ALL)["a"])
    line = probe._parse(engine["readinessProbe"]["exec"]["command"][3:]).expect
    wanted = f"fp-15aea6b457752ffb-{hashlib.sha256(line.encode()).hexdigest()[:16]}"
    assert engine["args"][-3:-1] == ["--fingerprint-mode=custom", f"--fingerprint-value={wanted}"]
    source = (ROOT / "kernels" / "spanreplay_kernels" / "proof" / "fingerprint.py").read_text(encoding="utf-8")
    (function,) = (
        n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "system_fingerprint"
    )
    scope: dict[str, Any] = {"hashlib": hashlib, "_HASH_CHARS": 16}
    exec(ast.unparse(function), scope)  # noqa: S102 -- the module itself imports torch, which is not here
    assert scope["system_fingerprint"](line) == wanted
    assert not any("fingerprint" in word for word in _engine(_deployments(VLLM)["qwen"])["args"])


def test_h2_inference_policies_allow_exactly_the_declared_edges() -> None:
    """Clients and the test reach port 8000; a pod reaches DNS, and the hub by TLS only if it downloads."""
    objects = render(CHART, ALL)
    policies = {labels(i)["app.kubernetes.io/component"]: i["spec"] for i in objects if i["kind"] == "NetworkPolicy"}
    assert set(policies) == {"a", "b", "c", "test"}
    for name in "abc":
        rules = policies[name]["ingress"]
        assert {port["port"] for rule in rules for port in rule["ports"]} == {8000}
        test = rules[1]["from"][0]["podSelector"]["matchLabels"]
        assert [owner for owner, pod in pods(objects) if matches(test, pod)] == [
            f"Pod/demo-spanreplay-inference-{each}-test" for each in "abc"
        ]
        outside = [rule for rule in policies[name]["egress"] if "to" not in rule]
        assert [rule["ports"] for rule in outside] == ([[{"protocol": "TCP", "port": 443}]] if name == "a" else [])
    assert {port["port"] for rule in policies["test"]["egress"] for port in rule["ports"]} == {53, 8000}
    assert "ingress" not in policies["test"]


def test_h1_inference_install_upgrade_rollback_uninstall(tmp_path: Path) -> None:
    """When one model changes, the other's pods stay; a rollback restores; notes say what to do next."""
    with KubeApi() as kube:
        environ = {"KUBECONFIG": str(kube.write_config(tmp_path / "config")), "HOME": str(tmp_path)}

        def run(*arguments: str) -> str:
            done = helm(*arguments, environ={**environ, "HELM_QPS": "1000", "HELM_BURST_LIMIT": "1000"})
            assert done.returncode == 0, done.stderr
            return done.stdout

        chart = [str(CHARTS / CHART), "--disable-openapi-validation", "--values", str(VLLM)]
        notes = run("install", "mine", *chart)
        assert "OPENAI_BASE_URL=http://mine-spanreplay-inference-qwen.default:8000/v1" in notes
        assert "never run on a GPU with vllm" in notes
        assert "into models.qwen.kernels.expectedLine" in notes
        before = {name: dict(item["spec"]) for name, item in kube.find("Deployment").items()}
        run("upgrade", "mine", *chart, "--set", "models.qwen.dtype=float16")
        after = {name: dict(item["spec"]) for name, item in kube.find("Deployment").items()}
        assert [name for name in before if before[name] != after[name]] == ["mine-spanreplay-inference-qwen"]
        run("rollback", "mine", "1")
        assert {name: dict(item["spec"]) for name, item in kube.find("Deployment").items()} == before
        run("uninstall", "mine")
        assert kube.find("Deployment") == {}
