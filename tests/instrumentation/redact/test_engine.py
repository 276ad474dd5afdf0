"""The values that a run's redactor remembers, shares, counts and drops."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spanreplay.redact import RULES, Anchor, Redactor, Rule, RunRedactor
from spanreplay.redact.scanner import Scanner
from support.secret_samples import SECRETS

MakeRun = Callable[[], RunRedactor]


def _explode(*_: object) -> bool:
    raise ZeroDivisionError("a rule with a bug")


_BROKEN = Rule("broken", Anchor.TEXT, ("boom",), "boom", check=_explode)


def test_same_secret_gets_the_same_token_whatever_finds_it(run: RunRedactor) -> None:
    """A password gets one token in a URL, an assignment, a header and under a key, also when quoted twice."""
    secret = "Sup3rS3cretpw"
    found = [
        run.text(f"postgres://app:{secret}@db")[15:-3],
        run.text(f"password={secret}")[9:],
        run.text(f"Bearer {secret}")[7:],
        run.value({"password": secret})["password"],
        json.loads(json.loads(run.json_text(json.dumps({"a": json.dumps({"password": secret})})))["a"])["password"],
    ]
    assert len(set(found)) == 1
    assert found[0].startswith("rdx-k")


def test_s43_two_values_get_two_tokens(run: RunRedactor) -> None:
    """Different secrets keep different tokens, so that keys built from them differ."""
    first, second = run.text("password=hunter2secret"), run.text("password=hunter3secret")
    assert first != second


def test_tokens_depend_on_the_key() -> None:
    """Another key gives another token, and the token names its key."""
    first = Redactor(b"k" * 32, "k").run().text("password=hunter2secret")
    second = Redactor(b"z" * 32, "z").run().text("password=hunter2secret")
    assert first.startswith("password=rdx-k")
    assert second.startswith("password=rdx-z")
    assert first[14:] != second[14:]


def test_value_known_by_context_is_redacted_wherever_it_reappears(make_run: MakeRun) -> None:
    """A password seen under its key name is removed from later prose, other fields, and the same document."""
    run = make_run()
    tool = run.value({"user": "ada", "password": "correct horse"})
    token = tool["password"]
    assert run.text("I logged in with correct horse.") == f"I logged in with {token}."
    assert run.value(["xcorrect horsex"]) == [f"x{token}x"]
    together = make_run().value({"prompt": "use correct horse", "password": "correct horse"})
    assert together == {"prompt": f"use {token}", "password": token}


def test_known_values_belong_to_one_run(make_run: MakeRun) -> None:
    """Values known in one run are unknown in the next."""
    make_run().value({"password": "correct horse"})
    assert make_run().text("correct horse") == "correct horse"


@pytest.mark.parametrize("value", ["short", "password", "username", "aaaaaaaaaaaa", "api_key"])
def test_r2_common_words_are_not_remembered(run: RunRedactor, value: str) -> None:
    """A short or common word under a secret name is replaced there and nowhere else."""
    assert run.value({"password": value})["password"].startswith("rdx-k")
    assert run.text(f"the {value} field") == f"the {value} field"


def test_r2_known_number_is_not_cut_out_of_a_longer_one(run: RunRedactor) -> None:
    """A numeric password does not remove digits of an order number."""
    token = run.value({"password": "20241357"})["password"]
    assert run.text("order 9920241357, pin 20241357!") == f"order 9920241357, pin {token}!"


def test_text_that_was_recorded_in_clear_keeps_its_form(run: RunRedactor) -> None:
    """Text that was sent before keeps its form and key, even if a part of it later turns out to be a secret."""
    prompt = "log in with correct horse"
    assert run.text(prompt) == prompt
    run.value({"password": "correct horse"})
    assert run.text(prompt) == prompt
    assert "correct horse" not in run.text("now: " + prompt)


def test_r4_text_seen_before_is_not_scanned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with a long history and one new message only costs a scan of that message."""
    run = Redactor(b"k" * 32, "k").run()
    scanned: list[int] = []
    scan = Scanner.scan

    def counting(self: Scanner, text: bytes) -> Any:
        scanned.append(len(text))
        return scan(self, text)

    monkeypatch.setattr(Scanner, "scan", counting)
    messages = [{"role": "user", "content": f"message {n} password=hunter{n}secret " + "x " * 500} for n in range(40)]
    redacted = run.value({"messages": messages})
    assert sum(scanned) < 200_000
    scanned.clear()
    newer = {"messages": [*messages, {"role": "user", "content": "one more"}]}
    again: Any = run.value(newer)
    assert again["messages"][:40] == redacted["messages"]
    assert sum(scanned) <= len("one more")
    scanned.clear()
    run.json_text(json.dumps({"body": json.dumps(newer)}))
    assert sum(scanned) <= len("arguments body one more")


def test_memory_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run remembers a bounded number of texts, and forgetting changes no result."""
    monkeypatch.setattr("spanreplay.redact.engine.MEMO_ITEMS_MAX", 100)
    run = Redactor(b"k" * 32, "k").run()
    texts = [f"text number {n} password=hunter{n}secret" for n in range(1000)]
    first = [run.text(text) for text in texts]
    assert len(run._memo) <= 100
    assert [run.text(text) for text in texts] == first
    assert run.value(texts) == first


def test_clean_values_come_back_as_the_same_object(run: RunRedactor) -> None:
    """If nothing is redacted nothing is copied, and clean parts of a changed value are not copied either."""
    clean = {"a": [1, 2.5, None, True, {"b": "text"}], "c": "x" * 100}
    assert run.value(clean) is clean
    mixed = {"clean": clean, "secret": "hunter2secret"}
    redacted = run.value(mixed)
    assert redacted is not mixed
    assert redacted["clean"] is clean
    assert mixed["secret"] == "hunter2secret"


def test_value_takes_tuples_and_bytes(run: RunRedactor) -> None:
    """Attribute values keep their types: tuples stay tuples, bytes stay bytes even if they are not text."""
    value = {"t": ("a", "password=hunter2secret"), "b": b"\xff\xfe password=hunter2secret \x80"}
    redacted: Any = run.value(value)
    token = redacted["t"][1].removeprefix("password=")
    assert redacted == {"t": ("a", f"password={token}"), "b": b"\xff\xfe password=" + token.encode() + b" \x80"}


def test_secret_in_an_object_key_is_replaced(run: RunRedactor) -> None:
    """Keys are text too; the order of members stays."""
    value = {"first": 1, "ghp_" + "a1" * 18: 2, "password=hunter2secret": 3}
    redacted = run.value(value)
    assert list(redacted.values()) == [1, 2, 3]
    assert "hunter2secret" not in json.dumps(redacted)
    assert "ghp_" not in json.dumps(redacted)
    assert json.loads(run.json_text(json.dumps(value))) == redacted


def test_duplicate_json_keys_are_all_seen(run: RunRedactor) -> None:
    """A secret in the first of two equal keys is not hidden by the second."""
    text = '{"password": "hunter2secret", "password": "hunter3secret", "a": "password=hunter4secret", "a": ""}'
    redacted = run.json_text(text)
    assert "hunter" not in redacted
    assert redacted.count('"password"') == 2


def test_json_text_is_byte_exact_outside_of_secrets(run: RunRedactor) -> None:
    """White space, number spelling, escapes and key order stay, even inside the literal that holds the secret."""
    before = '{ "n" : 1.50E+2,\t"big": 123456789012345678901234567890, "é\\u00e9": "\\/ \\ud83d\\ude00 '
    after = ' \\u0041\\/",\r\n"s":[ ] , "args": "{\\"k\\" :  \\"v\\"}" }'
    redacted = run.json_text(before + "password=hunter2secret" + after)
    start, end = len(before), len(redacted) - len(after)
    assert redacted[:start] == before
    assert redacted[end:] == after
    assert redacted[start:end].startswith("password=rdx-k")
    assert end - start == len("password=rdx-k") + 16


def test_number_under_a_secret_name_gets_one_token_in_text_and_value(run: RunRedactor) -> None:
    """A numeric secret becomes one string token, the same in JSON text, in nested text and as a value."""
    direct: Any = run.value({"secret": 12345678})
    text = run.json_text('{"secret": 12345678}')
    nested = json.loads(run.json_text(json.dumps({"a": '{"secret": 12345678}'})))
    assert json.loads(text) == direct == json.loads(nested["a"])


def test_nesting_beyond_the_limit_is_scanned_as_text(run: RunRedactor) -> None:
    """JSON in JSON in JSON … is parsed to depth 6; deeper, the fixed formats are still found."""
    document = json.dumps({"key": "ghp_" + "a1" * 20})
    for _ in range(9):
        document = json.dumps({"a": document})
    assert "ghp_" not in run.json_text(document)
    assert run.errors == 0


def test_headers_are_redacted_by_name_and_by_content(run: RunRedactor) -> None:
    """Secret headers lose their whole value, others only the secrets found in them."""
    pairs: list[tuple[str | bytes, str | bytes]] = [
        ("Authorization", "Custom abc"),
        (b"X-Api-Key", b"abc"),
        ("Cookie", "a=1; b=2"),
        ("content-type", "application/json"),
        ("x-trace", "password=hunter2secret"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
    ]
    counts: dict[str, int] = {}
    redacted = run.headers(pairs, counts)
    assert [name for name, _ in redacted] == [
        "Authorization",
        "X-Api-Key",
        "Cookie",
        "content-type",
        "x-trace",
        "Set-Cookie",
        "Set-Cookie",
    ]
    assert redacted[3] == ["content-type", "application/json"]
    assert redacted[4][1].startswith("password=rdx-k")
    assert all(value.startswith("rdx-k") for name, value in redacted if name not in ("content-type", "x-trace"))
    assert counts == {"secret_key_name": 5, "secret_assignment": 1}
    response: Any = run.value({"headers": [["Set-Cookie", "sid=abc"], ["date", "today"]]})
    assert response["headers"][0][1].startswith("rdx-k")


def test_command_line_options_hide_their_values(run: RunRedactor) -> None:
    """The item after --api-key is secret, for example in process.command_args."""
    redacted = run.value({"args": ["tool", "--api-key", "abc", "--verbose", "x"]})["args"]
    assert redacted[2].startswith("rdx-k")
    assert [*redacted[:2], *redacted[3:]] == ["tool", "--api-key", "--verbose", "x"]


def test_counts_do_not_depend_on_what_was_seen_before(run: RunRedactor) -> None:
    """A text's secrets are counted every time, remembered or not."""
    text = "password=hunter2secret and " + SECRETS[2].text
    first: dict[str, int] = {}
    second: dict[str, int] = {"aws_access_key_id": 1}
    run.text(text, first)
    run.text(text, second)
    assert first == {"secret_assignment": 1, "aws_access_key_id": 1}
    assert second == {"secret_assignment": 1, "aws_access_key_id": 2}


# ── Failing closed ──────────────────────────────────────────────────────────────────────────────────
def test_r3_rule_that_raises_drops_only_its_value(caplog: pytest.LogCaptureFixture) -> None:
    """A text in which a rule fails becomes one token; its neighbours are redacted as usual."""
    run = Redactor(b"k" * 32, "k", (*RULES, _BROKEN)).run()
    value = {"bad": "boom my secret text", "good": "fine", "known": "password=hunter2secret"}
    redacted: Any = run.value(value)
    assert redacted["bad"].startswith("rdx-k")
    assert len(redacted["bad"]) == 21
    assert redacted["good"] == "fine"
    assert redacted["known"].startswith("password=rdx-k")
    assert run.errors == 1
    assert "secret text" not in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_r3_json_text_that_fails_stays_json(monkeypatch: pytest.MonkeyPatch, run: RunRedactor) -> None:
    """A JSON text that cannot be redacted becomes a JSON string."""
    monkeypatch.setattr("spanreplay.redact.engine.flatten", _explode)
    assert json.loads(run.json_text('{"password": "b"}')).startswith("rdx-k")
    assert run.text('{"password": "b"}').startswith("rdx-k")
    assert run.headers([("authorization", "b")]) == [["authorization", "rdx-k" + "b" * 16]]
    assert run.errors == 3


def test_r3_value_of_an_unknown_type_is_dropped(run: RunRedactor) -> None:
    """A value that is not JSON is never passed through unseen."""
    redacted: Any = run.value({"a": object()})
    assert isinstance(redacted, str)
    assert redacted.startswith("rdx-k")
    assert run.errors == 1


def test_r3_value_too_deep_to_walk_is_dropped(run: RunRedactor) -> None:
    """A value nested deeper than Python's stack becomes a token instead of an error."""
    deep: list[Any] = ["password=hunter2secret"]
    for _ in range(100_000):
        deep = [deep]
    redacted: Any = run.value(deep)
    assert isinstance(redacted, str)
    for _ in range(100_000):  # taken apart by hand: the interpreter would recurse
        deep = deep.pop()
    text = run.text("[" * 100_000 + '"password=hunter2secret"' + "]" * 100_000)
    assert "hunter2secret" not in text


def test_lone_surrogates_survive(run: RunRedactor) -> None:
    """Text that is not valid Unicode is redacted around its flaws."""
    redacted = run.text("\ud800 password=hunter2secret \udfff")
    assert redacted.startswith("\ud800 password=rdx-k")
    assert redacted.endswith(" \udfff")


def test_one_redactor_serves_many_threads(make_run: MakeRun) -> None:
    """Threads that share a run get the same results as a single thread."""
    documents = [
        {"n": n, "text": f"password=hunter{n % 7}secret and ghp_{n:036d}", "token": f"{n:020x}"} for n in range(200)
    ]
    expected = [make_run().value(document) for document in documents]
    run = make_run()
    results: list[list[Any]] = [[] for _ in range(4)]

    def work(target: list[Any]) -> None:
        target.extend(run.value(document) for document in documents)

    threads = [threading.Thread(target=work, args=(target,)) for target in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert all(result == expected for result in results)
    assert run.errors == 0


def test_import_loads_no_opentelemetry_sdk() -> None:
    """Importing the package loads neither the SDK nor anything heavy."""
    code = "import sys; before = set(sys.modules); import spanreplay.redact; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    loaded = ast.literal_eval(done.stdout)
    roots = {name.partition(".")[0] for name in loaded}
    assert roots.isdisjoint({"google", "grpc", "hypothesis", "wrapt"})
    assert "opentelemetry.sdk" not in loaded
