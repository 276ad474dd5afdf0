"""`Host` headers that a service on loopback answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from spanreplay_collector.receive.hosts import is_local_name
from support.collector import SwitchStore, run_collector

LOCAL = ["", "localhost", "LOCALHOST:4318", "127.0.0.1:4318", "[::1]:4318", "[::1]", "10.0.0.7", "agent.localhost",
         "host.docker.internal:4318", "collector", "laptop.local:80", "127.0.0.1.", "::1"]  # fmt: skip
PUBLIC = ["evil.example.com", "evil.example.com:4318", "localhost.evil.com", "127.0.0.1.evil.com", "a.internal.com",
          "[evil.com]:80", "127.1.evil.io.", "1.2.3.4.5"]  # fmt: skip


@pytest.mark.parametrize("host", LOCAL)
def test_r6_a_local_name_is_answered(host: str) -> None:
    """Addresses, names without a dot and reserved names cannot belong to a web page, so they are answered."""
    assert is_local_name(host)


@pytest.mark.parametrize("host", PUBLIC)
def test_r6_a_public_name_is_none(host: str) -> None:
    """A name that somebody can register may point to loopback, so it is not a local name."""
    assert not is_local_name(host)


def test_r6_a_page_that_points_its_name_here_gets_nothing(tmp_path: Path) -> None:
    """A collector on loopback refuses requests under a public name, at every path."""
    with run_collector(tmp_path, SwitchStore()) as running, httpx.Client(trust_env=False, timeout=30) as client:
        for method, path in (("GET", "/healthz"), ("GET", "/metrics"), ("POST", "/v1/traces")):
            answer = client.request(method, running.http + path, headers={"host": "evil.example.com"})
            assert (answer.status_code, answer.text) == (421, "use localhost, or an address\n")
        assert client.get(f"{running.http}/healthz", headers={"host": "localhost"}).status_code == 200
