"""The demo's narrator: numbered steps, commands as typed, checked promises."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.status import Status

from spanreplay_service.demo.stage import DemoFailed


class Narrator:
    """Writes the story to a console; `step` is the number of the current step."""

    def __init__(self, console: Console, steps: int) -> None:
        self.console = console
        self.steps = steps
        self.step = 0

    def wait(self, what: str) -> Status:
        """A spinner for the duration of a `with` block, if the console is a terminal."""
        return self.console.status(what, spinner="dots")

    def start_step(self, title: str) -> None:
        """Print a numbered headline."""
        self.step += 1
        self.console.print(f"\n[bold cyan]{self.step}/{self.steps}  {title}[/]")

    def start_part(self, title: str) -> None:
        """Print a headline without a number."""
        self.console.print(f"\n[bold]{title}[/]")

    def show_order(self, user: str, text: str, *, is_bad: bool) -> None:
        """Print the confirmation that a customer got."""
        style = "bold red" if is_bad else "dim"
        self.console.print(f"       {user}  {text}", style=style, highlight=False, markup=False)

    def say(self, text: str) -> None:
        """Print a line of narration."""
        self.console.print(f"     {text}", highlight=False, markup=False)

    def show_command(self, command: Sequence[str], note: str = "") -> None:
        """Print a command as a user would type it."""
        text = shlex.join(command)
        self.console.print(f"     $ {text}", style="green", highlight=False, markup=False, end="")
        self.console.print(f"   {note}" if note else "", style="dim", highlight=False, markup=False)

    def show_output(self, text: str) -> None:
        """Print the output of a command."""
        for line in text.rstrip().splitlines():
            self.console.print(f"       {line}", style="dim", highlight=False, markup=False, no_wrap=True)

    def show_diff(self, lines: Iterable[str]) -> None:
        """Print the changed lines of a unified diff with their context."""
        for line in lines:
            if not line.startswith(("---", "+++", "@@")):
                style = {"+": "green", "-": "red"}.get(line[:1], "dim")
                self.console.print(f"       {line}", style=style, highlight=False, markup=False)

    def check(self, is_true: bool, promise: str, what: str) -> None:
        """Tick off a promise that was kept. Raises: DemoFailed with `what`, an explanation, if it was not."""
        if not is_true:
            raise DemoFailed(f"expected: {promise}\n{what}")
        self.console.print(f"     [green]✓[/] {promise}", highlight=False)
