"""Secrets that are cut by the edge of a chunk."""

from __future__ import annotations

import pytest

from spanreplay.redact import RULES, Anchor, Redactor, Rule, RunRedactor, redact_chunks
from support.secret_samples import SECRETS, Sample


def test_token_stands_whole_where_the_secret_starts(run: RunRedactor) -> None:
    """The chunk in which a secret starts gets the token; the others keep what is their own."""
    chunks = ["my password=", "hunt", "", "er2se", "cret and", " more"]
    redacted = redact_chunks(run, chunks)
    token = run.text("password=hunter2secret").removeprefix("password=")
    assert redacted == ["my password=", token, "", "", " and", " more"]


@pytest.mark.parametrize("sample", SECRETS, ids=lambda sample: str(sample.rule))
def test_r1_secret_cut_anywhere_is_found(run: RunRedactor, sample: Sample) -> None:
    """Wherever two chunks meet, the secret is gone and the text around it is not."""
    text = f"a {sample.text} b"
    expected = run.text(text)
    for cut in range(len(text) + 1):
        redacted = run.chunks([text[:cut], text[cut:]])
        assert "".join(redacted) == expected
    assert "".join(run.chunks(list(text))) == expected


def test_json_in_chunks_is_understood(run: RunRedactor) -> None:
    """A JSON body that arrives in pieces is redacted by its key names, and only its secret moves."""
    text = '{"user": "ada", "password": "a b", "n": 1}'
    chunks = [text[i : i + 5] for i in range(0, len(text), 5)]
    redacted = run.chunks(chunks)
    assert "".join(redacted) == run.json_text(text)
    assert redacted[:5] == chunks[:5]
    assert redacted[-2:] == chunks[-2:]


def test_clean_chunks_come_back_as_they_are(run: RunRedactor) -> None:
    """Nothing to redact, nothing moved; no chunks, no chunks."""
    assert run.chunks(["a", "", "b"]) == ["a", "", "b"]
    assert run.chunks([]) == []


def test_r3_chunks_fail_closed() -> None:
    """If a rule raises, one token stands for the whole stream and the number of chunks stays."""

    def explode(*_: object) -> bool:
        raise ZeroDivisionError

    run = Redactor(b"k" * 32, "k", (*RULES, Rule("broken", Anchor.TEXT, ("boom",), "boom", explode))).run()
    redacted = run.chunks(["bo", "om and", " more"])
    assert len(redacted) == 3
    assert "".join(redacted).startswith("rdx-k")
    assert len("".join(redacted)) == 21
    assert run.errors == 1
