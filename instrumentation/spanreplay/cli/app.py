"""The command group: a table of commands, each loaded when it is called, and the format of error messages."""

from __future__ import annotations

import difflib
import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from spanreplay.cli.terminal import echo
from spanreplay.model.config import read_flag
from spanreplay.model.errors import SpanreplayError
from spanreplay.model.escape import escape
from spanreplay.model.how_to_install import install_command
from spanreplay.model.version import VERSION

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "spanreplay.commands"

COMMANDS: Final = {
    "record": ("record", "Run an agent and record it"),
    "ls": ("ls", "Find recorded runs"),
    "show": ("show", "Show what happened in a run"),
    "replay": ("replay", "Run an agent against a recording"),
    "suite": ("suite", "Replay many units of an application that is started once"),
    "trace": ("trace", "Replay one request through all services that it went through"),
    "resume": ("resume", "Resume a run that is waiting for a human, or was killed"),
    "fork": ("branches.fork", "Go on live from a call of a recorded run"),
    "splice": ("branches.splice", "Record again only what a change of the code affects"),
    "sweep": ("branches.sweep", "Fork a run many times, with variants and one budget"),
    "diff": ("compare.diff", "Show how two recorded runs differ, and where they diverge"),
    "bisect": ("compare.bisect", "Find the commit that changed what a run does"),
    "promote": ("compare.promote", "Turn a run that went wrong, or was right, into a test"),
    "mutate": ("variations.mutate", "Find out which recorded fields the outcome depends on"),
    "fuzz": ("variations.fuzz", "Find answers near the recorded ones with which the agent fails"),
    "minimize": ("variations.minimize", "Find the smallest recording with which an agent still fails"),
    "drift": ("drift", "Find models that answer equal requests differently than before"),
    "mcp": ("assist.mcp", "Serve recordings to a coding agent (MCP)"),
    "report": ("report", "Show a replay's verdict in another format"),
    "export": ("export", "Write a run to a .replay file"),
    "pin": ("keeping.pin", "Keep a run at a service, whatever its age"),
    "erase": ("keeping.erase", "Remove runs for good: by id, user, session or age"),
    "stats": ("keeping.stats", "Show what recording costs, by kind of boundary"),
    "anchor": ("keeping.anchor", "Keep hashes of all runs, to prove later that none was changed or removed"),
    "verify": ("verify", "Check that runs are unchanged since they were recorded"),
    "import": ("import_", "Import a .replay file, spans as JSON, or cassettes of vcrpy"),
    "conformance": ("contract.conformance", "Judge spans of an SDK in another language"),
    "doctor": ("doctor", "Check what would be recorded, and what prevents it"),
    "ship": ("ship", "Send local recordings to the collector"),
    "completion": ("completion", "Print the shell's completion script"),
}
"""Command → module below `spanreplay.cli` (its function is `<last name of the module>_command`) and help line."""

KNOWN_HELP: Final = {
    "up": "Run collector, replay service and Phoenix here",
    "collect": "Run a collector alone, over a ClickHouse server",
    "serve": "Run the replay service alone, over a ClickHouse server",
    "migrate": "Bring the store's tables up to date",
}
"""Help lines of commands from the extras, so that --help doesn't import them."""

EXTRA_OF: Final = {"spanreplay_service": "service", "spanreplay_collector": "collector"}


def _plugins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _load_plugin(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ImportError as exc:
        extra = EXTRA_OF.get(point.module.partition(".")[0])
        hint = install_command(extra) if extra else f"reinstall the package of {point.module}"
        raise SpanreplayError(f"`spanreplay {point.name}` cannot be loaded: {exc}", hint=hint) from exc
    if not isinstance(command, click.Command):
        raise SpanreplayError(f"`spanreplay {point.name}` is not a command: {point.value} is {type(command).__name__}")
    return command


def print_error(exc: SpanreplayError) -> None:
    """Print an error and its hint to standard error."""
    lines = [escape(line) for line in str(exc).splitlines()] or [type(exc).__name__]
    echo(f"error: {lines[0]}", fg="red", err=True)
    for line in lines[1:]:
        echo(f"  {line}", err=True)
    if exc.hint:
        echo(f"hint: {escape(exc.hint)}", err=True)


def _internal(exc: Exception) -> SpanreplayError:
    return SpanreplayError(
        f"internal: {type(exc).__name__}: {exc}",
        hint="SPANREPLAY_DEBUG=true shows where; please report it",
    )


class LazyGroup(click.Group):
    """A group that imports a command only when it is called, and turns errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our own commands in the order of the table, then those of other packages."""
        return [*COMMANDS, *sorted(_plugins().keys() - COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name."""
        if cmd_name in COMMANDS:
            module = COMMANDS[cmd_name][0]
            command = getattr(
                import_module(f"spanreplay.cli.{module}"), f"{module.rpartition('.')[2].rstrip('_')}_command"
            )
            assert isinstance(command, click.Command)
            return command
        point = _plugins().get(cmd_name)
        return None if point is None else _load_plugin(point)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command that the first word names. Raises: UsageError, with similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=2) if args else []
            if near:
                hint = f" Did you mean {' or '.join(map(repr, near))}?"
                raise click.UsageError(exc.message + hint, ctx) from exc
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        rows = []
        for name in self.list_commands(ctx):
            known = COMMANDS[name][1] if name in COMMANDS else KNOWN_HELP.get(name, "(from another package)")
            rows.append((name, known))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error becomes one line and exit status 1."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except SpanreplayError as exc:
            error = exc
        except Exception as exc:
            # A user never sees a traceback of ours.
            if isinstance(exc, OSError) and exc.errno == errno.EPIPE:
                raise
            error = _internal(exc)
            error.__cause__ = exc
        if read_flag("SPANREPLAY_DEBUG", os.environ):
            raise error
        sys.stdout.flush()
        print_error(error)
        raise click.exceptions.Exit(1)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="spanreplay")
def app() -> None:
    """Record what an AI agent did, and replay it byte for byte.

    \b
    opentelemetry-instrument python agent.py       records
    spanreplay ls                                  finds the run
    spanreplay replay RUN -- python agent.py       replays it against today's code

    Recordings are read from .spanreplay/ in this folder, from SPANREPLAY_DIR, or from the service at
    SPANREPLAY_ENDPOINT.
    """
