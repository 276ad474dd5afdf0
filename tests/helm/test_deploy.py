"""docs/deploy.md: its commands are enough to get from an empty cluster to a replayed run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from spanreplay.model.how_to_install import install_command
from support.helm import ROOT, containers, helm, parse, pods, references, render, value_files

GUIDE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
REGISTRY = "registry.example.com"
EXAMPLES = [
    (chart, path)
    for chart in ("spanreplay", "spanreplay-inference")
    for path in value_files(chart)
    if path.parent.name == "examples"
]


def _section(title: str) -> str:
    """The commands of a section, with continued lines joined."""
    text = re.split(r"^##+ ", GUIDE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")


def test_h1_the_guide_installs_what_each_machine_needs() -> None:
    """The agent's pod gets the package, the user's machine the extra that talks to a replay service."""
    assert install_command() in _section("Record an agent")
    replay = _section("Replay it")
    assert replay.index(install_command("client")) < replay.index("spanreplay ls")


@pytest.mark.parametrize("title", ["Try it out", "Models of your own"])
def test_h1_the_guide_starts_the_images_that_it_builds(title: str) -> None:
    """Images are built and pushed first, and every image of ours comes from the registry that they were pushed to."""
    assert GUIDE.index("docker push") < GUIDE.index(f"\n## {title}\n")
    (command,) = [line for line in _section(title).splitlines() if line.startswith("helm install")]
    words = shlex.split(command.replace("$REGISTRY", REGISTRY).split("#")[0])[2:]
    done = helm("template", *[word for word in words if word != "--create-namespace"], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ours = [c["image"] for _, pod in pods(parse(done.stdout)) for c in containers(pod) if "/spanreplay/" in c["image"]]
    assert ours
    assert [image for image in ours if not image.startswith(f"{REGISTRY}/spanreplay/")] == []


@pytest.mark.parametrize(("chart", "values"), EXAMPLES, ids=[path.stem for _, path in EXAMPLES])
def test_h1_every_secret_of_an_example_can_be_made(chart: str, values: Path) -> None:
    """Every secret that an example names and no template makes is created by its comments or the guide."""
    told = set(re.findall(r"kubectl create secret [a-z-]+ ([a-z0-9-]+)", GUIDE + values.read_text(encoding="utf-8")))
    objects = render(chart, values)
    used = {name for item in objects for kind, name in references(item) if kind == "Secret"}
    made = {item["metadata"]["name"] for item in objects if item["kind"] == "Secret"}
    assert used - made <= told


def test_h1_charts_lie_where_the_guide_says() -> None:
    """Every file that a command of the guide names exists."""
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL))
    named = re.findall(r"(?<![\w/])(?:helm|images)/[\w./-]+", commands)
    assert len(named) > 4
    assert [name for name in named if not (ROOT / name).exists()] == []
