"""Consoles: data on standard output, talk on standard error, colours only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay.report.escape import escape

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_COLUMNS: Final = 200
"""Width for output that goes to a pipe or a file; nothing is wrapped there."""


def make_streams_tolerant() -> None:
    """Write what the terminal's encoding cannot hold as an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def open_console(*, stderr: bool = False) -> Console:
    """A console that neither interprets nor decorates content."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream.isatty()
    return Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if is_terminal else PIPE_COLUMNS
    )


def print_data(renderable: RenderableType) -> None:
    """Print to standard output, without blanks at the ends of lines."""
    console = open_console()
    with console.capture() as capture:
        console.print(renderable, soft_wrap=not console.is_terminal)
    click.echo("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")), color=True)


def print_json(value: Any) -> None:
    """Print one JSON value to standard output, ASCII only: nothing in it can drive a terminal."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def say(message: str) -> None:
    """One line of talk on standard error."""
    click.echo(escape(message), err=True)


@contextmanager
def working(message: str) -> Iterator[None]:
    """Show that something takes a while, where a terminal can show it."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(escape(message)):
        yield
