"""An ordinary agent with an MCP server over stdio (mcp 1.9 and 2.x) and one model call.

usage: python mcp_agent.py [TIMEZONE ...]
The server is the command in AGENT_MCP_SERVER (default: mcp-server-time).
"""

import asyncio
import os
import shlex
import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI

MODEL = os.environ.get("AGENT_MODEL", "gpt-x")


def show(*parts):
    print(*parts, flush=True)


def show_result(name, result):
    show(name, type(result).__name__, result.model_dump_json())
    for block in result.content:
        show(name, type(block).__name__, block.text)


async def main(timezones):
    command, *args = shlex.split(os.environ.get("AGENT_MCP_SERVER", "mcp-server-time"))
    server = StdioServerParameters(command=command, args=args)
    with Path(os.devnull).open("w") as errlog:
        async with (
            stdio_client(server, errlog=errlog) as (read, write),
            ClientSession(read, write) as session,
            AsyncOpenAI() as client,
        ):
            hello = await session.initialize()
            show("initialize", type(hello).__name__, hello.model_dump_json())
            listed = await session.list_tools()
            for tool in listed.tools:
                show("tool", type(tool).__name__, tool.name, tool.description)
            for timezone in timezones:
                result = await session.call_tool("get_current_time", {"timezone": timezone})
                show_result(timezone, result)
            both = await asyncio.gather(
                *(session.call_tool("get_current_time", {"timezone": zone}) for zone in timezones * 3)
            )
            for result in both:
                show_result("gathered", result)
            show_result("bad", await session.call_tool("get_current_time", {"timezone": "Mars/Olympus"}))
            answer = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"Greet me. It is {both[0].content[0].text}"}],
            )
            show("answer", answer.id, answer.choices[0].message.content)


if __name__ == "__main__":
    show("mcp", sys.argv[1:])
    asyncio.run(main(sys.argv[1:] or ["Europe/Paris", "Asia/Tokyo"]))
    show("done")
