"""Secrets that are split across chunks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanreplay.redact import RULES, Anchor, Redactor, Rule, RunRedactor, redact_chunks
from support import wire_text
from support.dialect_samples import MODELS
from support.secret_samples import SECRETS, Sample


def test_token_stands_whole_where_the_secret_starts(run: RunRedactor) -> None:
    """The chunk in which a secret starts gets the token; the others keep the rest of their text."""
    chunks = ["my password=", "hunt", "", "er2se", "cret and", " more"]
    redacted = redact_chunks(run, chunks)
    token = run.text("password=hunter2secret").removeprefix("password=")
    assert redacted == ["my password=", token, "", "", " and", " more"]


@pytest.mark.parametrize("sample", SECRETS, ids=lambda sample: str(sample.rule))
def test_r1_secret_cut_anywhere_is_found(run: RunRedactor, sample: Sample) -> None:
    """For any boundary between two chunks, the secret is removed and the text around it stays."""
    text = f"a {sample.text} b"
    expected = run.text(text)
    for cut in range(len(text) + 1):
        redacted = run.chunks([text[:cut], text[cut:]])
        assert "".join(redacted) == expected
    assert "".join(run.chunks(list(text))) == expected


def test_json_in_chunks_is_understood(run: RunRedactor) -> None:
    """A JSON body in pieces is redacted by its key names, and nothing but its secret is moved."""
    text = '{"user": "ada", "password": "a b", "n": 1}'
    chunks = [text[i : i + 5] for i in range(0, len(text), 5)]
    redacted = run.chunks(chunks)
    assert "".join(redacted) == run.json_text(text)
    assert redacted[:5] == chunks[:5]
    assert redacted[-2:] == chunks[-2:]


def test_clean_chunks_come_back_as_they_are(run: RunRedactor) -> None:
    """If nothing is redacted nothing moves; no chunks give no chunks."""
    assert run.chunks(["a", "", "b"]) == ["a", "", "b"]
    assert run.chunks([]) == []


def test_r3_chunks_fail_closed() -> None:
    """If a rule raises, one token replaces the whole stream and the number of chunks stays."""

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
    """A secret that a model streams three characters at a time is in no event, and every event still parses."""
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
    """The arguments of a tool call come in pieces of JSON, whose key names are used once they are joined."""
    arguments = json.dumps({"user": "ada", "password": "a b c", "note": "kept"})
    stream = _anthropic_events([arguments[i : i + 4] for i in range(0, len(arguments), 4)])
    counts: dict[str, int] = {}
    redacted = run.text(stream, counts)
    _, read = _FRAMINGS["anthropic"]
    parsed = json.loads("".join(map(read, _payloads(redacted))))
    assert parsed == run.value(json.loads(arguments))
    assert counts == {"secret_key_name": 1}


def test_r2_clean_events_come_back_as_they_are(run: RunRedactor) -> None:
    """A stream without secrets is the same object, in any framing."""
    pieces = ["The total ", "is $190,", "000 on 2026-", "11-21, call_", "abc123DEF456ghi789", "JKL."]
    for frame, _ in _FRAMINGS.values():
        stream = frame(pieces)
        assert run.text(stream) is stream
        assert run.chunks([stream]) == [stream]


@given(st.text(max_size=40), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_events_of_any_text_stay_events(text: str, sizes: list[int]) -> None:
    """For any streamed text and any cuts, framing and number of events stay."""
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


# ── Every dialect, every cut ────────────────────────────────────────────────────────────────────────
_KEY = (
    "sk-ant-" + "api03-" + "".join(chr(65 + i * 7 % 26) + chr(97 + i * 11 % 26) + str(i % 10) for i in range(31)) + "AA"
)
_PASSWORD = "correcthorse" + "42battery"
_SPOKEN = {name: sample for name, sample in MODELS.items() if sample.stream is not None}


def _survives(secret: str, text: str, least: int = 8) -> bool:
    """Whether any eight consecutive characters of a secret are left."""
    return any(secret[at : at + least] in text for at in range(7, len(secret) - least + 1))


@pytest.mark.parametrize("pieces", [2, 5, 11, 40])
@pytest.mark.parametrize("name", _SPOKEN)
def test_r1_key_in_a_dialects_stream_is_found_however_it_is_cut(
    make_run: Callable[[], RunRedactor], monkeypatch: pytest.MonkeyPatch, name: str, pieces: int
) -> None:
    """No eight characters of a key or a password remain of a real stream, for any cuts."""
    monkeypatch.setattr(wire_text.split_text, "__defaults__", (pieces,))
    for padding in range(0, 130, 13):
        said = json.dumps({"text": "a" * padding + f" {_KEY} b password={_PASSWORD} {'c' * (130 - padding)}"})
        stream = "".join(_SPOKEN[name].streamed(f"say {said}"))
        run = make_run()
        redacted = run.text(stream)
        assert not _survives(_KEY, redacted)
        assert not _survives(_PASSWORD, redacted)
        assert run.text(redacted) == redacted == make_run().text(redacted)
        assert run.errors == 0
        messages = [
            line.removeprefix("data: ") for line in stream.splitlines() if line[:1] == "{" or line[:6] == "data: "
        ]
        assert not _survives(_KEY, "".join(make_run().messages(messages)))


def _gemini_array(pieces: list[str]) -> str:
    chunks = [json.dumps({"candidates": [{"content": {"parts": [{"text": p}]}}]}, indent=2) for p in pieces]
    return "[" + ",\r\n".join(chunks) + "]"


def _ollama_lines(pieces: list[str]) -> str:
    return "".join(json.dumps({"model": "m", "response": piece, "done": False}) + "\n" for piece in pieces)


def _counted_events(pieces: list[str]) -> str:
    return "".join(f"data: {json.dumps({'index': n, 'token': {'text': p}})}\n\n" for n, p in enumerate(pieces, 1))


def _growing_events(pieces: list[str]) -> str:
    texts = ["".join(pieces[: n + 1]) for n in range(len(pieces))]
    return "".join(f"data: {json.dumps({'text': text})}\n\n" for text in texts)


@pytest.mark.parametrize("frame", [_openai_events, _gemini_array, _ollama_lines, _counted_events, _growing_events])
def test_r1_no_cut_leaves_the_tail_of_a_key(
    make_run: Callable[[], RunRedactor], frame: Callable[[list[str]], str]
) -> None:
    """For two pieces cut anywhere, and a stream that ends there, no cut leaves eight characters."""
    for cut in range(1, len(_KEY)):
        stream = frame(["my key: ", _KEY[:cut], _KEY[cut:], " ok"])
        run = make_run()
        redacted = run.text(stream)
        assert not _survives(_KEY, redacted), cut
        assert run.errors == 0
        last = stream.rindex("{")
        broken = make_run().text(stream[:last])
        assert frame is _growing_events or cut < 30 or not _survives(_KEY[: cut - 1], broken), cut


def test_r1_pieces_of_a_password_are_not_learned(run: RunRedactor) -> None:
    """A password that continues in the next event is remembered whole, so that it is found when it appears again."""
    run.text(_openai_events(["password=hunter2se", "cretword", " done"]))
    assert run.text("and hunter2secretword too") == run.text("and hunter2secretword too").replace("hunter2", "")
    assert "hunter2" not in run.text("then hunter2secretword there")


def test_r2_conversations_are_no_streams(run: RunRedactor) -> None:
    """Messages of one list are separate: a key does not swallow the word that begins the next."""
    key = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hI6"
    said = json.dumps([{"role": "user", "content": f"my key {key}"}, {"role": "user", "content": "Thanks"}])
    assert json.loads(run.text(said))[1]["content"] == "Thanks"


def test_r1_generator_that_yields_a_key_in_pieces_is_redacted(run: RunRedactor) -> None:
    """A generator's items are read together, texts and objects; text outside the secret stays in its item."""
    texts = ["my key ", _KEY[:40], _KEY[40:90], _KEY[90:], " end"]
    made = run.items(texts)
    assert made[0] == texts[0]
    assert made[1].startswith("rdx-")
    assert made[2:] == ["", "", " end"]
    objects = [{"delta": {"text": text, "n": 1}} for text in texts]
    assert [item["delta"]["text"] for item in run.items(objects)] == made
    assert run.items(["a", "b"]) == ["a", "b"]
