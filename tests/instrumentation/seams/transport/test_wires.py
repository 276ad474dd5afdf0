"""Every part of a request is compared for every transport, or named in the verdict as not compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spanreplay.seams.machine.arguments import WIRES
from support.changed import load, record_agent, replay_agent
from support.wire_cases import (
    CLIENTS,
    CREDENTIALS,
    GRPC,
    HTTP,
    SOCKETS,
    WEBSOCKETS,
    fill,
    grpc_agent,
    http_agent,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the test's own directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _check(source: str, values: dict[str, Any], others: dict[str, Any], folder: Path) -> None:
    given = {**values, **others}
    run_id = record_agent(load(fill(source, given), folder))
    same = replay_agent(run_id, load(fill(source, given), folder))
    assert (same["verdict"], same["raised"]) == ("identical", ""), same["divergences"]
    assert same["counts"]["recorded"], "nothing was recorded"
    for name in values:
        changed = replay_agent(run_id, load(fill(source, given, name), folder))
        assert changed["verdict"] == "diverged", name
    for name in others:
        ignored = replay_agent(run_id, load(fill(source, given, name), folder))
        assert ignored["verdict"] == "identical", name
        assert any(name in each.get("names", ()) for each in ignored["not_compared"]), name


@pytest.mark.sampled(4)
@pytest.mark.parametrize("client", CLIENTS)
def test_n14_every_part_of_an_http_request_is_compared(client: str, folder: Path) -> None:
    """Method, address, query, any headers, and body are compared; credentials and trace are named as not compared."""
    pytest.importorskip(client)
    _check(http_agent(client), HTTP, CREDENTIALS, folder)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_n14_every_part_of_a_grpc_call_is_compared(kind: str, folder: Path) -> None:
    """Method, metadata and message are compared."""
    pytest.importorskip("grpc")
    _check(grpc_agent(kind), GRPC, {}, folder)


def test_n14_the_handshake_of_a_websocket_is_compared(folder: Path) -> None:
    """Address and headers are compared; test_websockets.py tests the messages that follow."""
    pytest.importorskip("websockets")
    _check(WEBSOCKETS, SOCKETS, {}, folder)


def test_n14_every_transport_is_asked() -> None:
    """A new transport row needs a case here."""
    assert {*CLIENTS, "grpc", "websockets"} == set(WIRES)
