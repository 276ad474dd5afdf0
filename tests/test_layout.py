"""Everything is where a reader looks for it: folders, sizes, public names, entry points, light imports."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "spanreplay": ROOT / "instrumentation" / "spanreplay",
    "spanreplay_collector": ROOT / "collector" / "spanreplay_collector",
    "spanreplay_service": ROOT / "replay_service" / "spanreplay_service",
    "spanreplay_kernels": ROOT / "kernels" / "spanreplay_kernels",
}
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
HEAVY = (
    "torch",
    "chdb",
    "clickhouse_connect",
    "grpc",
    "google.protobuf",
    "click",
    "rich",
    "opentelemetry.sdk",
    "numpy",
    "pydantic",
)
PUBLIC_NAMES = {
    "spanreplay": [
        "Plan",
        "ReplayMiss",
        "SpanreplayError",
        "VERSION",
        "boundary",
        "human",
        "perturbations",
        "record",
        "replay",
        "run",
    ],
}
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def _sources(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.py")):
        if not path.name.endswith(GENERATED) and "__pycache__" not in path.parts:
            yield path


def test_layout_top_folders_are_no_packages() -> None:
    """A top-level folder with an __init__.py would shadow installed packages such as `kernels`."""
    for package in PACKAGES.values():
        assert not (package.parent / "__init__.py").exists(), package.parent
        assert (package / "__init__.py").exists(), package
        assert (package / "py.typed").exists(), package


def test_layout_tests_are_no_packages() -> None:
    """Tests are imported by path, so that files with the same name in two folders do not clash."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_layout_modules_and_functions_stay_small(package: str) -> None:
    """No module over 500 lines, no function over 70."""
    too_long = []
    for path in _sources(PACKAGES[package]):
        source = path.read_text(encoding="utf-8")
        lines = source.count("\n")
        if lines > MODULE_LINES_MAX:
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    assert too_long == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_layout_modules_say_what_they_are(package: str) -> None:
    """Every module begins with a docstring."""
    silent = [p for p in _sources(PACKAGES[package]) if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))]
    assert silent == []


def test_layout_importing_spanreplay_is_light() -> None:
    """Agents pay only for features in use: the package alone loads no heavy library."""
    code = f"import sys, spanreplay; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", sorted(PUBLIC_NAMES))
def test_layout_public_names_are_frozen(package: str) -> None:
    """Public names are listed here, so that a change is a decision, not an accident."""
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC_NAMES[package]
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(
    "group",
    ["spanreplay.commands", "opentelemetry_pre_instrument", "opentelemetry_post_instrument", "console_scripts"],
)
def test_layout_entry_points_resolve(group: str) -> None:
    """Every entry point of ours names something callable."""
    ours = [p for p in entry_points(group=group) if p.dist is not None and p.dist.name == "spanreplay"]
    assert ours
    for point in ours:
        assert callable(point.load()), point


def test_layout_schema_and_contract_are_in_the_package() -> None:
    """Files that users of other languages need are installed with the package."""
    assert (PACKAGES["spanreplay"] / "v1" / "replay.proto").is_file()
    assert (PACKAGES["spanreplay"] / "report" / "divergence-1.schema.json").is_file()


def test_layout_figures_are_found_beside_those_of_the_kernels() -> None:
    """`python -m bench` runs the folder `bench`, although the kernels have one of that name."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "record_llm" in done.stdout
