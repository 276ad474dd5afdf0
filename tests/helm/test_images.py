"""The images: the content of their Dockerfile, and the result of its commands in an empty root directory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from support.helm import ROOT, containers, labels, pods, render

DOCKERFILE = ROOT / "images" / "Dockerfile"
COMPOSE = ROOT / "images" / "compose.yaml"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or "hadolint"
PATHS = re.compile(r"(?<![\w./$])/(?=src|wheels|opt|constraints|kernels|state|var)")


@dataclass
class Stage:
    """One FROM and what follows it."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, verb: str) -> str:
        """Return the argument of the last instruction of a kind."""
        return [text for each, text in self.steps if each == verb][-1]


def _stages() -> dict[str, Stage]:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    bases = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    stages: dict[str, Stage] = {}
    current = Stage("")
    for line in text.splitlines():
        verb, _, rest = line.strip().partition(" ")
        if verb == "FROM":
            base, _, name = rest.partition(" AS ")
            current = stages[name] = Stage(bases.get(base.strip("${}"), base))
        elif verb.isupper() and verb != "ARG":
            current.steps.append((verb, rest.strip()))
    return stages


def test_h2_hadolint_has_nothing_to_say() -> None:
    """The Dockerfile linter finds nothing, not even a remark."""
    command = [HADOLINT, "--failure-threshold", "style", str(DOCKERFILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_h2_images_are_pinned_and_run_as_nobody() -> None:
    """Every base has its digest; a shipped image holds files only, and runs as nobody without a shell."""
    stages = _stages()
    for name, stage in stages.items():
        assert stage.base in stages or re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", stage.base), name
    for name in ("collector", "replay-service", "kernels"):
        assert stages[name].last("USER") == "10001:10001"
        assert stages[name].last("ENTRYPOINT").startswith("[")
        assert not [text for verb, text in stages[name].steps if verb == "RUN"], "a shipped image is files only"


def test_h2_charts_use_the_users_and_images_that_are_built() -> None:
    """Our images in the charts are targets of the Dockerfile, and their pods run as its user."""
    targets = set(_stages())
    found = set()
    for _, pod in pods(render("spanreplay")):
        image = containers(pod)[0]["image"]
        if "/spanreplay/" in image:
            found.add(image.rpartition("/")[2].partition(":")[0])
            assert pod["spec"]["securityContext"]["runAsUser"] == 10001
    assert found == {"collector", "replay-service"}
    assert found <= targets


def test_h2_ignored_is_what_no_stage_copies() -> None:
    """All files that stages copy from the repository exist and are in the build's context."""
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    for stage in _stages().values():
        for verb, text in stage.steps:
            if verb == "COPY" and "--from" not in text:
                *sources, _ = shlex.split(text)
                assert set(sources) <= allowed
                assert all((ROOT / source).exists() for source in sources)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory in which the commands of all build stages were run, in order."""
    root = tmp_path_factory.mktemp("image")
    pip = {name: value for name, value in os.environ.items() if "PIP" in name}
    environ = {"PATH": os.environ["PATH"], "HOME": str(root), "PIP_NO_COMPILE": "1", **pip}
    for name, stage in _stages().items():
        where = root
        for verb, text in stage.steps:
            if verb == "WORKDIR":
                where = root / text.lstrip("/")
                where.mkdir(parents=True)
            elif verb == "COPY" and "--from" not in text:
                *sources, target = shlex.split(text)
                for source in sources:
                    _copy(ROOT / source, root / target.lstrip("/") if target.startswith("/") else where / target)
            elif verb == "RUN":
                command = PATHS.sub(f"{root}/", text)
                command = re.sub(r"(?<![\w/])python ", f"{sys.executable} ", command)
                shell = ["sh", "-ec", command]
                done = subprocess.run(shell, env=environ, cwd=where, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{name}: {command}\n{done.stderr[-2000:]}"
    return root


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name if target.is_dir() else target)


def _run(root: Path, *command: str, **environ: str) -> str:
    variables = {"PATH": f"{root}/opt/spanreplay/bin:/usr/bin:/bin", "HOME": str(root), **environ}
    done = subprocess.run(command, env=variables, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_h1_what_the_stages_build_runs(root: Path) -> None:
    """In the environment that the stages make, every command of the images and of the charts' tests starts."""
    bin_ = root / "opt" / "spanreplay" / "bin"
    for verb in ("collect", "serve", "migrate"):
        assert f"Usage: spanreplay {verb}" in _run(root, str(bin_ / "spanreplay"), verb, "--help")
    for module in ("spanreplay_service.smoke", "spanreplay_service.serve", "spanreplay_collector.collector"):
        _run(root, str(bin_ / "python"), "-c", f"import {module}")
    listed = _run(root, str(bin_ / "python"), "-m", "pip", "list", "--format=freeze")
    assert "chdb" not in listed, "an embedded store has no place in a pod"
    assert "torch" not in listed


@pytest.mark.slow
def test_h3_the_kernels_are_one_pure_wheel_on_a_path(root: Path) -> None:
    """Copied to a directory on PYTHONPATH, package, metadata and both plug-ins are found; nothing is compiled."""
    (wheel,) = (root / "wheels").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not list((root / "kernels").rglob("*.so"))
    find = "importlib.util.find_spec('spanreplay_kernels.serve').origin"
    points = (
        "[p.load().__module__ for g in ('vllm.general_plugins', 'sglang.srt.plugins') for p in m.entry_points(group=g)]"
    )
    code = f"import importlib.metadata as m, importlib.util; print(m.version('spanreplay'), {find}, *{points})"
    copied = root / "copied"
    shutil.copytree(root / "kernels", copied)
    python = str(Path(sys.executable).resolve())
    version, origin, *plugins = _run(
        root, python, "-I", "-c", f"import sys; sys.path.insert(0, {str(copied)!r}); {code}"
    ).split()
    assert version == "0.1.0"
    assert plugins == ["spanreplay_kernels.engines.vllm", "spanreplay_kernels.engines.sglang"]
    assert Path(origin).is_relative_to(copied)


@pytest.mark.slow
def test_h3_the_probe_starts_where_the_charts_start_it(root: Path) -> None:
    """The probe runs without torch: in the image of `helm test`, and in an engine's Python from the copied directory.

    For a server that does not exist, each subcommand of the rendered commands ends with its own one-line message.
    """
    copied = root / "kernels"
    engine = {"PYTHONPATH": str(copied), "PYTHONDONTWRITEBYTECODE": "1"}
    bare = root / "engine"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    started = set()
    for name, pod in pods(render("spanreplay-inference", ROOT / "helm" / "spanreplay-inference" / "ci" / "all.yaml")):
        (container,) = pod["spec"]["containers"]
        probes = [
            container[f"{each}Probe"]["exec"]["command"] for each in ("startup", "readiness") if name[:3] != "Pod"
        ]
        for command in probes or [[*container["command"], *container["args"]]]:
            python = (
                root / "opt" / "spanreplay" / "bin" / "python" if name.startswith("Pod/") else bare / "bin" / "python"
            )
            words = [re.sub(r"^--url=.*", "--url=http://127.0.0.1:1", word) for word in command[1:]]
            environ = {"PATH": "/usr/bin:/bin", "HOME": str(root), **({} if name.startswith("Pod/") else engine)}
            done = subprocess.run(
                [str(python), *words], env=environ, cwd=root, capture_output=True, text=True, check=False
            )
            assert done.returncode == 1, done.stderr
            assert done.stderr.endswith("http://127.0.0.1:1 does not answer: ConnectionRefusedError\n"), done.stderr
            assert done.stderr.count("\n") == 1
            started.add(words[2])
    assert started == {"warm-up", "ready", "invariance"}


def _services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return services


def test_h2_compose_has_the_components_of_the_chart_and_their_commands() -> None:
    """Same parts, programs and ports; published on this machine only; ours hardened; no password written down."""
    from importlib.metadata import entry_points

    commands = {point.name: point for point in entry_points(group="spanreplay.commands")}
    services = _services()
    demo = render("spanreplay", ROOT / "helm" / "spanreplay" / "examples" / "demo.yaml")
    parts = {labels(pod)["app.kubernetes.io/component"] for name, pod in pods(demo)}
    assert set(services) == parts - {"test"}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        if "build" not in service:
            assert not service["image"].endswith(":latest")
            continue
        assert service["build"]["target"] in _stages()
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        verb, *arguments = [re.sub(r"\$\{.*\}", "", word) for word in service["command"]]
        command = commands[verb].load()
        assert isinstance(command, click.Command)
        with command.make_context(verb, arguments) as context:
            ports = {str(value) for key, value in context.params.items() if key.endswith("port")}
        assert {port.rpartition(":")[2] for port in service.get("ports", [])} == ports
        for variable, value in service["environment"].items():
            if re.search("PASSWORD|TOKEN|SECRET|KEY", variable):
                assert value.startswith("${"), variable
