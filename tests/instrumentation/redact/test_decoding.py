"""Secrets after escapes and inside base64 are found, and text that an agent encodes in a replay is redacted alike."""

from __future__ import annotations

import base64
import html
import json
import quopri
from collections.abc import Callable
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanreplay.redact import Redactor, RunRedactor
from spanreplay.redact.decoding import BYTES_MAX, find_blobs, iter_views
from support.secret_samples import SECRETS, SURVIVORS, Sample

_KEYS = [sample for sample in SECRETS if sample.text == sample.secret and "\n" not in sample.text]
_BEHIND = {
    "colour": "\x1b[1m{}\x1b[0m",
    "many-colours": "\x1b[38;5;196;1m{}\x1b[0m",
    "colour-as-text": r"\x1b[1m{}\x1b[0m",
    "colour-in-json": r"\u001b[31m{}\u001b[0m",
    "colour-in-octal": r"\033[31m{}\033[0m",
    "space": "q=a%20{}%20b",
    "equals": "token%3D{}%26b",
    "hex-quote": r"k=\x22{}\x22",
    "wide-equals": r"k\u003d{}\u0026 not json",
    "tab": r"k\t{}\n",
    "entity": "k=&quot;{}&quot;",
    "printable": "k=3D{}=20x",
}


@pytest.mark.parametrize("behind", _BEHIND.values(), ids=_BEHIND)
@pytest.mark.parametrize("sample", _KEYS, ids=lambda sample: str(sample.rule))
def test_r1_key_behind_an_escape_is_found(run: RunRedactor, sample: Sample, behind: str) -> None:
    """The last letters of an escape are not taken for the start of the key."""
    before, after = behind.split("{}")
    redacted = run.text(before + sample.text + after)
    assert redacted.startswith(before + "rdx-k")
    assert sample.text not in redacted


def _quoted_printable(text: str) -> str:
    return quopri.encodestring(text.encode(), quotetabs=True).decode()


def _json_escaped(text: str) -> str:
    return "".join(c if c.isalnum() else f"\\u{ord(c):04x}" for c in text)


def _hex_escaped(text: str) -> str:
    return "".join(c if c.isalnum() else f"\\x{ord(c):02x}" for c in text)


def _from_url_safe(text: str) -> str:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


_Pair = tuple[Callable[[str], str], Callable[[str], str]]
_ENCODINGS: dict[str, _Pair] = {
    "percent": (lambda text: quote(text, safe=""), unquote),
    "percent-twice": (lambda text: quote(quote(text, safe=""), safe=""), lambda text: unquote(unquote(text))),
    "html": (lambda text: html.escape(text).replace("-", "&#45;"), html.unescape),
    "quoted-printable": (_quoted_printable, lambda text: quopri.decodestring(text).decode()),
    "json": (_json_escaped, lambda text: text.encode().decode("unicode_escape")),
    "hex": (_hex_escaped, lambda text: text.encode().decode("unicode_escape")),
    "base64": (lambda text: base64.b64encode(text.encode()).decode(), lambda text: base64.b64decode(text).decode()),
    "base64-url": (lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="), _from_url_safe),
    "base64-lines": (
        lambda text: base64.encodebytes(text.encode()).decode().rstrip(),
        lambda text: base64.b64decode(text).decode(),
    ),
    "base64-twice": (
        lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
        lambda text: base64.b64decode(base64.b64decode(text)).decode(),
    ),
    "base64-of-json": (
        lambda text: base64.b64encode(json.dumps({"note": text}).encode()).decode(),
        lambda text: str(json.loads(base64.b64decode(text))["note"]),
    ),
}


@pytest.mark.parametrize("encoding", _ENCODINGS.values(), ids=_ENCODINGS)
@pytest.mark.parametrize("sample", [s for s in SECRETS if "\n" not in s.text], ids=lambda sample: str(sample.rule))
def test_r1_secret_inside_an_encoding_is_found(
    make_run: Callable[[], RunRedactor], sample: Sample, encoding: _Pair
) -> None:
    """Decoding the redacted encoding of a text gives the redacted text."""
    encode, decode = encoding
    text = f"the config of this host says: {sample.text} and more"
    redacted = make_run().text(f"> {encode(text)} <")
    if encoding is _ENCODINGS["quoted-printable"]:  # its `=` also writes an assignment
        assert sample.secret not in quopri.decodestring(redacted).decode()
    else:
        assert decode(redacted[2:-2]) == make_run().text(text)
    assert make_run().text(redacted) == redacted


@pytest.mark.parametrize(
    "name", ["percent", "percent-twice", "base64", "base64-lines", "base64-twice", "base64-of-json"]
)
@pytest.mark.parametrize("sample", [s for s in SECRETS if "\n" not in s.text], ids=lambda sample: str(sample.rule))
def test_s43_redaction_commutes_with_encoding(make_run: Callable[[], RunRedactor], sample: Sample, name: str) -> None:
    """An agent's encoding of redacted text in a replay equals the redaction of its encoding when recorded."""
    encode, _ = _ENCODINGS[name]
    text = f"the config of this host says: {sample.text} and more"
    assert make_run().text(encode(text)) == encode(make_run().text(text))


@pytest.mark.parametrize("encoding", [_ENCODINGS[name] for name in _ENCODINGS if name != "quoted-printable"])
def test_r2_encoded_harmless_text_survives(run: RunRedactor, encoding: _Pair) -> None:
    """Encoding harmless text does not make it a secret."""
    for text in SURVIVORS:
        encoded = encoding[0](text)
        assert run.text(encoded) == encoded


def test_r4_decoding_is_bounded(run: RunRedactor) -> None:
    """Decoding stops at three layers and one megabyte; anything beyond is left alone, in linear time."""
    text = "password=hunter2secret"
    for _ in range(3):
        text = quote(text, safe="")
    assert "hunter2secret" not in run.text(text)
    deep = b"%" + b"25" * 50_000 + b"20"
    assert len(list(iter_views(deep))) == 3
    assert sum(len(blob.text) for blob in find_blobs(base64.b64encode(b"word " * BYTES_MAX) * 2)) <= BYTES_MAX
    image = base64.b64encode(bytes(range(256)) * 400).decode()
    assert run.text(image) is image


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([sample.text for sample in SECRETS]),
            st.sampled_from(
                ["%20", "%", "\\x22", "\\u003d", "\x1b[0m", "&quot;", "=3D", "=\n", " ", "é", "password%3D", "a"]
            ),
            st.text(max_size=12).map(lambda text: base64.b64encode(text.encode() * 5).decode()),
        ),
        max_size=6,
    ).map("".join)
)
def test_r3_redaction_of_encoded_text_is_idempotent(text: str) -> None:
    """A second pass changes nothing, in any run."""
    run = Redactor(b"k" * 32, "k").run()
    once = run.text(text)
    assert Redactor(b"k" * 32, "k").run().text(once) == once == run.text(once)
    assert run.errors == 0


_NOISE = base64.b64encode(bytes(range(251)) * 3).decode()


@pytest.mark.parametrize(
    "chance", ["+00NXxFPTPVDGX6W5WI0BHZBm8TSyJ9usZAVCIfvBaU+", "/SK0123456789abcdef0123456789abcdef+"]
)
def test_r1_letters_in_the_base64_of_a_picture_are_no_key(run: RunRedactor, chance: str) -> None:
    """A megabyte of base64 contains key-like letters by chance; they are a key when alone, but not inside bytes."""
    assert "rdx-" in run.text(f"key {chance[1:-1]}")
    data = _NOISE[:600] + chance + "x" * (-len(chance) % 4) + _NOISE[600:]
    assert run.text(data) == data
    assert run.text(f'{{"url": "data:image/png;base64,{data}"}}') == f'{{"url": "data:image/png;base64,{data}"}}'


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("sample", _KEYS, ids=lambda sample: str(sample.rule))
def test_r1_key_in_the_base64_of_bytes_is_found(
    run: RunRedactor, sample: Sample, encode: Callable[[bytes], bytes]
) -> None:
    """A key among bytes that are not text is found; the rest still decodes, byte for byte."""
    before, after = b"\x89PNG\r\n\x1a\n\x00\xff", b"\x00\xfe" + bytes(range(128, 160))
    redacted = run.text(encode(before + sample.text.encode() + after).decode())
    raw = base64.b64decode(redacted.replace("-", "+").replace("_", "/"), validate=True)
    assert sample.text.encode() not in raw
    assert raw.startswith(before + b"rdx-k")
    assert raw.endswith(after)
