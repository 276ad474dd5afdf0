"""Cassettes as files of strangers: every layout, refused contents, limits."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from spanreplay.model.config import BODY_BYTES_MAX
from spanreplay.model.errors import ForeignFile, NewerSchema, SourceError
from spanreplay.recording.cassettes import Interaction, is_cassette, read_cassette
from spanreplay.recording.cassettes.formats import FILE_BYTES_MAX

REQUEST = "{method: GET, uri: 'http://a.example/x', headers: {}, body: null}"
WANTED = ("GET", "http://a.example/x", 200, "OK", b"Ada")


def _seen(interaction: Interaction) -> tuple[str, str, int, str, bytes]:
    each = interaction
    return each.method, each.url, each.status, each.reason, each.reply_body


def _vcr(response: str, request: str = REQUEST) -> bytes:
    return f"version: 1\ninteractions:\n- request: {request}\n  response: {response}\n".encode()


LAYOUTS = {
    "vcrpy": _vcr("{status: {code: 200, message: OK}, headers: {}, body: {string: Ada}}"),
    "vcrpy with bytes": _vcr("{status: {code: 200, message: OK}, headers: {}, body: {string: !!binary QWRh}}"),
    "vcrpy of Python 2": _vcr(
        "{status: {code: 200, message: OK}, headers: {}, body: {string: !!python/unicode 'Ada'}}"
    ),
    "vcrpy for httpx before 6": _vcr("{status_code: 200, http_version: HTTP/1.1, headers: {}, content: Ada}"),
    "vcrpy with a shared list": _vcr(
        "{status: {code: 200, message: OK}, headers: {a: &id001 [b], c: *id001}, body: {string: Ada}}"
    ),
    "vcrpy before it is serialized": b"requests: [" + REQUEST.encode() + b"]\nresponses: [{status: {code: 200, "
    b"message: OK}, headers: {}, body: {string: Ada}}]",
    "vcrpy, packed": gzip.compress(_vcr("{status: {code: 200, message: OK}, headers: {}, body: {string: Ada}}")),
    "vcrpy, an upload": _vcr(
        "{status: {code: 200, message: OK}, headers: {}, body: {string: Ada}}",
        REQUEST.replace("null", "!!python/object/new:_io.BytesIO {state: !!python/tuple [!!binary QWRh, 0, null]}"),
    ),
    "betamax": json.dumps({"http_interactions": [{
        "request": {"method": "GET", "uri": WANTED[1], "headers": {"a": ["b"]}, "body": {"string": ""}},
        "response": {"status": {"code": 200, "message": "OK"}, "headers": {"Content-Encoding": ["gzip"]}, "body": {
            "encoding": None, "base64_string": base64.b64encode(gzip.compress(b"Ada")).decode()}},
        "recorded_at": "2026-01-01T00:00:00"}], "recorded_with": "betamax/0.9.0"}).encode(),
    "responses": b"responses:\n- response: {auto_calculate_content_length: false, body: Ada, content_type: text/plain,"
    b" method: GET, status: 200, url: 'http://a.example/x'}\n",
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_w6_every_layout_is_read(layout: str) -> None:
    """A cassette of each tool and version gives the same exchange."""
    [found] = read_cassette(LAYOUTS[layout], "a.yaml").interactions
    assert _seen(found) == WANTED
    if layout == "vcrpy, an upload":
        assert found.body == b"Ada"
    if layout == "responses":
        assert found.reply_headers == (("Content-Type", "text/plain"),)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{string: 'x: 2026-01-01'}", b"x: 2026-01-01"),
        ("{string: ''}", b""),
        ("{string: null}", b""),
        ("{base64_string: QWRh}", b"Ada"),
        ("plain", b"plain"),
        ("{encoding: latin-1, string: ä}", b"\xe4"),
        ("{encoding: nonsense, string: ä}", "ä".encode()),
    ],
)
def test_w6_a_body_is_read_as_its_tool_wrote_it(body: str, expected: bytes) -> None:
    """Texts, bytes, base64 and character sets become the bytes that were sent."""
    [found] = read_cassette(_vcr(f"{{status: {{code: 200}}, headers: {{}}, body: {body}}}"), "a.yaml").interactions
    assert (found.reply_body, found.reason) == (expected, "OK")


def test_w6_a_body_that_a_hook_parsed_is_json_again() -> None:
    """A serializer that stores `parsed_body` in place of a JSON body is understood."""
    text = "{method: POST, uri: 'http://a.example', headers: {}, parsed_body: {a: [1]}}"
    [found] = read_cassette(
        _vcr("{status: {code: 200}, headers: {}, parsed_body: {b: 2}}", text), "a.yaml"
    ).interactions
    assert (json.loads(found.body), json.loads(found.reply_body)) == ({"a": [1]}, {"b": 2})


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, lambda b: b], ids=["gzip", "deflate", "unpacked"])
def test_w6_a_compressed_body_is_unpacked_once(pack: Callable[[bytes], bytes]) -> None:
    """A body is unpacked as its header says; one that the tool has unpacked already stays as it is."""
    encoding = "deflate" if pack is zlib.compress else "gzip"
    text = base64.b64encode(pack(b"Ada" * 100)).decode()
    response = (
        f"{{status: {{code: 200}}, headers: {{Content-Encoding: [{encoding}]}}, body: {{string: !!binary {text}}}}}"
    )
    [found] = read_cassette(_vcr(response), "a.yaml").interactions
    assert found.reply_body == b"Ada" * 100


def _bomb(levels: int) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return ("\n".join(lines) + "\ninteractions: []\n").encode()


def _packed_bomb() -> bytes:
    packed = base64.b64encode(gzip.compress(bytes(BODY_BYTES_MAX + 1))).decode()
    headers = "{Content-Encoding: [gzip]}"
    return _vcr(f"{{status: {{code: 200}}, headers: {headers}, body: {{string: !!binary {packed}}}}}")


REFUSED = {
    "a call": (b"interactions: !!python/object/apply:os.system ['touch harmed']", "a.yaml:1: a Python object"),
    "a name": (b"version: 1\ninteractions: [!!python/name:os.system '']", "a.yaml:2: a Python object"),
    "an object": (b"interactions: [!!python/object:vcr.request.Request {}]", "it could run code"),
    "another tag": (b"interactions: !ruby/object:VCR {}", "a.yaml:1: could not determine a constructor"),
    "laughs": (_bomb(12), "with its aliases resolved, the document exceeds"),
    "itself": (b"interactions: &a [*a]", "the alias *a refers to itself"),
    "depth": (b"interactions: " + b"[" * 5000 + b"]" * 5000, "nested deeper than 100 levels"),
    "deep JSON": (b'{"interactions": ' + b"[" * 500_000 + b"]" * 500_000 + b"}", "a.yaml is not JSON"),
    "two documents": (b"interactions: []\n---\ninteractions: []", "a.yaml:2: a second document"),
    "no YAML": (b"interactions:\n- {a", "a.yaml:"),
    "no text": (b"interactions: [\xff\xfe]", "a.yaml is not YAML"),
    "a list": (b"- request: 1", "a list, not a mapping"),
    "no list": (b"version: 1", "it has no list of interactions"),
    "half JSON": (b'{"interactions":\n [', "a.yaml:2: "),
    "no response": (b"version: 1\ninteractions:\n- request: {}\n- request: {}", "a.yaml:3: interaction 1: it lacks"),
    "an address": (
        _vcr("{status: {code: 200}, headers: {}, body: {string: a}}")
        + b"- request: {uri: '**'}\n  response: {status: {code: 200}}\n",
        "a.yaml:5: interaction 2: its address is '**'",
    ),
    "a status": (_vcr("{status: {code: two}, headers: {}, body: {string: a}}"), "its status is 'two'"),
    "headers": (_vcr('{status: {code: 200}, headers: {a: ["b\\n c"]}, body: {string: a}}'), "more than one line"),
    "a gzip bomb": (_packed_bomb(), "its unpacked body exceeds"),
    "a large number": (b"version: " + b"9" * 5000, "a.yaml is not YAML"),
    "a packed file": (gzip.compress(bytes(FILE_BYTES_MAX + 1)), "exceeds"),
    "half a packed file": (gzip.compress(b"interactions: []" * 99)[:-20], "can't be unpacked"),
    "base64": (_vcr("{status: {code: 200}, headers: {}, body: {base64_string: 'QWR'}}"), "its body is not base64"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_w6_what_a_stranger_put_into_a_cassette_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code, bombs, cycles and damage are refused in a sentence with the file and the line; nothing is executed."""
    monkeypatch.chdir(tmp_path)
    content, message = REFUSED[case]
    with pytest.raises(SourceError) as caught:
        read_cassette(content, "a.yaml")
    assert message in str(caught.value)
    assert caught.value.hint
    assert [*tmp_path.iterdir()] == []


def test_w6_a_later_version_of_the_format_is_named() -> None:
    """A cassette of a version that nobody knows yet is not guessed at."""
    with pytest.raises(NewerSchema, match="version 2"):
        read_cassette(b"version: 2\ninteractions: []", "a.yaml")


def test_w6_placeholders_become_what_the_program_sends() -> None:
    """`--replace` puts real values in place of a cassette's placeholders, in addresses too."""
    content = _vcr(
        "{status: {code: 200}, headers: {}, body: {string: <USER>}}", REQUEST.replace("http://a.example", "<AT>")
    )
    with pytest.raises(ForeignFile, match="--replace"):
        read_cassette(content, "a.yaml")
    [found] = read_cassette(content, "a.yaml", {"<AT>": "https://b.example", "<USER>": "ada"}).interactions
    assert (found.url, found.reply_body) == ("https://b.example/x", b"ada")


def test_w6_a_cassette_is_told_from_a_recording() -> None:
    """Recordings and spans in JSON are not taken for cassettes."""
    assert is_cassette(b"", "a.yaml")
    assert is_cassette(b"\x1f\x8b", "a.yml.gz")
    assert is_cassette(LAYOUTS["betamax"], "-")
    assert is_cassette(b'{"version": 1, "interactions": []}', "a.json")
    assert not is_cassette(b'{"resourceSpans": []}', "a.json")
    assert not is_cassette(b"PK\x03\x04", "a.replay")
