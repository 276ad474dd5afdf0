"""Every fixed key format is found wherever it appears, and no part of the key remains."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from spanreplay.redact import Redactor, RunRedactor
from spanreplay.redact.formats import FORMATS, MARKED
from support.format_samples import TEMPLATES, make_sample

_PLACES: dict[str, str] = {
    "alone": "{}",
    "prose": "I used {} for it, did it work?",
    "full stop": "It is {}.",
    "quotes": 'x = "{}"',
    "backticks": "`{}`",
    "brackets": "[({})]",
    "markup": "<b>{}</b>",
    "line": "first\n{}\nlast",
    "comma": "a,{},b",
    "column": "a\t{}\tb",
    "table": "| a | {} |",
    "header": "X-Thing: {}\r\n",
    "option": "run --thing {} -v",
    "variable": "THING={} ./run",
    "yaml": "thing: {}\n",
    "url": "https://x.test/a?thing={}&b=1",
    "path": "https://x.test/a/{}/b",
    "code": "f('{}')",
    "escaped line": "a\\n{}\\nb",
    "percent": "a%20{}%20b",
    "colour": "\x1b[1m{}\x1b[0m",
    "arrow": "thing=>{};",
    "semicolon": "a;{};b",
    "non-ascii": "取引→{}←",
    "token": "rdx-kbcdfghjklmnpqrst {} b",
}


def _core(key: str) -> str:
    """The distinctive part of a key, after its format's prefix."""
    return key[-16:-2]


@pytest.mark.parametrize("template", TEMPLATES)
def test_r1_key_of_a_known_format_is_found_in_every_place(run: RunRedactor, template: str) -> None:
    """Three keys of each format are found in 25 places and in JSON."""
    for seed in range(3):
        key = make_sample(template, seed)
        for place, frame in _PLACES.items():
            redacted = run.text(frame.replace("{}", key))
            assert key not in redacted, place
            assert _core(key) not in redacted, place
        assert _core(key) not in run.json_text(json.dumps({"a": [{"b": f"see {key} there"}]}))
        assert _core(key) not in run.text(quote(f"see {key} there"))
    assert run.errors == 0


def test_every_row_of_formats_has_a_sample(make_run: Callable[[], RunRedactor]) -> None:
    """Each row of the table finds a secret in some sample, and its starts match the beginning of its pattern."""
    counts: dict[str, int] = {}
    for template in TEMPLATES:
        make_run().text(make_sample(template), counts)
    untried = {*(row.name for row in FORMATS), *(row.name for row in MARKED)} - set(counts)
    assert untried == set()


def test_r2_short_start_of_a_key_inside_base64url_is_none(run: RunRedactor) -> None:
    """A thought signature that happens to contain `_sk-` stays; `my_sk-…` is a key."""
    signature = "EqQBCkYIBhgCKkAx9Zb3Qw7fT_sk-Vn4Lp8Rk2Hd6Ms1Yc5Jg0Xt_hf_Qa7Wb3Ne9Kp4Lf8Zd2"
    assert run.text(signature) == signature
    assert "Vn4Lp8Rk2Hd6Ms1Yc5Jg0Xt" not in run.text("my_key_sk-Vn4Lp8Rk2Hd6Ms1Yc5Jg0Xt")


def test_r2_zeros_in_base64_are_no_key() -> None:
    """Binary data with runs of zeros, as in databases, stays unchanged."""
    pages = [bytes(n % 251 for n in range(k, k + 90)) + bytes(400) + b"\x01\x02" + bytes(60) for k in range(40)]
    run = Redactor(bytes(range(32)), "b").run()
    for text in (base64.b64encode(b"".join(pages)).decode(), base64.b64encode(bytes(3000)).decode()):
        assert run.value({"$bytes": text}) == {"$bytes": text}
    assert run.errors == 0
