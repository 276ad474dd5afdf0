"""Concurrent streams, whose end is a separate read, end in the recorded order with every kind of HTTP client.

SPANREPLAY_TEST_STREAMS says how many random programs are tried with each: a few of the 500 of `make matrix`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

from support.in_process import recorded, replayed
from support.route_server import RouteServer
from support.stream_programs import CLIENTS, ROUTES, draw_program

PROGRAMS: Final = int(os.environ.get("SPANREPLAY_TEST_STREAMS", "6"))


@pytest.fixture(scope="module")
def server() -> Iterator[RouteServer]:
    """One server for all programs."""
    with RouteServer(ROUTES) as running:
        yield running


@pytest.mark.parametrize("seed", range(PROGRAMS))
@pytest.mark.parametrize("name", CLIENTS)
def test_p11_streams_end_in_the_recorded_order(name: str, seed: int, server: RouteServer) -> None:
    """A replay has the same order of pieces and ends across all streams."""
    client, program, again = CLIENTS[name], draw_program(seed), draw_program(seed)
    recording = recorded(client.run(program, server.url), client.seams)
    outcome = replayed(client.run(again, server.url), recording, seams=client.seams)
    assert outcome.error is None
    assert again.observed == program.observed
    assert outcome.kinds() == []
    assert outcome.session.gate.skipped == []
