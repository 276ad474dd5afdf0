"""The urllib seam with a real server: recorded, the server stopped, replayed in a second process."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

from spanreplay.model.call import Outcome, Recording
from spanreplay.seams.transport import urllib as _urllib
from support.replaying import Workplace
from support.transports import assert_patches, recorded_calls
from support.web_server import WebServer

RoundTrip = Callable[[str], Recording]
SEAMS = ((_urllib.install, urllib.request),)

EVERYTHING = """
import gzip, http.cookiejar, io, json, os, urllib.error, urllib.request
from urllib.request import Request, urlopen
url = os.environ["URL"]
with urlopen(url + "/json?q=a") as r:
    print(r.status, r.reason, r.version, json.load(r), r.headers["X-Request-Id"], r.url, r.msg, r.getcode())
with urlopen(url + "/moved") as r:
    print(r.url, r.read())
print(gzip.decompress(urlopen(url + "/gzip").read()), urlopen(url + "/binary").read())
jar = http.cookiejar.CookieJar()
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
opener.open(url + "/cookie").read()
print([c.name for c in jar], opener.open(url + "/cookies").read())
for data in (b"bytes", io.BytesIO(b"file"), iter([b"one ", b"two"])):
    print(urlopen(Request(url + "/json", data=data, headers={"Content-Type": "text/plain"})).read())
print(urlopen(Request(url + "/json", method="HEAD")).headers["x-request-id"])
try:
    urlopen(url + "/status/503")
except urllib.error.HTTPError as exc:
    print(type(exc), exc, exc.code, exc.read(), exc.headers["x-request-id"])
for bad in (os.environ["NOBODY"], url + "/hang_up"):
    try:
        urlopen(bad)
    except OSError as exc:
        print(type(exc), exc)
print(urlopen("data:,hello").read())
with urlopen(url + "/pieces") as r:
    print(r.read(10), r.readline(), [line for line in r])
with urlopen(url + "/pieces") as r:
    print(r.readline())
r = urlopen(url + "/broken")
try:
    print(r.read())
except Exception as exc:
    print(type(exc), exc)
"""


def test_s26_urllib_replays_byte_for_byte_without_the_server(round_trip: RoundTrip) -> None:
    """Answers, redirects, cookies, uploads, errors and streams come back with the server stopped."""
    recording = round_trip(EVERYTHING)
    assert len([c for c in recording.calls if "/moved" in c.request]) == 1  # its redirect is a hop of it
    assert len([c for c in recording.calls if c.outcome == Outcome.ERROR.value]) == 4


def test_s28_changed_urllib_call_stops_the_replay(web: WebServer, workplace: Workplace) -> None:
    """Another body is a changed call, and the server is not asked."""
    source = """
import os, urllib.request
print(urllib.request.urlopen(os.environ["URL"] + "/json", data=os.environ["N"].encode()).status)
"""
    agent = workplace.write("agent.py", source)
    workplace.record(agent, N="1")
    asked = len(web.requests)
    replayed = workplace.replay(agent, N="2")
    assert replayed.status == 3
    assert [kind for kind, _ in replayed.causes()] == ["changed_call"]
    assert len(web.requests) == asked


def test_urllib_telemetry_suppressed_and_bare_http_client_are_no_calls(web: WebServer) -> None:
    """Telemetry, calls under OTel's suppression and `http.client`, which ships our spans, are not recorded."""
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    def agent() -> None:
        urllib.request.urlopen(web.url + "/v1/traces", data=b"x").close()
        with suppress_instrumentation():
            urllib.request.urlopen(web.url + "/json").close()
        connection = http.client.HTTPConnection(urlsplit(web.url).netloc)
        connection.request("GET", "/json")
        connection.getresponse().read()
        connection.close()

    assert recorded_calls(agent, SEAMS) == ()
    assert web.requests == ["POST /v1/traces", "GET /json", "GET /json"]


def test_urllib_uninstall_restores_the_originals() -> None:
    """Each target is patched, and is the same object again afterwards."""
    assert_patches(SEAMS, (urllib.request.OpenerDirector, "open"), (urllib.request.AbstractHTTPHandler, "do_open"))
