"""Recordings made of cassettes, served to every HTTP client, and to threads in any order."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import aiohttp
import httpx
import pytest
import requests
import urllib3

import spanreplay
from spanreplay.activate.imported import LACKS, record_cassette
from spanreplay.model.errors import SpanreplayError
from spanreplay.recording.cassettes import read_cassette

SITE = "http://cassette.example"


async def _aiohttp(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def _httpx_async(url: str) -> str:
    async with httpx.AsyncClient(follow_redirects=True) as client:
        return (await client.get(url)).text


def _urllib(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


CLIENTS: dict[str, Callable[[str], str]] = {
    "requests": lambda url: requests.get(url, timeout=9).text,
    "httpx": lambda url: httpx.get(url, follow_redirects=True).text,
    "httpx.AsyncClient": lambda url: asyncio.run(_httpx_async(url)),
    "urllib3": lambda url: urllib3.PoolManager().request("GET", url).data.decode(),
    "a pool of urllib3": lambda url: urllib3.connection_from_url(url).request("GET", url[len(SITE) :]).data.decode(),
    "urllib.request": _urllib,
    "aiohttp": lambda url: asyncio.run(_aiohttp(url)),
}


def _import(folder: Path, monkeypatch: pytest.MonkeyPatch, *exchanges: tuple[str, int, str]) -> Path:
    monkeypatch.setenv("SPANREPLAY_DIR", str(folder / "data"))
    interactions = [
        {
            "request": {"method": "GET", "uri": f"{SITE}{path}", "headers": {}, "body": None},
            "response": {
                "status": {"code": code, "message": "Said"},
                "headers": {"location": [text]}
                if code == 302
                else {"Content-Type": ["text/plain"], "X-Two": ["a", "b"]},
                "body": {"string": "" if code == 302 else text},
            },
        }
        for path, code, text in exchanges
    ]
    content = json.dumps({"version": 1, "interactions": interactions}).encode()
    path = folder / "a.replay"
    path.write_bytes(record_cassette(read_cassette(content, "a.json"), "a").content)
    return path


@pytest.mark.parametrize("client", CLIENTS)
def test_w6_every_client_gets_the_end_of_a_chain_of_redirects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """Each entry of a chain is a hop of the one call that most clients make; they get the last response."""
    path = _import(tmp_path, monkeypatch, ("/1", 302, "/2"), ("/2", 302, f"{SITE}/3"), ("/3", 200, "end"))
    with spanreplay.replay(path) as block:
        assert CLIENTS[client](f"{SITE}/1") == "end"
    verdict = block.verdict()
    assert (verdict["verdict"], verdict["reasons"]) == ("incomplete", [LACKS])
    assert verdict["counts"]["served"] == (3 if client == "urllib3" else 1)


def test_w6_a_client_that_follows_no_redirect_gets_the_first_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redirect itself is served to a client that asks for no more."""
    path = _import(tmp_path, monkeypatch, ("/1", 302, "/2"), ("/2", 200, "end"))
    with spanreplay.replay(path):
        found = httpx.get(f"{SITE}/1", follow_redirects=False)
        rest = httpx.get(f"{SITE}/2")
    assert (found.status_code, found.headers["location"], rest.text) == (302, "/2", "end")
    with spanreplay.replay(path):
        pooled = urllib3.PoolManager().request("GET", f"{SITE}/1", redirect=False)
    assert (pooled.status, pooled.headers["location"]) == (302, "/2")


def test_w6_threads_make_the_requests_of_a_cassette_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cassette doesn't know threads: each gets its answer, and equal requests get theirs in recorded order."""
    same = [("/same", 200, "first"), ("/same", 200, "second")]
    path = _import(tmp_path, monkeypatch, *((f"/{n}", 200, f"answer {n}") for n in range(6)), *same)
    said: dict[int, str] = {}

    def ask(number: int) -> None:
        said[number] = requests.get(f"{SITE}/{number}", timeout=9).text

    with spanreplay.replay(path) as block:
        assert [requests.get(f"{SITE}/same", timeout=9).text for _ in range(2)] == ["first", "second"]
        threads = [threading.Thread(target=ask, args=(number,)) for number in reversed(range(6))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert said == {number: f"answer {number}" for number in range(6)}
    verdict = block.verdict()
    assert (verdict["verdict"], verdict["divergences"]) == ("incomplete", [])


def test_w6_headers_of_a_cassette_come_as_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status, reason and repeated headers are those of the cassette; a request's headers are not compared."""
    path = _import(tmp_path, monkeypatch, ("/1", 418, "tea"))
    with spanreplay.replay(path):
        found = httpx.get(f"{SITE}/1", headers={"x-app": "new"})
    assert (found.status_code, found.reason_phrase) == (418, "Said")
    assert found.headers.get_list("x-two") == ["a", "b"]


def test_w6_a_cassette_is_not_imported_into_a_running_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests would become those of the run under way."""
    monkeypatch.setenv("SPANREPLAY_DIR", str(tmp_path))
    with spanreplay.record(directory=tmp_path), pytest.raises(SpanreplayError, match="recorded or replayed"):
        record_cassette(read_cassette(b"interactions: []", "a.yaml"), "a")
