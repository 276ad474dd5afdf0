"""An MCP session with a server in the same process."""

from secrets import token_hex

import anyio
from mcp.client.session import ClientSession

try:
    from mcp.server.fastmcp import FastMCP as Server
except ImportError:
    from mcp.server.mcpserver import MCPServer as Server
from mcp.shared.memory import create_client_server_memory_streams

BODIES = []
CALLS = 3
FAILING_CALLS = 3


def make_server():
    server = Server("notes")

    @server.tool()
    def draw(row: int) -> str:
        """Draw a number."""
        BODIES.append("draw")
        return f"{row} {token_hex(8)}"

    @server.tool()
    def refuse(row: int) -> str:
        """Refuse."""
        BODIES.append("refuse")
        raise ValueError("no such row")

    return server


async def ask(name):
    server = make_server()
    low = getattr(server, "_mcp_server", None) or server._lowlevel_server
    async with (
        create_client_server_memory_streams() as (client_streams, server_streams),
        anyio.create_task_group() as group,
    ):
        group.start_soon(lambda: low.run(*server_streams, low.create_initialization_options()))
        async with ClientSession(*client_streams) as session:
            await session.initialize()
            await session.list_tools()
            result = await session.call_tool(name, {"row": 1})
        group.cancel_scope.cancel()
    return [c.text for c in result.content]


async def use():
    return await ask("draw")


async def fail():
    return await ask("refuse")
