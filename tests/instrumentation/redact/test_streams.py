"""Secrets that are cut by the edge of a chunk."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


# ── Events: the text is cut into JSON strings ───────────────────────────────────────────────────────
def _openai_events(pieces: list[str]) -> str:
    lines = []
    for piece in pieces:
        delta = {"index": 0, "delta": {"content": piece}}
        other = {"index": 1, "delta": {"content": "-"}}
        lines.append("data: " + json.dumps({"id": "chatcmpl-1", "choices": [delta, other]}) + "\n\n")
    return "".join(lines) + "data: [DONE]\n\n"


def _anthropic_events(pieces: list[str]) -> str:
    return "".join(
        "event: content_block_delta\ndata: "
        + json.dumps({"type": "content_block_delta", "index": n % 2, "delta": {"type": "input_json_delta", k: v}})
        + "\n\n"
        for piece in pieces
        for n, k, v in ((0, "partial_json", piece), (1, "text", "x"))
    )


def _json_lines(pieces: list[str]) -> str:
    return "".join(json.dumps({"message": {"content": piece}, "done": False}) + "\n" for piece in pieces)


def _plain_events(pieces: list[str]) -> str:
    return "".join(f"data: {piece}\n\n" for piece in pieces if piece)


_FRAMINGS: dict[str, tuple[Callable[[list[str]], str], Callable[[Any], str]]] = {
    "openai": (_openai_events, lambda event: str(event["choices"][0]["delta"]["content"])),
    "anthropic": (_anthropic_events, lambda event: str(event["delta"].get("partial_json", ""))),
    "json-lines": (_json_lines, lambda event: str(event["message"]["content"])),
    "plain": (_plain_events, str),
}


def _payloads(text: str) -> list[Any]:
    found: list[Any] = []
    for line in text.splitlines():
        payload = line.removeprefix("data:").removeprefix(" ")
        if not payload or payload == "[DONE]" or payload.startswith("event:"):
            continue
        try:
            found.append(json.loads(payload))
        except ValueError:
            found.append(payload)
    return found


_FRAMED = [
    pytest.param(sample, framing, id=f"{sample.rule}-{framing}")
    for sample in SECRETS
    for framing in _FRAMINGS
    if framing != "plain" or "\n" not in sample.text  # a line of plain data has no line breaks
]


@pytest.mark.parametrize(("sample", "framing"), _FRAMED)
def test_r1_secret_streamed_in_pieces_is_found(run: RunRedactor, sample: Sample, framing: str) -> None:
    """A secret that a model streams three characters at a time is in no event, and what is left still parses."""
    frame, read = _FRAMINGS[framing]
    text = f"ok {sample.text} end"
    stream = frame([text[i : i + 3] for i in range(0, len(text), 3)])
    redacted = run.text(stream)
    assert "".join(map(read, _payloads(redacted))) == run.text(text)
    assert len(_payloads(redacted)) == len(_payloads(stream)) or framing == "plain"
    assert run.text(redacted) == redacted
    cut = [stream[i : i + 50] for i in range(0, len(stream), 50)]
    assert "".join(run.chunks(cut)) == redacted
    assert run.errors == 0


def test_r1_streamed_tool_arguments_are_read_as_json(run: RunRedactor) -> None:
    """The arguments of a tool call come in pieces of JSON; key names in them count once they are together."""
    arguments = json.dumps({"user": "ada", "password": "a b c", "note": "kept"})
    stream = _anthropic_events([arguments[i : i + 4] for i in range(0, len(arguments), 4)])
    counts: dict[str, int] = {}
    redacted = run.text(stream, counts)
    _, read = _FRAMINGS["anthropic"]
    parsed = json.loads("".join(map(read, _payloads(redacted))))
    assert parsed == run.value(json.loads(arguments))
    assert counts == {"secret_key_name": 1}


def test_r2_clean_events_come_back_as_they_are(run: RunRedactor) -> None:
    """A stream without secrets is the same object, whatever its framing."""
    pieces = ["The total ", "is $190,", "000 on 2026-", "11-21, call_", "abc123DEF456ghi789", "JKL."]
    for frame, _ in _FRAMINGS.values():
        stream = frame(pieces)
        assert run.text(stream) is stream
        assert run.chunks([stream]) == [stream]


@given(st.text(max_size=40), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_events_of_any_text_stay_events(text: str, sizes: list[int]) -> None:
    """Whatever is streamed, and however it is cut, framing and number of events stay."""
    text = f"{text} password=hunter2secret {text}"
    pieces, position, turn = [], 0, 0
    while position < len(text):
        size = sizes[turn % len(sizes)]
        pieces.append(text[position : position + size])
        position, turn = position + size, turn + 1
    run = Redactor(b"k" * 32, "k").run()
    for name in ("openai", "anthropic", "json-lines"):
        frame, read = _FRAMINGS[name]
        redacted = run.text(frame(pieces))
        events = _payloads(redacted)
        assert len(events) == len(_payloads(frame(pieces)))
        assert "hunter2secret" not in "".join(map(read, events))
    assert run.errors == 0
