"""For each transport one request to a closed port, and two values for each part of the request."""

from __future__ import annotations

from typing import Final

from support.argument_cases import Values

NOBODY: Final = "http://127.0.0.1:1"
HTTP: Final[dict[str, Values]] = {
    "method": ("'PUT'", "'PATCH'"), "url": ("'/a'", "'/b'"), "query": ("'?q=1'", "'?q=2'"),
    "header": ("'acme'", "'evil'"),
    "name": ("'x-tenant'", "'x-client'"), "body": ("b'pay 10'", "b'pay 99'"),
    "json": ("b'{\"a\": 1}'", "b'{\"a\": 2}'"),
    "long": ("'a, ' * 2000 + 'gold'", "'a, ' * 2000 + 'silver'"), "last": ("'1'", "'2'"),
}  # fmt: skip
CREDENTIALS: Final[dict[str, Values]] = {
    "authorization": ("'Bearer a1b2c3'", "'Bearer d4e5f6'"), "cookie": ("'session=1'", "'session=2'"),
    "traceparent": ("'00-1-1-00'", "'00-2-2-00'"),
}  # fmt: skip
_MANY: Final = "**{f'x-{n}': 'y' for n in range(80)}, 'x-last': {last}"
_HEADERS: Final = "{{name}: {header}, 'x-long': {long}, " + _MANY + "}"
_PLAIN: Final = "{'authorization': {authorization}, 'cookie': {cookie}, 'traceparent': {traceparent}, " + _MANY + "}"
_SEND: Final = "send({method}, '" + NOBODY + "' + {url} + {query}, " + _HEADERS + ", {body})"
_MORE: Final = "send('POST', '" + NOBODY + "/', " + _PLAIN + ", {json})"

CLIENTS: Final[dict[str, str]] = {
    "httpx": "import httpx\ndef send(m, u, h, b): httpx.request(m, u, headers=h, content=b)",
    "httpx2": "import httpx2\ndef send(m, u, h, b): httpx2.request(m, u, headers=h, content=b)",
    "requests": "import requests\ndef send(m, u, h, b): requests.request(m, u, headers=h, data=b)",
    "urllib3": "import urllib3\ndef send(m, u, h, b): urllib3.request(m, u, headers=h, body=b, retries=False)",
    "urllib": "import urllib.request as r\ndef send(m, u, h, b): r.urlopen(r.Request(u, headers=h, data=b, method=m))",
    "aiohttp": "import asyncio, aiohttp\nasync def ask(m, u, h, b):\n    async with aiohttp.ClientSession() as s:\n"
    "        await s.request(m, u, headers=h, data=b)\ndef send(*a): asyncio.run(ask(*a))",
    "botocore": "import botocore.httpsession as s, botocore.awsrequest as r\n"
    "def send(m, u, h, b): s.URLLib3Session().send(r.AWSRequest(m, u, headers=h, data=b).prepare())",
}
GRPC: Final[dict[str, Values]] = {
    "method": ("'/a.B/Get'", "'/a.B/Put'"), "metadata": ("'acme'", "'evil'"), "message": ("b'1'", "b'2'"),
}  # fmt: skip
_CALL: Final = "channel.{kind}({method})({sent}, metadata=(('x-tenant', {metadata}),))"
GRPC_AGENT: Final = "import grpc\ndef agent():\n    channel = grpc.insecure_channel('127.0.0.1:1')\n    try:\n        "
WEBSOCKETS: Final = """
import asyncio, contextlib, websockets.asyncio.client as c, websockets.sync.client as s
async def ask():
    with contextlib.suppress(OSError):
        await c.connect("ws://127.0.0.1:1" + {url}, additional_headers={"x-tenant": {header}})
def agent():
    asyncio.run(ask())
    with contextlib.suppress(OSError):
        s.connect("ws://127.0.0.1:1" + {url}, additional_headers={"x-tenant": {header}})
"""
SOCKETS: Final[dict[str, Values]] = {"url": ("'/a'", "'/b'"), "header": ("'acme'", "'evil'")}


def fill(source: str, values: dict[str, Values], changed: str = "") -> str:
    """Return a source with the first values, except for the changed one."""
    for name, (first, other) in values.items():
        source = source.replace("{" + name + "}", other if name == changed else first)
    return source


def http_agent(client: str) -> str:
    """Return an agent that sends two requests to a closed port; its values are those of HTTP and CREDENTIALS."""
    return (
        f"{CLIENTS[client]}\ndef agent():\n    for ask in (first, second):\n        try:\n            ask()\n"
        f"        except Exception:\n            pass\ndef first():\n    {_SEND}\ndef second():\n    {_MORE}\n"
    )


def grpc_agent(kind: str) -> str:
    """Return an agent that makes one gRPC call to a closed port; its values are those of GRPC."""
    sent = "iter([{message}])" if kind.startswith("stream") else "{message}"
    end = "" if kind.endswith("unary") else "list"
    call = _CALL.replace("{kind}", kind).replace("{sent}", sent)
    return f"{GRPC_AGENT}{end}({call})\n    except grpc.RpcError:\n        pass\n    channel.close()\n"
