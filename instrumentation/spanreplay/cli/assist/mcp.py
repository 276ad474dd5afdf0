"""`spanreplay mcp`: a server on standard input and output that lets a coding agent find, read and replay runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from spanreplay.cli.agent.launch import Agent, check_not_isolated, find_agent
from spanreplay.cli.assist.tools import INSTRUCTIONS, Bench
from spanreplay.model.errors import ConfigError, SpanreplayError
from spanreplay.model.how_to_install import install_command
from spanreplay.model.version import VERSION

NAME: Final = "spanreplay"


@click.command("mcp")
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--timeout", type=click.IntRange(1), default=300, show_default=True, help="Time limit of one replay, in seconds."
)
def mcp_command(*, command: tuple[str, ...], timeout: int) -> None:
    """Serve recordings to a coding agent, over the Model Context Protocol on standard input and output.

    \b
    claude mcp add spanreplay -- spanreplay mcp -- python agent.py

    The agent can find and read runs, compare two, and replay one with CMD: offline, in the sandbox, never live. Only
    CMD is ever run; without it there is no tool to replay. Nothing that a recording says can start anything.
    """
    agent: Agent | None = None
    if command:
        agent = find_agent(command)
        check_not_isolated(agent)
    build_server(Bench(agent, timeout)).run()


def build_server(bench: Bench) -> Any:
    """The server with a tool for each thing that the bench can do. Raises: ConfigError if the SDK is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as exc:
        raise ConfigError(
            f"`spanreplay mcp` needs a package that is missing: {exc.name}", hint=install_command("mcp")
        ) from exc

    def told(work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose errors reach the agent in one line with what to do."""

        @functools.wraps(work)
        def run(**arguments: Any) -> Any:
            try:
                return work(**arguments)
            except SpanreplayError as exc:
                raise ToolError(f"{exc}{f' ({exc.hint})' if exc.hint else ''}") from exc

        return run

    server = MCPServer(NAME, instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING")
    harmless = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    for work in bench.list_tools():
        server.add_tool(told(work), annotations=harmless)
    return server
