"""Digests of a request's parts: keyed, short, and enough to locate the difference between two requests."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spanreplay
from spanreplay.model import digests as digests_module
from spanreplay.model.call import Recording
from spanreplay.model.digests import CHARACTERS, Digester, differing_paths
from spanreplay.model.keys import KeyMemo, compute_key
from spanreplay.recording.bundle import load_file
from support.in_process import recorded, replayed
from support.provider import Provider
from support.replay_calls import seal

CHAT = "openai_chat/1"


def derive_from(secret: bytes) -> Any:
    """A stand-in for a redactor: derives a key for a purpose."""
    return lambda purpose: hmac.digest(secret, purpose, "sha256")


def describe(fields: dict[str, Any], digester: Digester | None = None, keyspec: str = CHAT) -> str:
    """The digests of one request."""
    return (digester or Digester(derive_from(b"k"))).describe(compute_key(keyspec, fields, KeyMemo()), fields)


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    """A conversation with these messages."""
    roles = ["system", *["user", "assistant"] * len(contents)]
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    return {"model": "gpt-x", "messages": messages, **fields}


@pytest.mark.parametrize(
    ("now", "paths"),
    [
        (chat("be careful", "sell", "ok", "buy"), []),
        (chat("be careful", "sell", "ok", "buy now"), ["messages[3].content"]),
        (chat("be bold", "sell", "ok", "buy"), ["messages[0].content"]),
        (chat("be careful", "sell", "ok"), ["messages[3]"]),
        (chat("be careful", "sell", "ok", "buy", temperature=0), ["temperature"]),
        ({**chat("be careful", "sell", "ok", "buy"), "model": "gpt-y"}, ["model"]),
    ],
    ids=["equal", "content", "system", "shorter", "added", "model"],
)
def test_n7_digests_say_where_requests_differ(now: dict[str, Any], paths: list[str]) -> None:
    """Two lists of digests alone give the differing message and member."""
    assert differing_paths(describe(chat("be careful", "sell", "ok", "buy")), describe(now)) == paths


def test_n7_arguments_of_a_tool_are_told_apart() -> None:
    """A tool's differing argument is named too."""
    one = {"name": "refund", "arguments": {"amount": 100, "to": "a@example.org"}}
    other = {"name": "refund", "arguments": {"amount": 900, "to": "a@example.org"}}
    found = differing_paths(describe(one, keyspec="tool/1"), describe(other, keyspec="tool/1"))
    assert found == ["arguments.amount"]


def test_n7_digests_are_keyed() -> None:
    """Without the key a digest reveals nothing, not even a value that can be guessed."""
    fields = chat("yes")
    one = json.loads(describe(fields, Digester(derive_from(b"one"))))
    other = json.loads(describe(fields, Digester(derive_from(b"other"))))
    assert one["model"] != other["model"]
    assert len(one["model"]) == CHARACTERS
    assert hashlib.sha256(b'value:"gpt-x"').hexdigest()[:CHARACTERS] not in json.dumps(one)


def test_n7_opaque_ids_are_no_difference_of_their_own() -> None:
    """The same conversation with other tool call ids has the same digests."""

    def turn(call_id: str) -> dict[str, Any]:
        call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return {
            "model": "m",
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": "done"},
            ],
        }

    assert describe(turn("call_abc")) == describe(turn("call_xyz"))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "hello"]), min_size=1, max_size=5), min_size=1, max_size=5))
def test_digests_do_not_depend_on_what_was_seen_before(conversations: list[list[str]]) -> None:
    """A digester that has seen other requests gives the same digests as a new one."""
    used = Digester(derive_from(b"k"))
    for contents in conversations:
        fields = chat(*contents)
        assert describe(fields, used) == describe(fields)


def test_digester_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digester's memory is bounded, and so is the list of digests of one conversation."""
    monkeypatch.setattr(digests_module, "MEMO_ITEMS_MAX", 10)
    monkeypatch.setattr(digests_module, "ELEMENTS_MAX", 3)
    digester = Digester(derive_from(b"k"))
    found = json.loads(describe(chat(*[f"message {n}" for n in range(20)]), digester))
    assert len(digester._memo) <= 10
    newest = describe(chat("newest"), digester)
    assert any(part in digester._memo.values() for part in json.loads(newest)["messages"])
    assert [bool(each) for each in found["messages"]] == [False] * 17 + [True] * 3


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_digests_that_cannot_be_read_name_nothing(text: str) -> None:
    """A recording without digests gives no location and no error."""
    assert differing_paths(text, '{"model":"x"}') == []


@spanreplay.boundary("tool", name="refund", effect="irreversible")
def refund(amount: int, note: dict[str, str]) -> str:
    """A tool."""
    return f"refunded {amount}"


def _recorded(provider: Provider, folder: Path) -> Recording:
    """A recorded call to a model."""
    with spanreplay.record(directory=folder) as block:
        _ask(provider, "refund 100")
    assert block.path is not None
    return load_file(block.path)


def _replayed(provider: Provider, text: str, recording: Recording) -> dict[str, Any]:
    """The verdict of a replay that makes this request."""
    block = spanreplay.replay(recording)
    with contextlib.suppress(spanreplay.ReplayMiss), block:
        _ask(provider, text)
    return block.verdict()


def _ask(provider: Provider, text: str) -> None:
    with openai.OpenAI(base_url=provider.openai_url, api_key="none", max_retries=0) as client:
        history: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]
        client.chat.completions.create(model="gpt-x", messages=history)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "erased"])
def test_n7_mismatch_is_located_where_the_payload_is_gone(is_kept: bool, tmp_path: Path) -> None:
    """A changed message is named without its old value even if the recorded request was erased."""
    with Provider() as provider:
        recording = _recorded(provider, tmp_path)
        verdict = _replayed(provider, "refund 900", recording if is_kept else _erase(recording))
        assert len(provider.requests) == 1
    (found,) = verdict["divergences"]
    (diff,) = found["diff"]
    assert found["kind"] == "changed_call"
    before = "refund 100" if is_kept else "(not kept)"
    assert (diff["path"], diff["recorded"], diff["now"]) == ("messages[1].content", before, "refund 900")


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "erased"])
def test_n7_mismatch_is_located_in_what_redaction_hides(is_kept: bool, tmp_path: Path) -> None:
    """A message that differs only in a redacted value is named; neither value is in the recording or the verdict."""
    then, now = "mail ann.lee@example.org", "mail bob.ray@example.org"
    with Provider() as provider:
        with spanreplay.record(directory=tmp_path) as block:
            _ask(provider, then)
        assert block.path is not None
        recording = load_file(block.path)
        assert "ann.lee" not in recording.calls[0].request
        assert "content" in recording.calls[0].request
        verdict = _replayed(provider, now, recording if is_kept else _erase(recording))
    (found,) = verdict["divergences"]
    (diff,) = found["diff"]
    assert (found["kind"], diff["path"]) == ("changed_call", "messages[1].content")
    assert diff["recorded"] != diff["now"]
    assert not [name for name in ("ann.lee", "bob.ray") if name in json.dumps(verdict)]


def test_n7_call_of_a_function_is_found_and_not_located() -> None:
    """A function's call has no digests: if its arguments were erased, the call is named, but not the argument."""
    recording = recorded(lambda: refund(100, {"reason": "late"}))
    assert recording.calls[0].digests == ""
    replay = replayed(lambda: refund(100, {"reason": "broken"}), _erase(recording))
    (found,) = replay.verdict["divergences"]
    assert (found["kind"], found["boundary"]) == ("changed_call", "tool:refund")


def _erase(recording: Recording) -> Recording:
    return seal(Recording(recording.root, tuple(dataclasses.replace(c, request="") for c in recording.calls)))


def test_n7_digests_are_sealed(tmp_path: Path) -> None:
    """Digests that were replaced after the recording are tampering."""
    with Provider() as provider:
        recording = _recorded(provider, tmp_path)
        assert recording.calls[0].digests
        forged = dataclasses.replace(recording.calls[0], digests='{"model":"AAAAAA"}')
        verdict = _replayed(provider, "refund 100", Recording(recording.root, (forged,)))
    assert verdict["verdict"] == "tampered"
