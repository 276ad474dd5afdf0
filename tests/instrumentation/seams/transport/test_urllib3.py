"""The urllib3 seam with a real server: recorded, the server stopped, replayed in a second process."""

from __future__ import annotations

from collections.abc import Callable

import requests
import urllib3

from spanreplay.model.call import Outcome, Recording
from spanreplay.seams.transport import requests as _requests
from spanreplay.seams.transport import urllib3 as _urllib3
from support.in_process import recorded
from support.replaying import Workplace
from support.transports import assert_patches, recorded_calls
from support.web_server import WebServer

RoundTrip = Callable[[str], Recording]
SEAMS = ((_urllib3.install, urllib3),)

EVERYTHING = """
import io, json, os, urllib3
url = os.environ["URL"]
http = urllib3.PoolManager()
r = http.request("GET", url + "/json", fields={"q": "a b"})
print(r.status, r.reason, r.version, json.loads(r.data), r.headers["X-Request-Id"], r.geturl())
r = http.request("GET", url + "/moved")
print(r.geturl(), r.data, [h.redirect_location for h in r.retries.history])
pool = urllib3.connectionpool.connection_from_url(url)
r = pool.request("GET", "/moved")
print(r.status, r.data)
print(http.request("GET", url + "/gzip").data, http.request("GET", url + "/binary").data)
print(http.request("POST", url + "/json", body=b"bytes").data)
print(http.request("POST", url + "/json", body=io.BytesIO(b"file")).data)
print(http.request("POST", url + "/json", body=iter([b"one ", b"two"])).data)
print(http.request("HEAD", url + "/json").headers["x-request-id"])
print(http.request("GET", url + "/status/503").status)
for bad in (os.environ["NOBODY"], url + "/hang_up"):
    try:
        http.request("GET", bad, retries=False)
    except urllib3.exceptions.HTTPError as exc:
        print(type(exc), exc)
try:
    http.request("GET", os.environ["NOBODY"], retries=1)
except urllib3.exceptions.MaxRetryError as exc:
    print(type(exc), exc, type(exc.reason))
"""


def test_s26_urllib3_replays_byte_for_byte_without_the_server(round_trip: RoundTrip) -> None:
    """Answers, redirects, compression, uploads, retries and errors come back with the server stopped."""
    recording = round_trip(EVERYTHING)
    assert len([c for c in recording.calls if c.outcome == Outcome.ERROR.value]) == 4


STREAMS = """
import os, urllib3
url = os.environ["URL"]
http = urllib3.PoolManager()
get = lambda path: http.request("GET", url + path, preload_content=False)
for size in (None, 1, 7, 4096):
    r = get("/pieces")
    print(list(r.stream(size)))
    r.release_conn()
print(list(get("/pieces").read_chunked()))
print(get("/pieces").read(), get("/gzip").read(decode_content=True), list(get("/gzip").stream(10)))
r = get("/binary")
print(r.read(100), r.read(100), r.read(100), r.read(100))
print([line for line in get("/pieces")])
r = get("/pieces")
print(r.readline(), r.readline(), r.read(3))
r.close()
r = get("/broken")
try:
    for piece in r.stream(): print(piece)
except urllib3.exceptions.ProtocolError as exc:
    print(type(exc), exc)
with get("/json") as r:
    print(r.data)
"""


def test_s26_urllib3_streams_come_back_piece_by_piece(round_trip: RoundTrip) -> None:
    """Streams replay in the same pieces for every way of reading; one that was left early ends at the same place."""
    recording = round_trip(STREAMS)
    ends = [c.response.rpartition('"end":"')[2].split('"')[0] for c in recording.calls]
    assert ends == ["complete"] * 10 + ["closed", "error", "complete"]


def test_s28_changed_urllib3_call_stops_the_replay(web: WebServer, workplace: Workplace) -> None:
    """Another body is a changed call, and the server is not asked."""
    source = """
import os, urllib3
print(urllib3.PoolManager().request("POST", os.environ["URL"] + "/json", body=os.environ["N"]).status)
"""
    agent = workplace.write("agent.py", source)
    workplace.record(agent, N="1")
    asked = len(web.requests)
    replayed = workplace.replay(agent, N="2")
    assert replayed.status == 3
    assert [kind for kind, _ in replayed.causes()] == ["changed_call"]
    assert len(web.requests) == asked


def test_urllib3_below_requests_is_one_call(web: WebServer) -> None:
    """A request that requests sends through urllib3 is recorded once, as the call of requests."""
    both = (*SEAMS, (_requests.install, requests))
    assert len(recorded(lambda: requests.get(web.url + "/json", timeout=5), both).calls) == 1


def test_urllib3_telemetry_and_suppressed_calls_are_no_calls(web: WebServer) -> None:
    """Other tools' telemetry and calls under OTel's suppression are not recorded."""
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    def agent() -> None:
        with urllib3.PoolManager() as http:
            http.request("POST", web.url + "/v1/traces", body=b"x")
            with suppress_instrumentation():
                http.request("GET", web.url + "/json")

    assert recorded_calls(agent, SEAMS) == ()
    assert web.requests == ["POST /v1/traces", "GET /json"]


def test_urllib3_uninstall_restores_the_original() -> None:
    """Each target is patched, and is the same object again afterwards."""
    assert_patches(SEAMS, (urllib3.HTTPConnectionPool, "urlopen"))
