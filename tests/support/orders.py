"""Applications that publish an order for each request, on a connection or pool that all requests share."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx

from support.replaying import TIMEOUT_S, Workplace
from support.units import COMMAND, serve


def insist_that_orders_replay_alone(
    place: Workplace, broker: Mapping[str, str], nobody: Mapping[str, str], change: tuple[str, str], boundary: str
) -> None:
    """Four requests at once: the first and the last are identical with no broker, and a changed order is named.

    `broker` and `nobody` are the variables that name one; `change` is what is written in place of what.
    """
    with serve(place, **broker) as server, ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda number: httpx.post(f"{server.url}/orders/{number}", timeout=TIMEOUT_S), range(4))
        assert [each.status_code for each in answers] == [200] * 4
        server.await_ends()
        server.stop()
    units = server.units()
    for unit in (units[0], units[-1]):
        assert unit.completeness().is_complete, unit.completeness().reasons
        replayed = place.replay(*COMMAND, source=unit.run_id, **nobody)
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
    source = (place.path / "app.py").read_text(encoding="utf-8")
    assert change[0] in source
    place.write("app.py", source.replace(*change))
    replayed = place.replay(*COMMAND, source=units[-1].run_id, **nobody)
    assert replayed.causes()[0] == ("changed_call", boundary), replayed.stderr
