"""Eleven agents as their frameworks' documentation writes them, on the newest versions: recorded, then replayed.

Run: python tools/corpora_agents.py [NAME ...]    after tools/corpora.sh has made their environments

The provider is one on loopback and is stopped before the replay; the replay's process has no key. One line an agent:
identical, with its side effects untouched, or what else. The exit status is 1 if any is not identical.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.provider import Provider  # noqa: E402 - the tests' own tools
from support.replaying import Workplace  # noqa: E402 - as above

FRAMEWORKS: Final = {
    "openai-agents": "openai_agents_agent.py",
    "pydantic-ai-slim": "pydantic_ai_agent.py",
    "smolagents": "smolagents_agent.py",
    "crewai": "crewai_agent.py",
    "llama-index-core": "llama_index_agent.py",
    "google-adk": "google_adk_agent.py",
    "agno": "agno_agent.py",
    "autogen-agentchat": "autogen_agent.py",
    "haystack-ai": "haystack_agent.py",
    "deepagents": "deepagents_agent.py",
    "strands-agents": "strands_agent.py",
}
AGENTS: Final = ROOT / "tests" / "agents" / "documented"
QUIET: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "AGNO_TELEMETRY": "false",
}
"""Frameworks that report to their makers, or fetch a list of prices, when they start."""
KEYS: Final = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")
MESSAGE_CHARS: Final = 300


def find_python(name: str) -> Path:
    """The environment of one framework."""
    return ROOT / ".venvs" / f"newest-{name}" / "bin" / "python"


def read_version(python: Path, name: str) -> str:
    """The version of the framework in its environment."""
    folders = [str(folder) for folder in python.parent.parent.glob("lib/python*/site-packages")]
    found: Distribution | None = next(iter(distributions(name=name, path=folders)), None)
    return found.version if found is not None else "?"


def try_agent(name: str, folder: Path) -> str:
    """'identical', or what is not as it was recorded."""
    for file in ("shop.py", FRAMEWORKS[name]):
        shutil.copy(AGENTS / file, folder)
    script = folder / FRAMEWORKS[name]
    provider = Provider().start()
    try:
        there = Workplace(folder, {**provider.environ(), **QUIET}, find_python(name))
        recorded = there.record(script)
    finally:
        provider.stop()
    effects = {file: (folder / file).read_bytes() for file in ("orders.db", "ledger.txt")}
    there.environ = {key: value for key, value in there.environ.items() if key not in KEYS}
    replayed = there.replay(script)
    if replayed.verdict.get("verdict") != "identical":
        return f"{replayed.verdict.get('verdict', 'no verdict')}: {replayed.stderr.strip()[-MESSAGE_CHARS:]}"
    if replayed.stdout != recorded.stdout:
        return "identical, and other output"
    changed = [file for file, content in effects.items() if (folder / file).read_bytes() != content]
    return f"identical, and {' and '.join(changed)} changed" if changed else "identical"


def main() -> int:
    """One line for each agent; 1 if one of them is not identical."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which frameworks; default: all")
    names = parser.parse_args().names or list(FRAMEWORKS)
    failed = 0
    for name in names:
        python = find_python(name)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = try_agent(name, Path(folder).resolve()) if python.exists() else "could not be installed"
            except (AssertionError, OSError, subprocess.TimeoutExpired) as exc:
                result = f"could not be recorded: {str(exc).strip()[-MESSAGE_CHARS:]}"
        failed += result != "identical"
        sys.stdout.write(f"{name} {read_version(python, name)}: {result}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
