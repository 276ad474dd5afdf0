"""The traceback of a failed request has the same text in a replay, with the exceptions behind it and their frames."""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import aiohttp
import botocore.awsrequest
import botocore.httpsession
import httpx
import pytest
import requests
import urllib3
import websockets.asyncio.client
import websockets.sync.client

from spanreplay.model.call import Recording
from spanreplay.runtime.calls import chains
from spanreplay.seams.transport import aiohttp as _aiohttp
from spanreplay.seams.transport import botocore as _botocore
from spanreplay.seams.transport import httpx as _httpx
from spanreplay.seams.transport import requests as _requests
from spanreplay.seams.transport import urllib as _urllib
from spanreplay.seams.transport import urllib3 as _urllib3
from spanreplay.seams.transport import websockets as _websockets
from support.faulty_server import FaultyServer
from support.in_process import Replayed, recorded, replayed
from support.ports import free_port

TIMEOUT_S: Final = 0.3
SEAMS: Final = (
    (_httpx.install, httpx),
    (_requests.install, requests),
    (_urllib3.install, urllib3),
    (_aiohttp.install, aiohttp),
    (_urllib.install, urllib.request),
    (_botocore.install, botocore.httpsession),
    (_websockets.install, websockets.asyncio.client),
    (_websockets.install, websockets.sync.client),
)
FAULTS: Final = ("refused", "tls", "close", "hang", "junk", "half", "cut", "stuck")
"""A closed port, a port without TLS; the others are paths of the server."""


def _httpx_get(url: str) -> None:
    httpx.get(url, timeout=TIMEOUT_S)


def _httpx_stream(url: str) -> None:
    with httpx.stream("GET", url, timeout=TIMEOUT_S) as response:
        for _ in response.iter_bytes():
            pass


async def _ahttpx_get(url: str) -> None:
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        await client.get(url)


async def _ahttpx_stream(url: str) -> None:
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client, client.stream("GET", url) as response:
        async for _ in response.aiter_bytes():
            pass


def _requests_get(url: str) -> None:
    requests.get(url, timeout=TIMEOUT_S)


def _requests_stream(url: str) -> None:
    with requests.get(url, timeout=TIMEOUT_S, stream=True) as response:
        for _ in response.iter_content(3):
            pass


def _urllib3_retry(url: str) -> None:
    urllib3.PoolManager().request("GET", url, timeout=TIMEOUT_S, retries=1)


def _urllib3_stream(url: str) -> None:
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "retries": False, "preload_content": False}
    for _ in urllib3.PoolManager().request("GET", url, **options).stream(3):
        pass


async def _aiohttp_get(url: str) -> None:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
        session.get(url) as got,
    ):
        await got.read()


async def _aiohttp_stream(url: str) -> None:
    timeout = aiohttp.ClientTimeout(sock_read=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as got:
        async for _ in got.content.iter_chunked(3):
            pass


def _urllib_get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        response.read()


def _urllib_stream(url: str) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        while response.read(3):
            pass


def _botocore_get(url: str) -> None:
    session = botocore.httpsession.URLLib3Session(timeout=TIMEOUT_S)
    session.send(botocore.awsrequest.AWSRequest("GET", url).prepare())


def _botocore_stream(url: str) -> None:
    session = botocore.httpsession.URLLib3Session(timeout=TIMEOUT_S)
    response = session.send(botocore.awsrequest.AWSRequest("GET", url, stream_output=True).prepare())
    while response.raw.read(3):
        pass


def _websocket(url: str) -> None:
    websockets.sync.client.connect(url.replace("http", "ws"), open_timeout=TIMEOUT_S)


async def _awebsocket(url: str) -> None:
    await websockets.asyncio.client.connect(url.replace("http", "ws"), open_timeout=TIMEOUT_S)


CLIENTS: Final[dict[str, Callable[[str], Any]]] = {
    "httpx": _httpx_get,
    "httpx_stream": _httpx_stream,
    "async_httpx": _ahttpx_get,
    "async_httpx_stream": _ahttpx_stream,
    "requests": _requests_get,
    "requests_stream": _requests_stream,
    "urllib3_retry": _urllib3_retry,
    "urllib3_stream": _urllib3_stream,
    "aiohttp": _aiohttp_get,
    "aiohttp_stream": _aiohttp_stream,
    "urllib": _urllib_get,
    "urllib_stream": _urllib_stream,
    "botocore": _botocore_get,
    "botocore_stream": _botocore_stream,
    "websocket": _websocket,
    "async_websocket": _awebsocket,
}


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """The URL of each fault."""
    with FaultyServer() as server:
        yield {
            **{fault: f"{server.url}/{fault}" for fault in FAULTS},
            "refused": f"http://127.0.0.1:{free_port()}/x",
            "tls": f"{server.url.replace('http:', 'https:')}/x",
        }


def _ask(client: Callable[[str], Any], url: str) -> None:
    if inspect.iscoroutinefunction(client):
        asyncio.run(client(url))
    else:
        client(url)


def _tell(ask: Callable[[], Any]) -> str:
    """What an agent prints when asking fails."""
    try:
        ask()
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 -- of any library
        return traceback.format_exc()
    return "nothing has failed"


def _while_handling(ask: Callable[[], None]) -> None:
    try:
        raise ValueError("outer")
    except ValueError:
        ask()


def _both(program: Callable[[], Any], change: Callable[[Recording], Recording] = lambda same: same) -> tuple[Any, Any]:
    """Return what a program returns when it is recorded and when it is replayed, which must be identical."""
    seen: list[Any] = []
    recording = recorded(lambda: seen.append(program()), SEAMS)
    outcome: Replayed = replayed(program, change(recording), seams=SEAMS)
    assert outcome.error is None
    assert outcome.kinds() == []
    return seen[0], outcome.result


@pytest.mark.parametrize("name", CLIENTS)
def test_s61_traceback_of_a_failed_request_is_the_same_text(name: str, urls: dict[str, str]) -> None:
    """Each way to fail has the same frames and the same exceptions behind it, also while another one is handled."""
    client = CLIENTS[name]

    def program() -> dict[str, str]:
        told = {fault: _tell(lambda: _ask(client, urls[fault])) for fault in FAULTS}  # noqa: B023 -- called at once
        told["while handling"] = _tell(lambda: _while_handling(lambda: _ask(client, urls["refused"])))
        return told

    then, now = _both(program)
    assert now == then
    assert [*then.values()].count("nothing has failed") <= 2  # some libraries accept a body that ends early
    assert "ValueError: outer" in then["while handling"] or "httpx" in name  # httpx names a cause instead
    assert any(told.count("Traceback (most recent call last)") > 1 for told in then.values())


def test_s61_exceptions_behind_one_are_connected_as_recorded(urls: dict[str, str]) -> None:
    """An agent that follows causes, arguments and attributes to an inner exception's frames finds the same ones."""

    def program() -> list[Any]:
        with pytest.raises(requests.ConnectionError) as caught:
            _requests_get(urls["refused"])
        (inner,) = caught.value.args
        frames = traceback.extract_tb(inner.reason.__traceback__)
        shared = [inner is caught.value.__context__, inner.reason is inner.__cause__, inner.__cause__.__cause__.errno]
        asked: Any = caught.value.request
        return [*shared, asked.url, inner.reason.__traceback__.tb_frame.f_globals["__name__"], frames]

    then, now = _both(program)
    assert then[:2] == [True, True]
    assert now == then


def _asking(url: str, failure: Callable[[], Exception], cause: Callable[[], Exception]) -> Callable[[], str]:
    """A program whose adapter of requests fails with one exception because of another."""

    class Adapter(requests.adapters.HTTPAdapter):
        def send(self, *args: Any, **kwargs: Any) -> Any:
            raise failure() from cause()

    def program() -> str:
        with requests.Session() as session:
            session.mount("http://", Adapter())
            return _tell(lambda: session.get(url))

    return program


def test_s61_exception_that_holds_a_connection_comes_back(urls: dict[str, str]) -> None:
    """`ConnectTimeoutError` has a connection among its arguments, replaced by an object that prints like it."""
    held = urllib3.connection.HTTPConnection("127.0.0.1")

    then, now = _both(
        _asking(
            urls["refused"],
            lambda: requests.ConnectTimeout("late"),
            lambda: urllib3.exceptions.ConnectTimeoutError(held, "timed out"),
        )
    )
    assert now == then
    assert "urllib3.exceptions.ConnectTimeoutError: (<HTTPConnection" in then


class Opaque(Exception):
    """An exception that is made of other arguments than it keeps, one of which can't even be printed."""

    def __new__(cls, text: str) -> Opaque:
        """Refuse more arguments."""
        return super().__new__(cls, text)

    def __init__(self, text: str) -> None:
        super().__init__(text, Unprintable())

    def __str__(self) -> str:
        return "opaque"


class Unprintable:
    """A value without a codec."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_s61_exception_behind_one_that_can_not_be_described_prints_the_same(urls: dict[str, str]) -> None:
    """A stand-in takes its place, and the request is recorded whatever its exceptions do."""

    then, now = _both(_asking(urls["refused"], lambda: requests.ConnectionError("down"), lambda: Opaque("secret")))
    assert now == then
    assert "test_tracebacks.Opaque: opaque" in then


@pytest.mark.parametrize("name", ["async_httpx", "async_httpx_stream", "aiohttp", "aiohttp_stream"])
@pytest.mark.parametrize("fault", ["hang", "stuck"])
@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout came with Python 3.11")
def test_s61_cancellation_behind_a_timeout_has_its_recorded_frames(
    name: str, fault: str, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.timeout` raises its error from the cancellation, whose frames lie in the library."""
    monkeypatch.setattr(sys.modules[__name__], "TIMEOUT_S", 60)

    async def limited() -> None:
        async with asyncio.timeout(0.3):
            await CLIENTS[name](urls[fault])

    then, now = _both(lambda: _tell(lambda: asyncio.run(limited())))
    assert now == then
    assert "CancelledError" in then


def test_old_recording_without_stacks_is_replayed(urls: dict[str, str]) -> None:
    """The exception of a recording of an earlier version has its type and message, and the frames of the replay."""

    def forget(recording: Recording) -> Recording:
        (call,) = recording.calls
        assert "chain" in call.meta
        return replace(recording, calls=(replace(call, meta={}),))

    then, now = _both(lambda: _tell(lambda: _httpx_get(urls["refused"])), forget)
    assert then.splitlines()[-1] == now.splitlines()[-1] == "httpx.ConnectError: [Errno 111] Connection refused"


def test_request_that_succeeds_describes_no_stack(monkeypatch: pytest.MonkeyPatch, urls: dict[str, str]) -> None:
    """Recording a request costs nothing more unless it fails."""
    described: list[BaseException] = []
    real = chains.describe

    def describe(exc: BaseException) -> dict[str, Any]:
        described.append(exc)
        return real(exc)

    monkeypatch.setattr(chains, "describe", describe)
    recorded(lambda: _tell(lambda: _httpx_get(urls["refused"])), SEAMS)
    assert len(described) == 1
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="fine"))
    recorded(lambda: httpx.Client(transport=transport).get("http://example.test/"), SEAMS)
    assert len(described) == 1
