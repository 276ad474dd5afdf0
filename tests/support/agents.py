"""Run the ordinary agents of tests/agents in their own processes, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
AGENTS: Final = ROOT / "tests" / "agents"
AGENT_TIMEOUT_S: Final = 120
CURRENT: Final = Path(sys.executable)
PYTHONS: Final = {
    "current": CURRENT,
    "openai2": ROOT / ".venvs" / "openai2" / "bin" / "python",
    "old": ROOT / ".venvs" / "old" / "bin" / "python",
}
"""Interpreters by generation of SDKs; tests/agents/requirements says how to make the others."""
ENVIRONMENTS: Final = {
    "current": CURRENT,
    **{
        path.stem: ROOT / ".venvs" / path.stem / "bin" / "python"
        for path in sorted((AGENTS / "requirements").glob("*.txt"))
    },
}
"""Every interpreter that tests/agents/requirements makes, by name, whether it is there or not."""
LITELLM: Final = ROOT / ".venvs" / "litellm" / "bin" / "python"
"""The interpreter with LiteLLM, whose pins fit no other agent."""


def has_distribution(python: Path, name: str) -> bool:
    """Whether an interpreter's environment has a distribution; looks at its folders and starts nothing."""
    folders = python.parent.parent.glob("lib/python*/site-packages")
    return next(iter(distributions(name=name, path=[str(folder) for folder in folders])), None) is not None


def run_agent(
    script: str | Path,
    *args: str,
    environ: Mapping[str, str],
    cwd: Path,
    python: Path = CURRENT,
    wrapper: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run one agent to its end; the caller looks at its status and output.

    `script` is a name in tests/agents or a path; `wrapper` goes in front (`opentelemetry-instrument`).
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
