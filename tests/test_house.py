"""The module structure: no import cycles, every import points to a lower layer, no folder is too large."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "spanreplay": ROOT / "instrumentation",
    "spanreplay_collector": ROOT / "collector",
    "spanreplay_service": ROOT / "replay_service",
    "spanreplay_kernels": ROOT / "kernels",
}
FLOORS = (
    "model",
    "redact",
    "dialects",
    "codec",
    "recording",
    "runtime",
    "replayer",
    "seams",
    "report",
    "units",
    "activate",
    "testing",
    "cli",
)
"""The folders of `spanreplay`, from the ground up: each imports only itself and those before it."""
FILES_MAX = 24
"""Maximum number of modules in one folder, without the package's own file."""
ENTRIES_MAX = 14
"""Maximum number of folders and modules at a package's root, without its own file and the contract's folder."""
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def _modules(package: str) -> dict[str, Path]:
    source = SOURCES[package]
    found = {}
    for path in sorted((source / package).rglob("*.py")):
        if path.name.endswith(GENERATED) or "__pycache__" in path.parts or "boot" in path.parts:
            continue
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def _imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a module imports: at the top, inside functions and for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known and alias.name != module)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                target = below if below in known else node.module
                if target in known and target != module:
                    yield target


def _graph(package: str) -> dict[str, set[str]]:
    known = _modules(package)
    return {module: set(_imports(module, path, known)) for module, path in known.items()}


def _circles(graph: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Modules that import themselves indirectly, grouped by cycle."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo.extend(graph.get(module, ()))
        reached[start] = seen
    return sorted({tuple(sorted({m for m in reached[s] if s in reached[m]})) for s in graph if s in reached[s]})


@pytest.mark.parametrize("package", SOURCES)
def test_house_has_no_circles(package: str) -> None:
    """No module imports itself through others, counting imports inside functions and for types."""
    graph = _graph(package)
    assert len(graph) > 10
    assert _circles(graph) == []


def test_house_circles_would_be_found() -> None:
    """The search finds a cycle of two and one of three."""
    assert _circles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a"}}) == [
        ("a", "b"),
        ("c", "d", "e"),
    ]


def test_house_stairs_are_one_way() -> None:
    """A module of `spanreplay` imports only its own layer and lower ones, even inside functions and for types."""
    floors = {name: number for number, name in enumerate(FLOORS)}
    folders = {module.split(".")[1] for module in _graph("spanreplay") if module.count(".")}
    assert folders - {"v1"} == set(FLOORS)
    up = [
        f"{module} imports {target}"
        for module, targets in _graph("spanreplay").items()
        for target in targets
        if module.count(".") and target.count(".")
        if floors.get(target.split(".")[1], 0) > floors.get(module.split(".")[1], len(FLOORS))
    ]
    assert up == []


@pytest.mark.parametrize("package", SOURCES)
def test_house_folders_are_rooms(package: str) -> None:
    """No folder has more modules than a reader can take in, and a package's root stays small."""
    modules = _modules(package)
    sizes = Counter(path.parent for path in modules.values() if path.name != "__init__.py")
    large = {str(folder.relative_to(ROOT)): size for folder, size in sizes.items() if size > FILES_MAX}
    assert large == {}
    root = SOURCES[package] / package
    entries = {p.name for p in root.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))}
    assert len(entries - {"__init__.py", "v1"}) <= ENTRIES_MAX


@pytest.mark.parametrize("package", SOURCES)
def test_house_private_names_stay_in_their_module(package: str) -> None:
    """A name with an underscore is used in its own module alone; such a module, in its own folder."""
    known = _modules(package)
    strayed = [
        f"{module} imports {node.module}.{alias.name}"
        for module, path in known.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in SOURCES
        for alias in node.names
        if alias.name.startswith("_") and f"{node.module}.{alias.name}" not in known
    ]
    assert strayed == []


def test_replay_has_no_lock_that_a_forked_process_finds_held() -> None:
    """A thread that is missing after a fork releases no lock, so such locks are made by `make_lock`."""
    for path in (SOURCES["spanreplay"] / "spanreplay" / "replayer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("threading."):
                name = ast.unparse(node.func)
                assert name not in ("threading.Lock", "threading.RLock", "threading.Condition"), (path, node.lineno)


RUNS = ("run", "_run", "process", "replayed", "current")
"""The names that runs have in our code."""


@pytest.mark.parametrize("floor", ["recording", "runtime", "seams", "report", "units"])
def test_house_nobody_asks_a_run_whether_it_is_replayed(floor: str) -> None:
    """Recording and replaying are objects (`run.order`, `run.resolver`): only a run's constructor knows the session."""
    asking = [
        f"{path}:{node.lineno}"
        for path in sorted((SOURCES["spanreplay"] / "spanreplay" / floor).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "session" and isinstance(node.ctx, ast.Load)
        if ast.unparse(node.value).rpartition(".")[2] in RUNS
    ]
    assert asking == []


def test_context_variables_are_set_where_no_collection_tears_them() -> None:
    """Before Python 3.12 `ContextVar.set` crashes if it is called during a garbage collection or interrupted by one."""
    module = "spanreplay.runtime.context_variables"
    for name, path in _modules("spanreplay").items():
        tree = ast.parse(path.read_text())
        assigned = {
            ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and "ContextVar(" in ast.unparse(node.value or node)
        }
        taken = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        variables = assigned | taken & {"RUN", "FINALIZING", "placing", "is_plumbing_here"}
        direct = [
            (name, node.lineno)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in ("set", "reset")
            if ast.unparse(node.value) in variables
        ]
        assert name == module or direct == []
