"""Which limit of a request decides how its call ends."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from spanreplay.model.call import CallRecord
from spanreplay.replayer.compare.timeouts import compare_timeouts, has_other_timeout
from spanreplay.runtime.wire.timeouts import TIMEOUT, read_aiohttp_timeout, read_httpx_timeout, read_socket_timeout


def call(limits: Any, response: object, outcome: str = "ok") -> CallRecord:
    """A recorded request that took two seconds."""
    return CallRecord(
        run_id="0" * 32, seq=1, end_seq=2, kind="http", name="GET a", lane="main", index=0, key="", keyspec="http/1",
        request="", response=json.dumps(response), outcome=outcome, effect="read", meta={TIMEOUT: limits},
        end_ns=2 * 10**9,
    )  # fmt: skip


STREAM = {"chunks": [[600, "a"], [1200, "b"], [1900, "c"]]}
EXPIRED = {"error": {"type": "requests.ReadTimeout", "message": "Read timed out. (read timeout=2)"}}
UNREACHED = {"error": {"type": "httpx.ConnectTimeout"}}


@pytest.mark.parametrize(
    ("then", "now", "decides"),
    [
        (call({"read": 5}, STREAM), {"read": 0.8}, False),
        (call({"read": 5}, STREAM), {"read": 0.65}, True),
        (call({"total": 5}, STREAM), {"total": 1.95}, True),
        (call({"total": 5}, STREAM), {"total": 2.5}, False),
        (call({}, {"body": ""}), {"read": 1.9}, True),
        (call({"connect": 5}, STREAM), {"connect": 0.1}, False),
        (call({"read": 2}, EXPIRED, "error"), {"read": 3}, True),
        (call({"read": 2}, EXPIRED, "error"), {}, True),
        (call({"read": 2}, EXPIRED, "error"), {"read": 1}, False),
        (call({"read": 2, "connect": 1}, EXPIRED, "error"), {"read": 2, "connect": 9}, False),
        (call({"read": 2, "connect": 1}, UNREACHED, "error"), {"read": 2, "connect": 9}, True),
        (call({"read": 5}, {"error": {"type": "ConnectError"}}, "error"), {"read": 1}, True),
    ],
)  # fmt: skip
def test_p12_a_limit_decides_if_the_recorded_call_would_have_ended_otherwise(
    then: CallRecord, now: dict[str, float], decides: bool
) -> None:
    """A limit for each wait is compared with the longest wait of a stream."""
    assert has_other_timeout(then, now)
    changed, listed = compare_timeouts(then, now)
    assert (len(changed), len(listed)) == (int(decides), int(not decides))


@pytest.mark.parametrize("limits", [None, 7, [5], {"read": "5"}, {"read": None}], ids=repr)
@pytest.mark.parametrize("response", [None, {"chunks": 5}, {"chunks": [["x"]]}, {"chunks": [[]]}], ids=repr)
def test_p12_a_recording_that_states_no_limits_is_not_compared(limits: object, response: object) -> None:
    """It is data from a stranger."""
    changed, _ = compare_timeouts(call(limits, response), {"read": 5.0})
    assert changed == ()


def test_p12_limits_are_read_as_the_libraries_mean_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that stands for the default of sockets is that default."""
    import socket

    import numpy as np
    import urllib3
    from aiohttp import ClientTimeout

    monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 7.0)
    assert read_httpx_timeout({"timeout": {"connect": 5, "read": None, "write": 1, "pool": 1}}) == {"connect": 5.0}
    assert read_httpx_timeout({}) is None
    assert read_socket_timeout((3, None)) == {"connect": 3.0}
    assert read_socket_timeout(socket._GLOBAL_DEFAULT_TIMEOUT) == {"connect": 7.0, "read": 7.0}  # type: ignore[attr-defined]
    assert read_socket_timeout(urllib3.Timeout(total=2, read=1)) == {"connect": 7.0, "read": 1.0, "total": 2.0}
    assert read_aiohttp_timeout(ClientTimeout(total=9, sock_read=2)) == {"read": 2.0, "total": 9.0}
    assert read_aiohttp_timeout(object()) is None
    assert read_socket_timeout(object(), urllib3.Timeout(read=4, connect=None)) == {"read": 4.0}
    assert read_socket_timeout(None, 9) == {}
    assert read_socket_timeout(np.float32(2.5)) == {"connect": 2.5, "read": 2.5}
    assert read_socket_timeout((10**400, Decimal("1.5"), "more")) == {"read": 1.5}
