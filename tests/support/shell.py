"""A user's shell: a directory with an agent, in which `spanreplay` commands run as separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.agents import without_instrumentors
from support.provider import Provider

AGENT = """\
import sys, openai
client = openai.OpenAI(max_retries=0)
for question in sys.argv[2:]:
    answer = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": question}])
    print(question, "->", answer.choices[0].message.content)
print("done", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
TIMEOUT_S = 600
ALL_INSTRUMENTORS = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ""}
"""Makes a command load every instrumentor of this environment, as users do who have them; takes seconds."""


class Shell:
    """A user's shell in a directory with an agent."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ

    def spanreplay(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command = [sys.executable, "-c", "from spanreplay.cli import main; main()", *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def runs(self, *options: str) -> list[dict[str, Any]]:
        """Return the runs listed by `ls --json`."""
        rows: list[dict[str, Any]] = json.loads(self.spanreplay("ls", "--json", *options).stdout)
        return rows


def open_shell(folder: Path, provider: Provider) -> Shell:
    """Return a shell in a folder with agent.py, whose SDK uses the provider; instrumentors are not loaded."""
    (folder / "agent.py").write_text(AGENT)
    environ = {
        **provider.environ(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        **without_instrumentors(),
    }
    return Shell(folder, environ)
