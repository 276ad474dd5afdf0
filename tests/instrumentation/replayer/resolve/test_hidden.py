"""Redacted values are served in a replay that has the key; without it the verdict says that they were not."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import struct
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spanreplay
from support.in_process import Replayed, recorded, replayed

SECRET: Final = "tok-Zx81+qqPl/9931=A"
PIN: Final = "48151623"
JWT: Final = (
    ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "bot", "plan": "gold", "exp": 1700000000})
    )
    + "."
    + base64.urlsafe_b64encode(hashlib.sha256(b"signature").digest()).decode().rstrip("=")
)
OTHER_KEY: Final = b"o" * 32
VALUES: Final = (SECRET, PIN, JWT)


@spanreplay.boundary("tool", name="log_in", effect="read")
def log_in() -> dict[str, Any]:
    """Return secrets that redaction hides."""
    return {"access_token": SECRET, "password": PIN, "session": {"api_key": JWT}, "client_secret": 20261124}


@spanreplay.boundary("tool", name="submit", effect="write")
def submit(what: Any) -> str:
    """Accept a value that the agent derived from them."""
    return "done"


def _claims(jwt: str) -> Any:
    body = jwt.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


Use = Callable[[str, str, str, int], Any]
USES: Final[dict[str, Use]] = {
    "length": lambda s, pin, jwt, n: len(s),
    "prefix": lambda s, pin, jwt, n: s[:5],
    "suffix": lambda s, pin, jwt, n: s[-3:],
    "slice": lambda s, pin, jwt, n: s[2:9],
    "mask": lambda s, pin, jwt, n: "*" * (len(s) - 4) + s[-4:],
    "hmac": lambda s, pin, jwt, n: hmac.new(s.encode(), b"GET /orders", "sha256").hexdigest(),
    "hash": lambda s, pin, jwt, n: hashlib.sha256(s.encode()).hexdigest(),
    "checksum": lambda s, pin, jwt, n: binascii.crc32(s.encode()),
    "base64": lambda s, pin, jwt, n: base64.b64encode(f"bot:{s}".encode()).decode(),
    "hexadecimal": lambda s, pin, jwt, n: s.encode().hex(),
    "claims of a JWT": lambda s, pin, jwt, n: _claims(jwt)["plan"],
    "upper case": lambda s, pin, jwt, n: s.upper(),
    "reversed": lambda s, pin, jwt, n: s[::-1],
    "sort": lambda s, pin, jwt, n: sorted(["tok-A", "tok-Zy", s]).index(s),
    "compare": lambda s, pin, jwt, n: s > "tok-Z" and s != "rdx-",
    "equal": lambda s, pin, jwt, n: s == SECRET,
    "format": lambda s, pin, jwt, n: f"[{s:.6}]",
    "key of a dict": lambda s, pin, jwt, n: {SECRET: "ours"}.get(s, "theirs"),
    "set membership": lambda s, pin, jwt, n: s in {SECRET, "else"},
    "split": lambda s, pin, jwt, n: s.split("-")[1],
    "regular expression": lambda s, pin, jwt, n: re.fullmatch(r"tok-[A-Z]\w+\+\w+/\d+=A", s) is not None,
    "int": lambda s, pin, jwt, n: int(pin) + 1,
    "number": lambda s, pin, jwt, n: n + 1,
    "type": lambda s, pin, jwt, n: type(n).__name__,
    "url-encoded": lambda s, pin, jwt, n: quote(s, safe="")[:9],
    "query": lambda s, pin, jwt, n: len(urlencode({"key": s})),
    "struct": lambda s, pin, jwt, n: list(struct.unpack(">2I", pin.encode())),
    "count": lambda s, pin, jwt, n: Counter(s).most_common(1),
    "wrap": lambda s, pin, jwt, n: textwrap.wrap(s, 5),
    "translate": lambda s, pin, jwt, n: s.translate(str.maketrans("Z", "Q")),
    "is digits": lambda s, pin, jwt, n: pin.isdigit(),
    "encoded": lambda s, pin, jwt, n: json.dumps(s)[:8],
}


def _agent(use: Use) -> Callable[[], Any]:
    def run() -> Any:
        found = log_in()
        made = use(found["access_token"], found["password"], found["session"]["api_key"], found["client_secret"])
        submit(made)
        return made

    return run


def _told(replay: Replayed) -> str:
    """Return everything that the replay reports and records."""
    return json.dumps(replay.verdict) + b"".join(replay.memory.payloads).decode("utf-8", "replace")


@pytest.mark.parametrize("name", USES)
def test_r9_use_of_a_secret_replays_where_the_key_is(name: str) -> None:
    """An unchanged agent gets the true value, uses it as before, and no part of it is recorded."""
    agent = _agent(USES[name])
    recording = recorded(agent)
    assert not any(value in call.response for call in recording.calls for value in VALUES)
    replay = replayed(agent, recording)
    assert (replay.error, replay.kinds()) == (None, [])
    assert replay.result == USES[name](SECRET, PIN, JWT, 20261124)
    assert not [value for value in VALUES if value in _told(replay)]


@pytest.mark.parametrize("name", USES)
def test_r9_use_of_a_secret_without_the_key_names_redaction(name: str) -> None:
    """Without the key the agent gets tokens; if that makes a difference, the verdict names it, with call and field."""
    agent = _agent(USES[name])
    replay = replayed(agent, recorded(agent), key=OTHER_KEY)
    leading = [d for d in replay.verdict["divergences"] if not d["downstream"]]
    assert leading
    assert [cause["kind"] for cause in leading[0]["causes"]][:1] == ["redaction"]
    assert re.search(r"value\.\w+.* in call 1 \(tool:log_in\)", leading[0]["cause"])
    assert "SPANREPLAY_REDACT_KEY" in leading[0]["hint"]


# ── Programs ────────────────────────────────────────────────────────────────────────────────────────
_POOL: Final = (
    "hunter2hunter2",
    "swordfish_blue_77",
    "pa$$w0rd!2026x",
    "qUiet.Otter-42",
    "5up3r+S3cret/==",
    "4815162342",
)
_SHAPES: Final[dict[str, Callable[[str], Any]]] = {
    "a member": lambda s: {"user": "bot", "password": s},
    "a number": lambda s: {"client_secret": len(s) * 1_000_003, "n": 7},
    "a context": lambda s: f"the api_key={s} works, until 2026",
    "JSON": lambda s: json.dumps({"note": "keep", "access_token": s}),
    "a list": lambda s: [s, {"deep": [{"api_key": s}]}],
    "in clear": lambda s: f"an ordinary sentence with {s} in it",
    "a header": lambda s: {"headers": [["set-cookie", f"sid={s}; Path=/"], ["x-request-id", "17"]]},
    "bytes": lambda s: f"password={s}\n".encode(),
    "base64": lambda s: base64.b64encode(f"the configuration says api_key={s} and more".encode()).decode(),
}
_MAKES: Final[tuple[Callable[[Any], Any], ...]] = (
    lambda value: value,
    lambda value: len(str(value)),
    lambda value: hashlib.sha256(repr(value).encode()).hexdigest()[:8],
    lambda value: repr(value)[:14],
    lambda value: sorted(repr(value))[:20],
    lambda value: f"they said {value}",
)


@spanreplay.boundary("tool", name="source", effect="read")
def source(shape: str, number: int) -> Any:
    """Return a pool value in a shape that redaction hides, or in clear."""
    return _SHAPES[shape](_POOL[number])


@spanreplay.boundary("tool", name="pieces", effect="read")
def pieces(shape: str, number: int) -> Any:
    """Yield such a value, then another one with the length of the value sent in."""
    heard = yield _SHAPES[shape](_POOL[number])
    yield {"heard": len(repr(heard)), "more": _SHAPES[shape](_POOL[number - 1])}


@spanreplay.boundary("tool", name="refuse", effect="read")
def refuse(shape: str, number: int) -> None:
    """Raise such a value in an exception."""
    raise PermissionError(str(_SHAPES[shape](_POOL[number])))


_step = st.tuples(
    st.sampled_from(["source", "source", "pieces", "refuse"]),
    st.sampled_from(sorted(_SHAPES)),
    st.integers(0, len(_POOL) - 1),
    st.integers(0, len(_MAKES) - 1),
    st.integers(0, 5),
)


def _program(steps: list[tuple[str, str, int, int, int]]) -> Callable[[], list[str]]:
    """An agent that makes requests, and submits values derived from recent answers."""

    def run() -> list[str]:
        seen: list[Any] = []
        for how, shape, number, make, back in steps:
            if how == "source":
                seen.append(source(shape, number))
            elif how == "refuse":
                with pytest.raises(PermissionError) as caught:
                    refuse(shape, number)
                seen.append(str(caught.value))
            else:
                generator = pieces(shape, number)
                seen.append(next(generator))
                seen.append(generator.send(seen[-1]))
                generator.close()
            submit(_MAKES[make](seen[-1 - back % len(seen)]))
        return list(map(repr, seen))

    return run


@settings(max_examples=int(os.environ.get("SPANREPLAY_TEST_PROGRAMS", "60")), deadline=None)
@given(st.lists(_step, min_size=1, max_size=6))
def test_r9_program_that_uses_secrets_replays_where_the_key_is(steps: list[tuple[str, str, int, int, int]]) -> None:
    """Any program sees the same and its replay records the same; without the key the difference is explained."""
    agent, first = _program(steps), []
    recording = recorded(lambda: first.extend(agent()))
    replay = replayed(agent, recording)
    assert (replay.error, replay.kinds()) == (None, [])
    assert replay.result == first
    again = replay.memory.recording(replay.run.run_id)
    assert [(c.request, c.response) for c in again.calls] == [(c.request, c.response) for c in recording.calls]
    other = replayed(agent, recording, key=OTHER_KEY)
    leading = [d for d in other.verdict["divergences"] if not d["downstream"]]
    assert all("redaction" in [cause["kind"] for cause in d.get("causes", ())] for d in leading[:1])
