"""How long a request may take is compared where it decides how the call ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.changed import load, record_agent, replay_agent
from support.grpc_server import GrpcServer
from support.route_server import Handler, RouteServer

TAKES_S: Final = 0.3
AGENTS: Final = {
    "httpx": """
import httpx
def ask(url, limit):
    return httpx.get(url, timeout=limit).text
""",
    "httpx2": """
import httpx2
def ask(url, limit):
    with httpx2.Client(timeout=httpx2.Timeout(9, read=limit)) as client:
        return client.get(url).text
""",
    "httpx, async": """
import asyncio, httpx
async def fetch(url, limit):
    async with httpx.AsyncClient(timeout=limit) as client:
        return (await client.get(url)).text
def ask(url, limit):
    return asyncio.run(fetch(url, limit))
""",
    "requests": """
import requests
def ask(url, limit):
    return requests.get(url, timeout=(9, limit)).text
""",
    "urllib3": """
import urllib3
def ask(url, limit):
    return urllib3.PoolManager(timeout=urllib3.Timeout(connect=9, read=limit)).request("GET", url, retries=False).data
""",
    "urllib": """
import urllib.request
def ask(url, limit):
    return urllib.request.urlopen(url, timeout=limit).read()
""",
    "aiohttp": """
import aiohttp, asyncio
async def fetch(url, limit):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit)) as session:
        async with session.get(url) as response:
            return await response.text()
def ask(url, limit):
    return asyncio.run(fetch(url, limit))
""",
    "aiohttp, one wait": """
import aiohttp, asyncio
async def fetch(url, limit):
    async with aiohttp.ClientSession() as session:
        async with session.get(url, timeout=aiohttp.ClientTimeout(sock_read=limit)) as response:
            return await response.text()
def ask(url, limit):
    return asyncio.run(fetch(url, limit))
""",
    "grpc": """
import grpc
def ask(target, limit):
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary("/test.Oracle/Slow")
        return call(b"0.3", limit)
""",
    "grpc, a future": """
import grpc
def ask(target, limit):
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary("/test.Oracle/Slow")
        return call.future(b"0.3", timeout=limit).result()
""",
    "grpc.aio": """
import asyncio, grpc.aio
async def fetch(target, limit):
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary("/test.Oracle/Slow")
        return await call(b"0.3", timeout=limit)
def ask(target, limit):
    return asyncio.run(fetch(target, limit))
""",
    "botocore": """
import botocore.session
from botocore.config import Config
def ask(url, limit):
    config = Config(read_timeout=limit, retries={"max_attempts": 0})
    client = botocore.session.get_session().create_client(
        "s3", "eu-west-1", endpoint_url=url.rpartition("/")[0], aws_access_key_id="a", aws_secret_access_key="b",
        config=config,
    )
    return client.list_buckets()["ResponseMetadata"]["HTTPStatusCode"]
""",
}
_END: Final = """
def agent():
    try:
        ask("{url}", {limit})
    except Exception as exc:
        print("failed:", type(exc).__name__)
"""


@pytest.fixture
def url(name: str) -> Iterator[str]:
    """The address of a server that answers the client of this name after a while."""
    if name.startswith("grpc"):
        with GrpcServer() as grpc_server:
            yield f"127.0.0.1:{grpc_server.port}"
        return
    over = threading.Event()

    def answer(handler: Handler) -> None:
        over.wait(TAKES_S)
        handler.send(b"<a/>", headers={"content-type": "application/xml"})

    with RouteServer({"/slow": answer, "/": answer}) as server:
        yield f"{server.url}/slow"
        over.set()


def _write(name: str, url: str, limit: float | None) -> str:
    return AGENTS[name] + _END.format(url=url, limit=limit)


@pytest.mark.parametrize("name", AGENTS)
def test_p12_n2_a_limit_that_decides_how_a_call_ends_is_a_difference(
    name: str, url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A shorter one would have ended the recorded call. Others are listed."""
    run_id = record_agent(load(_write(name, url, 5), tmp_path))
    assert "failed" not in capfd.readouterr().out
    found = replay_agent(run_id, load(_write(name, url, 5), tmp_path))
    assert found["verdict"] == "identical", found["divergences"]
    for limit in (3, None):
        found = replay_agent(run_id, load(_write(name, url, limit), tmp_path))
        assert found["verdict"] == "identical", (limit, found["divergences"])
        listed = {diff["path"]: diff["now"] for each in found["ignored_diffs"] for diff in each["diff"]}
        assert set(listed.values()) == {"no limit" if limit is None else f"{limit} s"}
    found = replay_agent(run_id, load(_write(name, url, TAKES_S / 3), tmp_path))
    assert found["verdict"] == "diverged"
    assert _find_places(found) <= {"timeout.read", "timeout.total"}
    assert "now 0.1 s; the recorded call took 0." in found["divergences"][0]["message"]


@pytest.mark.parametrize("name", AGENTS)
def test_p12_n2_a_longer_limit_than_one_that_a_call_ran_into_is_a_difference(
    name: str, url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows what would have come; that is the very fix that a person tries."""
    limit = TAKES_S / 3
    run_id = record_agent(load(_write(name, url, limit), tmp_path))
    assert "failed: " in capfd.readouterr().out
    assert replay_agent(run_id, load(_write(name, url, limit / 2), tmp_path))["verdict"] == "identical"
    for longer in (5, None):
        found = replay_agent(run_id, load(_write(name, url, longer), tmp_path))
        assert found["verdict"] == "diverged", longer
        assert _find_places(found) & {"timeout.read", "timeout.total"}
        assert "the recorded call ran into it after 0." in found["divergences"][0]["message"]


def _find_places(verdict: dict[str, Any]) -> set[str]:
    return {diff["path"] for each in verdict["divergences"] for diff in each["diff"]}
