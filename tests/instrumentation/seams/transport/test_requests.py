"""The requests seam with a real server: recorded, the server stopped, replayed in a second process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import requests

from spanreplay.model.call import Outcome, Recording
from spanreplay.seams.transport import requests as _requests
from support.in_process import recorded
from support.replaying import Workplace
from support.transports import assert_patches, recorded_calls
from support.web_server import WebServer

RoundTrip = Callable[[str], Recording]
SEAMS = ((_requests.install, requests),)

EVERYTHING = """
import io, os, requests
url = os.environ["URL"]
r = requests.get(url + "/json", params={"q": "a b"})
print(r.status_code, r.reason, r.json(), r.headers["X-Request-Id"], r.elapsed, r.url, r.encoding)
session = requests.Session()
r = session.get(url + "/moved")
print([(h.status_code, h.elapsed, h.url) for h in r.history], r.url, r.json(), r.elapsed)
session.get(url + "/cookie")
print(session.cookies.keys(), session.get(url + "/cookies").json())
print(requests.get(url + "/gzip").json(), requests.get(url + "/gzip").headers["content-encoding"])
print(requests.get(url + "/binary").content)
print(requests.post(url + "/json", json={"a": [1, None]}).text)
print(requests.post(url + "/json", data=(p for p in (b"one ", b"two"))).text)
print(requests.put(url + "/json", data=io.BytesIO(b"from a file")).text)
print(requests.head(url + "/json").headers["x-request-id"])
r = requests.get(url + "/status/503")
try:
    r.raise_for_status()
except requests.HTTPError as exc:
    print(type(exc), exc, exc.response is r, r.json())
for path in ("/hang_up",):
    try:
        requests.get(url + path)
    except requests.ConnectionError as exc:
        print(type(exc), exc)
try:
    requests.get(os.environ["NOBODY"], timeout=(3, 3))
except requests.ConnectionError as exc:
    print(type(exc), type(exc.args[0]), exc)
hooked = []
requests.get(url + "/json", hooks={"response": lambda r, **k: hooked.append(r.json())})
print(hooked)
"""


def test_s26_requests_replay_byte_for_byte_without_the_server(round_trip: RoundTrip) -> None:
    """Answers, redirects, cookies, compression, uploads, errors and `elapsed` come back with the server stopped."""
    recording = round_trip(EVERYTHING)
    names = {c.name.split()[0] for c in recording.calls}
    assert names == {"GET", "POST", "PUT", "HEAD"}
    assert len([c for c in recording.calls if "/moved" in c.request]) == 1  # its redirect is a hop of it
    assert len([c for c in recording.calls if c.outcome == Outcome.ERROR.value]) == 3


STREAMS = """
import os, requests
url = os.environ["URL"]
for size in (None, 1, 7, 512):
    with requests.get(url + "/pieces", stream=True) as r:
        print(list(r.iter_content(size)))
print(list(requests.get(url + "/pieces", stream=True).iter_lines(decode_unicode=True)))
print(list(requests.get(url + "/gzip", stream=True).iter_content(10)))
r = requests.get(url + "/binary", stream=True)
print(r.raw.read(10), r.raw.read(3), r.raw.read())
r = requests.get(url + "/pieces", stream=True)
for n, line in enumerate(r.iter_lines()):
    print(n, line)
    if n == 2: break
r.close()
r = requests.get(url + "/broken", stream=True)
try:
    for piece in r.iter_content(None): print(piece)
except requests.exceptions.ChunkedEncodingError as exc:
    print(type(exc), exc)
r = requests.get(url + "/pieces", stream=True)
print(next(r.iter_content(4)))
"""


def test_s26_requests_streams_come_back_piece_by_piece(round_trip: RoundTrip) -> None:
    """Streams replay in the same pieces for every way of reading; one that was left early ends at the same place."""
    recording = round_trip(STREAMS)
    ends = [c.response.rpartition('"end":"')[2].split('"')[0] for c in recording.calls]
    assert ends == ["complete"] * 7 + ["closed", "error", "closed"]
    by_single_bytes = recording.calls[1]
    assert by_single_bytes.response.count("data: ") == 5  # one chunk each, not one per byte


def test_requests_further_than_recorded_is_an_overrun(web: WebServer, workplace: Workplace) -> None:
    """Reading further in a stream than recorded is a divergence; nothing is made up."""
    source = (
        "import os, requests\n"
        "r = requests.get(os.environ['URL'] + '/pieces', stream=True)\n"
        "for n, line in enumerate(r.iter_lines(10)):\n"
        "    if n == int(open('limit').read()): break\n"
        "r.close()\n"
    )
    agent = workplace.write("agent.py", source)
    workplace.write("limit", "1")
    workplace.record(agent)
    web.stop()
    workplace.write("limit", "6")
    replayed = workplace.replay(agent)
    assert replayed.status == 3
    assert [kind for kind, _ in replayed.causes()] == ["stream_overrun"]


def test_s28_changed_requests_call_stops_the_replay(web: WebServer, workplace: Workplace) -> None:
    """Another body is a changed call, and the server is not asked."""
    source = """
import os, requests
print(requests.post(os.environ["URL"] + "/json", json={"n": os.environ["N"]}).status_code)
"""
    agent = workplace.write("agent.py", source)
    workplace.record(agent, N="1")
    asked = len(web.requests)
    replayed = workplace.replay(agent, N="2")
    assert replayed.status == 3
    assert [kind for kind, _ in replayed.causes()] == ["changed_call"]
    assert len(web.requests) == asked


def test_requests_model_call_is_an_llm_call(web: WebServer) -> None:
    """A request that a dialect understands is recorded under the dialect's name."""
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}
    recording = recorded(lambda: requests.post(web.url + "/v1/chat/completions", json=body, timeout=5), SEAMS)
    assert [c.boundary for c in recording.calls] == ["llm:openai.chat.completions"]


def test_requests_telemetry_and_suppressed_calls_are_no_calls(web: WebServer) -> None:
    """Other tools' telemetry and calls under OTel's suppression are not recorded."""
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    def agent() -> None:
        requests.post(web.url + "/v1/traces", data=b"x", timeout=5)
        with suppress_instrumentation():
            requests.get(web.url + "/json", timeout=5)

    assert recorded_calls(agent, SEAMS) == ()
    assert web.requests == ["POST /v1/traces", "GET /json"]


def test_requests_user_exception_goes_on_unchanged(web: WebServer) -> None:
    """An exception from the agent's own body iterator or hook reaches the agent as the same object."""
    mine = RuntimeError("mine")

    def body() -> Iterator[bytes]:
        yield b"x"
        raise mine

    def agent() -> None:
        with pytest.raises(RuntimeError) as caught:
            requests.post(web.url + "/json", data=body(), timeout=5)
        assert caught.value is mine

    assert recorded_calls(agent, SEAMS) == ()


def test_requests_uninstall_restores_the_originals() -> None:
    """Each target is patched, and is the same object again afterwards."""
    assert_patches(SEAMS, (requests.Session, "send"), (requests.Session, "get_adapter"))
