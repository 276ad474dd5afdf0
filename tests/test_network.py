"""The tests themselves cannot reach anything outside this machine."""

from __future__ import annotations

import socket

import pytest

from support.network import NetworkDenied, is_local


def test_network_outside_loopback_is_denied() -> None:
    """A connection or a name lookup outside loopback ends the test."""
    with socket.socket() as sock, pytest.raises(NetworkDenied):
        sock.connect(("192.0.2.1", 80))
    with pytest.raises(NetworkDenied):
        socket.getaddrinfo("example.com", 443)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", b"localhost", None, "127.8.8.8", "0.0.0.0"])
def test_network_loopback_is_local(host: object) -> None:
    """Every spelling of this machine's address stays allowed."""
    assert is_local(host)
