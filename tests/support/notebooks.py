"""Notebooks and kernels of Jupyter that are recorded in the tests, and the runs of their cells."""

from __future__ import annotations

import json
import signal
import subprocess
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
"""What `jupyter` is given to execute a notebook."""
ASKING: Final = """
import asyncio, time, uuid
from openai import AsyncOpenAI, OpenAI

def ask(text):
    made = OpenAI().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

async def think(text):
    asked = [{"role": "user", "content": text}]
    made = await AsyncOpenAI().chat.completions.create(model="gpt-x", messages=asked)
    return made.choices[0].message.content
"""
"""A cell, or a module, that asks models."""


def make_place(path: Path, provider: Provider, **environ: str) -> Workplace:
    """A directory of notebooks whose models are the local provider's."""
    quiet = {"JUPYTER_PLATFORM_DIRS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    return Workplace(path, {**provider.environ(), "SPANREPLAY_GUARD": "production", **quiet, **environ})


def write_notebook(place: Workplace, name: str, cells: Sequence[str]) -> Path:
    """A notebook with these cells of code."""
    made = [
        {"cell_type": "code", "id": f"cell-{number}", "source": source, "metadata": {}, "outputs": []}
        | {"execution_count": None}
        for number, source in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return place.write(name, json.dumps(notebook))


def read_outputs(place: Workplace, name: str = "done.ipynb") -> list[list[dict[str, Any]]]:
    """What each cell of an executed notebook shows."""
    cells = json.loads((place.path / name).read_text(encoding="utf-8"))["cells"]
    return [each["outputs"] for each in cells]


def cells_of(place: Workplace) -> list[Recording]:
    """The runs of cells, oldest first."""
    return sorted(units_of(place), key=lambda unit: int(input_of(unit)["execution_count"]))


class Kernel:
    """A recorded kernel, and its client."""

    def __init__(self, process: subprocess.Popen[str], client: Any) -> None:
        self.process = process
        self.client = client

    def execute(self, source: str, **options: Any) -> Mapping[str, Any]:
        """Execute a cell to its end; the reply. Its outputs are in `client`."""
        reply: dict[str, Any] = self.client.execute_interactive(
            source, timeout=TIMEOUT_S, output_hook=lambda _: None, **{"allow_stdin": False, **options}
        )
        content: dict[str, Any] = reply["content"]
        return content

    def stop(self) -> None:
        """End it as its manager does."""
        self.client.shutdown()
        self.process.communicate(timeout=TIMEOUT_S)


@contextmanager
def a_kernel(place: Workplace, *command: str, **environ: str) -> Iterator[Kernel]:
    """A recorded kernel with a client; killed at the end if it still runs."""
    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.connect import write_connection_file

    file = place.path / "kernel.json"
    write_connection_file(str(file))
    words = command or (str(place.python), *KERNEL)
    process = place.spawn([*words, "-f", str(file)], **environ)
    client: Any = BlockingKernelClient(connection_file=str(file))
    try:
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT_S)
        yield Kernel(process, client)
    finally:
        client.stop_channels()
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)


def interrupt(kernel: Kernel) -> None:
    """As the button of a notebook does."""
    kernel.process.send_signal(signal.SIGINT)


def await_calls(provider: Provider, count: int) -> None:
    """Wait until a provider was asked so often."""
    await_true(lambda: len(provider.requests) >= count)
