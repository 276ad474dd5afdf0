"""Bodies above the limit: the agent sends and receives them whole, memory is bounded, the run states the loss."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from spanreplay.model import config
from spanreplay.model.call import Recording
from support.replaying import Workplace
from support.transfers import LIBRARIES, Transfers, pieces
from support.web_server import WebServer

SIZE = 64 << 20
MEMORY_MAX = 64 << 20
TESTS = str(Path(__file__).parents[3])

AGENT = """
import os, sys
sys.path.insert(0, os.environ["TESTS"])
from support import transfers

SIZE = int(os.environ["SIZE"])
use, url = transfers.LIBRARIES[os.environ["LIBRARY"]], os.environ["SERVER"]
body = b"x" * SIZE
use("download_whole", url + "/small", 1024, b"")
for way in os.environ["WAYS"].split():
    before = transfers.peak_bytes()
    found = use(way, url + "/large", SIZE, body)
    print(way, found["size"], found.get("sha256", ""))
    sys.stderr.write(f"grown {way} {transfers.peak_bytes() - before}\\n")
"""


@pytest.fixture
def place(web: WebServer, tmp_path: Path) -> Workplace:
    """A directory to record the agent in."""
    found = Workplace(tmp_path, {"URL": web.url, "TESTS": TESTS})
    found.write("agent.py", AGENT)
    return found


def _letters(size: int) -> str:
    hashed = hashlib.sha256()
    for piece in pieces(size):
        hashed.update(piece)
    return hashed.hexdigest()


def _holes(recording: Recording) -> tuple[str, ...]:
    return recording.completeness().reasons


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.sampled(3)
def test_a8_64_mib_reach_both_sides_within_64_mib_and_truncation_is_said(place: Workplace, library: str) -> None:
    """64 MiB pass whole in both directions; streams use 64 MiB of memory at most; the run states the truncation."""
    ways = ["download_stream", "upload_stream", "download_whole", "upload_whole"]
    with Transfers(SIZE) as url:
        recorded = place.record("agent.py", LIBRARY=library, SERVER=url, SIZE=str(SIZE), WAYS=" ".join(ways))
    sent = f"{SIZE} {_letters(SIZE)}"
    assert recorded.stdout.splitlines() == [
        f"download_stream {SIZE} ",
        f"upload_stream {sent}",
        f"download_whole {SIZE} ",
        f"upload_whole {sent}",
    ]
    grown = dict(line.split()[1:] for line in recorded.stderr.splitlines() if line.startswith("grown "))
    assert {way: size for way, size in grown.items() if "stream" in way and int(size) > MEMORY_MAX} == {}
    recording = place.recording()
    assert [call.name.partition(" ")[0] for call in recording.calls] == ["GET", "GET", "POST", "GET", "POST"]
    responses = [json.loads(call.response) for call in recording.calls]
    cut = {"truncated": SIZE, "status": 200}
    assert [each if "truncated" in each else each["status"] for each in responses] == [200, cut, 200, cut, 200]
    assert [json.loads(call.request).get("body_bytes") for call in recording.calls] == [None, None, SIZE, None, SIZE]
    assert _holes(recording) == ("2 calls truncated",)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.sampled(3)
def test_a8_a_large_upload_is_compared_to_its_last_byte(place: Workplace, library: str) -> None:
    """Uploads above the limit replay identical, whole and streamed; one more letter at their end is a divergence."""
    size = config.BODY_BYTES_MAX + 70_000
    with Transfers(size) as url:
        environ: dict[str, Any] = {
            "LIBRARY": library,
            "SERVER": url,
            "SIZE": str(size),
            "WAYS": "upload_stream upload_whole",
        }
        recorded = place.record("agent.py", **environ)
    assert _holes(place.recording()) == ()
    same = place.replay("agent.py", **environ)
    assert (same.verdict["verdict"], same.stdout) == ("identical", recorded.stdout), same.stderr
    changed = place.replay("agent.py", **{**environ, "SIZE": str(size + 1)})
    assert changed.verdict["verdict"] == "diverged"
    assert changed.verdict["divergences"][0]["kind"] == "changed_call", changed.verdict["divergences"]


def test_c5_15_mib_of_bytes_are_recorded_whole(place: Workplace, web: WebServer) -> None:
    """Bytes below the limit come back in a replay even if their base64 exceeds it."""
    place.write(
        "binary.py",
        "import hashlib, os, requests\n"
        "print(hashlib.sha256(requests.get(os.environ['SERVER'] + '/bytes').content).hexdigest())\n",
    )
    content = random.Random(7).randbytes(15 << 20)
    with Transfers(0, content) as url:
        recorded = place.record("binary.py", SERVER=url)
    assert recorded.stdout == hashlib.sha256(content).hexdigest() + "\n"
    assert _holes(place.recording()) == ()
    again = place.replay("binary.py", SERVER=url)
    assert (again.verdict["verdict"], again.stdout) == ("identical", recorded.stdout), again.stderr


def test_a8_a_small_body_that_unpacks_to_a_large_one_is_cut(place: Workplace) -> None:
    """gzip of 48 MiB reaches the agent whole; the recorder stops unpacking at the limit, and says so."""
    place.write(
        "packed.py",
        "import httpx, os\nwith httpx.stream('GET', os.environ['SERVER'] + '/bytes') as r:\n"
        "    print(sum(map(len, r.iter_bytes())))\n",
    )
    packed = gzip.compress(b"x" * (48 << 20), 1)
    with Transfers(0, packed, encoding="gzip") as url:
        recorded = place.record("packed.py", SERVER=url)
    assert recorded.stdout == f"{48 << 20}\n"
    (call,) = place.recording().calls
    assert config.BODY_BYTES_MAX < json.loads(call.response)["truncated"] < 48 << 20
    assert _holes(place.recording()) == ("1 calls truncated",)


@pytest.mark.parametrize("body", ["bytearray(b'ab' * 9)", "array.array('B', b'ab' * 9)", "memoryview(b'ab' * 9)"])
def test_a8_a_body_that_holds_its_bytes_is_sent_as_it_is(place: Workplace, body: str) -> None:
    """A bytearray, an array and a view are sent unchanged, and recorded as sent."""
    place.write(
        "buffer.py",
        "import array, os, urllib3\n"
        f"answer = urllib3.request('POST', os.environ['SERVER'] + '/large', body={body})\n"
        "print(answer.json()['size'], answer.json()['sha256'])\n",
    )
    with Transfers(0) as url:
        recorded = place.record("buffer.py", SERVER=url)
    assert recorded.stdout == f"18 {hashlib.sha256(b'ab' * 9).hexdigest()}\n"
    (call,) = place.recording().calls
    assert json.loads(call.request)["body_text"] == "ab" * 9


def test_a8_an_upload_that_breaks_off_is_a_hole(place: Workplace, tmp_path: Path) -> None:
    """If a generator raises above the limit, the agent gets its own exception, and the run names the hole."""
    place.write(
        "broken.py",
        "import os, requests\n"
        "def pieces():\n"
        "    for _ in range(17 * 16):\n"
        "        yield b'x' * 65536\n"
        "    raise KeyError('mine')\n"
        "try:\n"
        "    requests.post(os.environ['SERVER'] + '/large', data=pieces())\n"
        "except KeyError as exc:\n"
        "    print(exc)\n",
    )
    with Transfers(0) as url:
        recorded = place.record("broken.py", SERVER=url)
    assert recorded.stdout == "'mine'\n"
    (reason,) = _holes(place.recording())
    assert f"only {17 << 20} bytes of its request were sent" in reason


def test_a8_what_is_cut_is_not_redacted_first(place: Workplace) -> None:
    """A result above the limit is cut before it is scanned, so no redaction in it is counted."""
    place.write(
        "tool.py",
        "import spanreplay\n"
        "@spanreplay.boundary('tool', name='big', effect='read')\n"
        "def big():\n"
        "    return ['sk-proj-' + 'a1B2c3D4e5F6g7H8' * 3, 'x' * (17 << 20)]\n"
        "print(len(big()))\n",
    )
    assert place.record("tool.py").stdout == "2\n"
    (call,) = place.recording().calls
    assert json.loads(call.response)["truncated"] > 17 << 20
    assert call.redactions == {}
    assert _holes(place.recording()) == ("1 calls truncated",)


@pytest.mark.parametrize("library", ["requests", "botocore", "httpx", "openai"])
def test_i1_a_request_through_several_libraries_is_one_call(place: Workplace, web: WebServer, library: str) -> None:
    """A request that a library sends through urllib3, httpx or http.client is one call, the library's."""
    sources = {
        "requests": "import requests\nprint(requests.get(URL + '/json').status_code)\n",
        "httpx": "import httpx\nprint(httpx.get(URL + '/json').status_code)\n",
        "botocore": "from botocore.awsrequest import AWSRequest\nfrom botocore.httpsession import URLLib3Session\n"
        "print(URLLib3Session().send(AWSRequest('GET', URL + '/json').prepare()).status_code)\n",
        "openai": "import openai\nclient = openai.OpenAI(api_key='k', base_url=URL, max_retries=0)\n"
        "try:\n    client.models.list()\nexcept openai.APIError as exc:\n    print(type(exc).__name__)\n",
    }
    place.write("one.py", f"import os, urllib3, httpx, requests\nURL = os.environ['URL']\n{sources[library]}")
    place.record("one.py")
    assert len(place.recording().calls) == 1
