"""An ordinary agent with an MCP server over streamable HTTP, at AGENT_MCP_URL (mcp 1.9 and 2.x)."""

import asyncio
import os

from mcp import ClientSession

try:
    from mcp.client.streamable_http import streamable_http_client as connect
except ImportError:
    from mcp.client.streamable_http import streamablehttp_client as connect


async def main():
    async with connect(os.environ["AGENT_MCP_URL"]) as (read, write, *_), ClientSession(read, write) as session:
        hello = await session.initialize()
        print(type(hello).__name__, hello.model_dump_json())
        for tool in (await session.list_tools()).tools:
            print(tool.name, tool.description)
        for result in await asyncio.gather(*(session.call_tool("roll", {"sides": 10**9}) for _ in range(5))):
            print(type(result).__name__, result.model_dump_json())


asyncio.run(main())
print("done")
