"""Jupyter notebooks and kernels recorded by the tests, and the runs of their cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from spanreplay.model.call import Recording
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import await_true
from support.workers import input_of, units_of

KERNEL: Final = ("-m", "ipykernel_launcher")
EXECUTE: Final = ("nbconvert", "--to", "notebook", "--execute", "--output", "done.ipynb")
"""The arguments of `jupyter` to execute a notebook."""
ASKING: Final = """
import asyncio, time, uuid
from groq import AsyncGroq, Groq

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

async def think(text):
    asked = [{"role": "user", "content": text}]
    made = await AsyncGroq().chat.completions.create(model="gpt-x", messages=asked)
    return made.choices[0].message.content
"""
"""The code of a cell or module that calls models."""


def make_place(path: Path, provider: Provider, **environ: str) -> Workplace:
    """Make a directory of notebooks that use the local provider's models."""
    quiet = {"JUPYTER_PLATFORM_DIRS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    return Workplace(path, {**provider.environ(), "SPANREPLAY_GUARD": "production", **quiet, **environ})


def write_notebook(place: Workplace, name: str, cells: Sequence[str]) -> Path:
    """Write a notebook with these code cells."""
    made = [
        {"cell_type": "code", "id": f"cell-{number}", "source": source, "metadata": {}, "outputs": []}
        | {"execution_count": None}
        for number, source in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return place.write(name, json.dumps(notebook))


def read_outputs(place: Workplace, name: str = "done.ipynb") -> list[list[dict[str, Any]]]:
    """Return the outputs of each cell of an executed notebook."""
    cells = json.loads((place.path / name).read_text(encoding="utf-8"))["cells"]
    return [each["outputs"] for each in cells]


def cells_of(place: Workplace) -> list[Recording]:
    """Return the runs of cells, oldest first."""
    return sorted(units_of(place), key=lambda unit: int(input_of(unit)["execution_count"]))


class Kernel:
    """A recorded kernel, with its manager and one client."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self.client = client
        self.shown: list[dict[str, Any]] = []
        """Messages broadcast about executed code, except status messages."""

    def execute(self, source: str, **options: Any) -> Mapping[str, Any]:
        """Execute a cell to its end and return the reply."""
        reply: dict[str, Any] = self.client.execute_interactive(
            source, timeout=TIMEOUT_S, output_hook=self._keep, **{"allow_stdin": False, **options}
        )
        content: dict[str, Any] = reply["content"]
        return content

    def evaluate(self, expression: str) -> str:
        """Evaluate an expression in the kernel, as a front end does for its own use."""
        told = self.execute("pass", silent=True, user_expressions={"it": expression})["user_expressions"]["it"]
        return str(told["data"]["text/plain"])

    def interrupt_blocked(self) -> None:
        """Interrupt a cell in a blocking system call; a signal just before the call would take effect only after it."""
        switches: list[str] = []

        def is_blocked() -> bool:
            status = Path(f"/proc/{self.manager.provisioner.pid}/status").read_text(encoding="ascii")
            told = dict(line.split(":\t", 1) for line in status.splitlines())
            switches.append(told["voluntary_ctxt_switches"])
            return told["State"].startswith("S") and switches[-2:-1] == switches[-1:]

        await_true(is_blocked)
        self.manager.interrupt_kernel()

    def _keep(self, message: dict[str, Any]) -> None:
        if message["msg_type"] != "status":
            self.shown.append(message)


@contextmanager
def a_kernel(place: Workplace, **environ: str) -> Iterator[Kernel]:
    """Run a kernel whose `kernel.json` records it; shut it down as a notebook server does."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import KernelManager

    recorder = str(place.python.parent / "opentelemetry-instrument")
    argv = [recorder, str(place.python), *KERNEL, "-f", "{connection_file}"]
    manager = KernelManager(connection_file=str(place.path / "kernel.json"))
    manager._kernel_spec = KernelSpec(argv=argv, language="python", display_name="recorded")
    manager.start_kernel(cwd=str(place.path), env={**place.environ, **environ})
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT_S)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=not manager.is_alive())
