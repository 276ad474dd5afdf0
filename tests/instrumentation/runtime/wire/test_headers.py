"""Headers and query are compared for every HTTP transport, except those set by the connection or the SDK."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spanreplay.replayer.compare.beside import split_requests
from spanreplay.runtime.wire.http_headers import is_application
from support.changed import load, named, record_agent, replay_agent

TRANSPORTS = {
    "httpx": "import httpx\ndef agent():\n    httpx.get(URL + '?q=1', headers={'x-tenant': 'acme'})",
    "httpx_client": "import httpx\ndef agent():\n    with httpx.Client(headers={'x-tenant': 'acme'}) as c:\n"
    "        c.post(URL, params={'q': '1'}, json={})",
    "httpx_async": "import asyncio, httpx\nasync def main():\n    async with httpx.AsyncClient() as c:\n"
    "        await c.get(URL + '?q=1', headers={'x-tenant': 'acme'})\ndef agent():\n    asyncio.run(main())",
    "requests": "import requests\ndef agent():\n    requests.get(URL, params={'q': '1'}, headers={'x-tenant': 'acme'})",
    "urllib": "import urllib.request as u\ndef agent():\n"
    "    u.urlopen(u.Request(URL + '?q=1', headers={'x-tenant': 'acme'})).read()",
    "urllib3": "import urllib3\ndef agent():\n"
    "    urllib3.PoolManager().request('GET', URL + '?q=1', headers={'x-tenant': 'acme'})",
    "aiohttp": "import asyncio, aiohttp\nasync def main():\n    async with aiohttp.ClientSession() as s:\n"
    "        async with s.get(URL + '?q=1', headers={'x-tenant': 'acme'}) as r:\n            await r.read()\n"
    "def agent():\n    asyncio.run(main())",
}
CHANGES = {
    "header": ("'acme'", "'evil'", "headers.x-tenant"),
    "another": ("'x-tenant'", "'x-client'", "headers.x-tenant"),
    "dropped": ("{'x-tenant': 'acme'}", "{}", "headers.x-tenant"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in its own process: threads in this one would count as the agent's."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    folder = tmp_path_factory.mktemp("served")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder) as process:
        assert process.stdout is not None
        found = re.search(r"port (\d+)", process.stdout.readline())
        assert found is not None
        yield f"http://127.0.0.1:{found.group(1)}/"
        process.terminate()


@pytest.mark.parametrize("name", TRANSPORTS)
def test_n14_application_headers_are_compared(name: str, folder: Path, url: str) -> None:
    """Another tenant header or another query is another request, with each transport."""
    pytest.importorskip(name.partition("_")[0])
    source = TRANSPORTS[name]
    run_id = record_agent(load(source, folder, URL=url))
    same = replay_agent(run_id, load(source, folder, URL=url))
    assert (same["verdict"], same["raised"]) == ("identical", ""), same["divergences"]
    assert not same.get("ignored_diffs"), same
    for change, (old, new, path) in CHANGES.items():
        assert old in source
        changed = replay_agent(run_id, load(source.replace(old, new), folder, URL=url))
        assert changed["verdict"] == "diverged", (change, changed)
        assert path in named(changed), (change, changed["divergences"])
    query = source.replace("q=1", "q=2").replace("'q': '1'", "'q': '2'")
    assert replay_agent(run_id, load(query, folder, URL=url))["verdict"] == "diverged"


@pytest.mark.parametrize(
    ("before", "after", "is_another"),
    [
        ("acme", "evil", True),
        ("1", "2", True),
        ("gold", "silver", True),
        ("0192f0aa-1111-7000-8000-000000000000", "0192f0aa-2222-7000-8000-000000000000", False),
        ("Tue, 24 Nov 2026 03:48:59 GMT", "Wed, 25 Nov 2026 03:48:59 GMT", False),
        ("20261124T034859Z", "20261125T034859Z", False),
        ("req-4bf92f3577b34da6a3ce929d", "req-00f067aa0ba902b7aaaaaaaa", False),
        ("sdk/1.2.3", "sdk/1.3.0", False),
    ],
)
def test_n9_what_is_made_anew_is_listed(before: str, after: str, is_another: bool) -> None:
    """An id, a time or a version differs from run to run; it is listed as ignored, never silently skipped."""
    then, now = (f'{{"headers":{{"x-given":"{value}"}}}}' for value in (before, after))
    changed, listed = split_requests(then, now, has_all=True)
    assert [d.path for d in (changed if is_another else listed)] == ["headers.x-given"]
    assert not (listed if is_another else changed)


def test_n14_headers_that_are_not_the_agents_are_left_out() -> None:
    """Credentials, trace headers and the SDK's description of itself differ on another machine."""
    for name in ("authorization", "x-api-key", "traceparent", "x-stainless-os", "content-length", "x-amz-date"):
        assert not is_application(name), name
    for name in ("x-tenant", "idempotency-key", "anthropic-beta", "if-match", "range", "referer"):
        assert is_application(name), name
