"""The chart of inference pods, and the probe that its pods run."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spanreplay_kernels import probe
from spanreplay_kernels.engines import sglang, vllm
from support.helm import CHARTS, ROOT, Object, containers, helm, labels, matches, pods, refuse, render
from support.kube import KubeApi

CHART = "spanreplay-inference"
ALL = CHARTS / CHART / "ci" / "all.yaml"
OPENSHIFT = CHARTS / CHART / "ci" / "openshift.yaml"
VLLM = CHARTS / CHART / "examples" / "vllm.yaml"
COMMIT = "0" * 40
GOOD = {"model": "org/model", "revision": COMMIT, "gpuProduct": "NVIDIA-H200"}


def _with(**changed: Any) -> str:
    """One model `m` as --set-json takes it; None leaves a key out."""
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
    """An image called latest is another one tomorrow."""
    assert "images.vllm.tag: latest is refused" in refuse(CHART, _with(), 'images.vllm.tag="latest"')


def _deployments(values: Path) -> dict[str, Object]:
    objects = [item for item in render(CHART, values) if item["kind"] == "Deployment"]
    return {labels(item)["app.kubernetes.io/component"]: item for item in objects}


def _engine(deployment: Object) -> Object:
    return next(c for c in containers(deployment["spec"]["template"]) if c["name"] == "engine")


def test_h3_a_deployment_has_one_product_and_no_spare_gpu() -> None:
    """Every pod of a model is pinned to one GPU product, and an update never needs a GPU more."""
    for name, deployment in {**_deployments(ALL), **_deployments(VLLM)}.items():
        spec = deployment["spec"]["template"]["spec"]
        assert spec["nodeSelector"]["nvidia.com/gpu.product"], name
        assert int(_engine(deployment)["resources"]["limits"]["nvidia.com/gpu"]) >= 1
        strategy = deployment["spec"]["strategy"]
        assert strategy["type"] == "Recreate" or strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_h3_a_pod_has_its_startup_budget_and_is_ready_by_a_completion() -> None:
    """Loading has the seconds that it was given; readiness asks for a completion, with its line where there is one."""
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
            served = "/cache/models/c" if name == "c" else name  # transformers' server answers to nothing else
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


def test_h3_everything_written_lies_on_the_cache_or_in_memory() -> None:
    """Home, weights and compiled kernels are on the volume; shared memory is memory; the root is read-only."""
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
    """Each engine gets the model at its commit, one seed, its own invariant mode, and flags that it knows."""
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


def test_h3_engines_are_asked_for_the_plug_in_as_it_wants_to_be() -> None:
    """Flags and environment name an entry point that exists, and satisfy the tables of what the plug-ins refuse."""
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
    """The engine that the chart starts by default is one whose plug-in does not refuse it."""
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
    """Clients and the test reach port 8000; a pod reaches name servers, and the hub by TLS only where it downloads."""
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
    """The life of a release: a model changes, the other's pods stay; a rollback restores; notes tell what is next."""
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


Answer = Callable[[dict[str, Any]], tuple[int, bytes, str]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """A server of completions that answers as it is told; its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                """Nothing on standard error."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, content, line = answer(body) if self.path == "/v1/completions" else (404, b"", "")
                self.send_response(status)
                if line:
                    self.send_header(probe.HEADER, line)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _completion(text: str = "three") -> bytes:
    return json.dumps({"choices": [{"text": text}]}).encode()


NOT_READY: dict[str, tuple[Answer, list[str], str]] = {
    "an error": (lambda body: (500, b"", "x"), [], "answers 500"),
    "no completion": (lambda body: (200, b"{}", "x"), [], "no completion"),
    "no line": (lambda body: (200, _completion(), ""), ["--header"], "the kernels are not at work"),
    "another line": (lambda body: (200, _completion(), "plan=2"), ["--expect=plan=1"], "expected 'plan=1'"),
}


@pytest.mark.parametrize("case", NOT_READY)
def test_h3_a_pod_is_not_ready(case: str, serve: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answers wrongly, or by other kernels, is not ready; one line says why."""
    answer, options, message = NOT_READY[case]
    assert probe.main(["ready", f"--url={serve(answer)}", "--model=m", *options]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_h3_a_pod_is_ready_when_the_line_is_the_expected_one(serve: Callable[[Answer], str]) -> None:
    """One completion of one token, greedy and seeded, with the right line; a server that is away is not ready."""
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes, str]:
        asked.append(body)
        return 200, _completion(), "plan=1"

    url = serve(answer)
    assert probe.main(["ready", f"--url={url}", "--model=m", "--header", "--expect=plan=1"]) == 0
    assert [(body["model"], body["max_tokens"], body["temperature"]) for body in asked] == [("m", 1, 0)]
    assert probe.main(["warm-up", f"--url={url}", "--model=m", "--tokens=1,16,128"]) == 0
    assert [len(body["prompt"].split()) for body in asked[1:]] == [1, 16, 128]
    assert probe.main(["ready", "--url=http://127.0.0.1:1", "--model=m"]) == 1


@pytest.mark.parametrize("is_invariant", [True, False], ids=["one completion", "two completions"])
def test_h3_the_test_of_a_release_sees_an_answer_that_depends_on_the_load(
    is_invariant: bool, serve: Callable[[Answer], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal prompts among neighbours: one deviating completion of many is found."""
    equal: list[str] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes, str]:
        if body["prompt"] == probe.PROMPT:
            equal.append("x")
            if not is_invariant and len(equal) == 7:
                return 200, _completion("four"), "plan=1"
        return 200, _completion("three"), "plan=1"

    status = probe.main(
        ["invariance", f"--url={serve(answer)}", "--model=m", "--prompts=20", "--header", "--parallel=1"]
    )
    assert len(equal) == 20
    assert status == (0 if is_invariant else 1)
    said = capsys.readouterr()
    assert re.search("one completion" if is_invariant else r"20 equal prompts have 2 completions", said.out + said.err)
