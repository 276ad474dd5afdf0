"""Run the ordinary agents of tests/agents in their own processes, as a user would."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
AGENTS: Final = ROOT / "tests" / "agents"
AGENT_TIMEOUT_S: Final = 600
CURRENT: Final = Path(sys.executable)
PYTHONS: Final = {
    "current": CURRENT,
    "openai2": ROOT / ".venvs" / "openai2" / "bin" / "python",
    "old": ROOT / ".venvs" / "old" / "bin" / "python",
}
"""Interpreters by SDK generation; tests/agents/requirements says how to make the others."""
ENVIRONMENTS: Final = {
    "current": CURRENT,
    **{
        path.stem: ROOT / ".venvs" / path.stem / "bin" / "python"
        for path in sorted((AGENTS / "requirements").glob("*.txt"))
    },
}
"""Every interpreter that tests/agents/requirements describes, by name, whether it exists or not."""
INSTRUMENTORS: Final = frozenset(
    {"agno", "anthropic", "autogen_agentchat", "crewai", "dspy", "google_adk", "haystack"}
    | {"langchain", "llama_index", "mcp", "openai", "openai_agents", "smolagents"}
)
"""OpenInference's instrumentors in any of these, as OpenTelemetry names them."""
LITELLM: Final = ENVIRONMENTS["google-adk"]
"""The interpreter with LiteLLM."""


def without_instrumentors(*but: str) -> dict[str, str]:
    """Return the variable that disables all OpenInference instrumentors except `but`: each takes seconds to import."""
    assert INSTRUMENTORS.issuperset(but), but
    left_out = ",".join(sorted(INSTRUMENTORS - set(but))) if but else "*"
    return {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": left_out}


def has_distribution(python: Path, name: str) -> bool:
    """Whether an interpreter's environment has a distribution; reads its folders without starting it."""
    folders = [str(folder) for folder in python.parent.parent.glob("lib/python*/site-packages")]
    # psycopg2 is built from its sources, or comes as psycopg2-binary
    return any(True for known in (name, f"{name}-binary") for _ in distributions(name=known, path=folders))


@functools.cache
def _find_starter(python: Path) -> str:
    """The folder that `opentelemetry-instrument` of an environment puts on the module path; '' if it has none."""
    inside = "lib/python*/site-packages/opentelemetry/instrumentation/auto_instrumentation"
    return next((str(folder) for folder in python.parent.parent.glob(inside)), "")


def instrument(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path, python: Path
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment that `opentelemetry-instrument` starts a command with.

    Saves its own start, a third of a second on a busy machine, in thousands of recordings.
    """
    starter, program = _find_starter(python), shutil.which(command[0], path=environ.get("PATH"))
    if not starter or program is None:
        return [str(python.parent / "opentelemetry-instrument"), *command], dict(environ)
    before = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    here = os.path.realpath(cwd)
    path = [*([] if here in before else [here]), *before]
    path = [starter, *(folder for folder in path if folder != starter)]
    # Python replaces the C locale, also for the programs that it starts: these are not in UTF-8 mode (PEP 538, 540)
    locale = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "C")
    replaced = {"LC_CTYPE": "C.UTF-8"} if locale in ("C", "POSIX") and not environ.get("LC_ALL") else {}
    return [program, *command[1:]], {**environ, **replaced, "PYTHONPATH": os.pathsep.join(path)}


def run_agent(
    script: str | Path,
    *args: str,
    environ: Mapping[str, str],
    cwd: Path,
    python: Path = CURRENT,
    wrapper: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run one agent to its end; the caller checks its status and output.

    `script` is a name in tests/agents or a path; `wrapper` is prepended (`opentelemetry-instrument`).
    The child sees PATH, HOME and `environ`, with the directory of `python` first in PATH.
    """
    base = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(cwd),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [*wrapper, str(python), str(AGENTS / script), *args],
        cwd=cwd,
        env={**base, **environ},
        text=True,
        capture_output=True,
        timeout=AGENT_TIMEOUT_S,
        check=False,
    )
