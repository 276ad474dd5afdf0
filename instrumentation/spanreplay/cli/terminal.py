"""Consoles: data on standard output, messages on standard error, colours only on a terminal.

All output of commands goes through this module, which escapes control characters, so callers don't have to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay.model.escape import escape

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

PIPE_COLUMNS: Final = 200
"""Width of output to a pipe or a file, where nothing is wrapped."""
BAR_FROM: Final = 2
"""Smallest number of parts for which a progress bar is shown."""


def make_streams_tolerant() -> None:
    """Write characters that the terminal's encoding lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def open_console(*, stderr: bool = False) -> Console:
    """Open a console that neither interprets nor decorates content."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream.isatty()
    return Console(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=None if is_terminal else PIPE_COLUMNS
    )


def print_data(renderable: RenderableType, *, is_paged: bool = False) -> None:
    """Print to standard output, without trailing blanks; for `is_paged` see `print_pages`."""
    console = open_console()
    with console.capture() as capture:
        console.print(_Escaped(renderable), soft_wrap=not console.is_terminal)
    text = "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))
    if is_paged:
        print_pages(text)
    else:
        click.echo(text, color=True)


def print_pages(text: str) -> None:
    """Print escaped text; if it does not fit the terminal, through the pager (PAGER, else less)."""
    console = open_console()
    is_watched = console.is_terminal and sys.stdin is not None and sys.stdin.isatty()
    if is_watched and text.count("\n") + 1 >= console.height:
        click.echo_via_pager(text + "\n", color=True)
    else:
        click.echo(text, color=True if console.is_terminal else None)


class _Escaped:
    """A renderable whose control characters are escaped."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for segment in console.render(self._renderable, options):
            text = segment.text if segment.control else escape(segment.text, keep_lines=True)
            yield Segment(text, segment.style, segment.control)


def echo(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print text and keep its line breaks; `style` is passed to click."""
    click.secho(escape(text, keep_lines=True), err=err, nl=nl, **style)


def print_json(value: Any) -> None:
    """Print one JSON value to standard output, ASCII only: nothing in it can drive a terminal."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def say(message: str) -> None:
    """Print a message as one line on standard error."""
    click.echo(escape(message), err=True)  # one line, whatever is in it


@contextmanager
def working(message: str) -> Iterator[None]:
    """Show a spinner during long work, on a terminal only."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(escape(message)):
        yield


@contextmanager
def counting(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, on a terminal only; call the yielded function with the number of parts done."""
    console = open_console(stderr=True)
    if not console.is_terminal or total < BAR_FROM:
        yield _uncounted
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(escape(message), markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def told(done: int) -> None:
            progress.update(task, completed=done)

        yield told


def _uncounted(done: int) -> None:
    """No-op: no bar is shown."""
