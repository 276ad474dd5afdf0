"""An MCP server over streamable HTTP on 127.0.0.1; every answer is new. usage: mcp_http_server.py PORT"""

import random
import sys

import uvicorn

try:
    from mcp.server import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("dice")


@server.tool()
def roll(sides: int) -> int:
    """Roll one die."""
    return random.SystemRandom().randrange(sides)


uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
