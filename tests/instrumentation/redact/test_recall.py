"""A replay learns the secrets of the recorded run from the tokens in the served responses."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from spanreplay.redact import Redactor

KEY = bytes(range(32))
_SECRETS = ("hunter2hunter2", "swordfish_blue", "pa$$w0rd!2026x", "qUiet.Otter-42", "5up3r+S3cret/==")
_secret = st.sampled_from(_SECRETS)
_word = st.sampled_from(("please", "log in with", "order 17:", "the weather", "sell 1,000", "(", ")", '"', ","))
_request = st.lists(st.one_of(_word, _secret), min_size=1, max_size=8).map(" ".join)
_response = st.one_of(
    _secret.map(lambda s: f'{{"user": "bot", "password": "{s}"}}'),
    _secret.map(lambda s: f'{{"note": "the api_key={s} works"}}'),
    _request,
)


@example(
    [("", "", "hunter2hunter2 please"), ("", "", '{"password": "hunter2hunter2"}'), ("", "hunter2hunter2 please", "")]
)
@given(st.lists(st.tuples(st.sampled_from(["ask", "serve"]), _request, _response), min_size=1, max_size=8))
def test_r9_redaction_in_a_replay_sees_what_it_saw_while_recording(calls: list[tuple[str, str, str]]) -> None:
    """For any order of requests and responses, each request has the same redacted form in the replay.

    It makes no difference whether the replay sees the true responses or only their tokens.
    """
    recording, keyed, other = (Redactor(KEY, "b").run() for _ in range(3))
    for _, request, response in calls:
        asked = recording.text(request)
        answered = recording.text(response)
        assert keyed.text(request) == asked
        assert keyed.text(response) == answered
        assert other.text(request) == asked
        if "rdx-" not in answered:
            other.text(answered)
        other.recall(answered)
        if "rdx-" in answered and any(secret in answered for secret in _SECRETS):
            return  # a text recorded partly in clear keeps its form, which a replay without the key can't know


def test_r9_words_that_are_no_secret_stay_as_they_are() -> None:
    """A token of a served response affects nothing but the value that it stands for."""
    run = Redactor(KEY, "b").run()
    served = Redactor(KEY, "b").run().text('{"password": "hunter2hunter2"}')
    run.recall(served)
    assert (
        run.text("an ordinary sentence, with hunter2hunter3 in it") == "an ordinary sentence, with hunter2hunter3 in it"
    )
    assert "hunter2hunter2" not in run.text("log in with hunter2hunter2!")


def test_r9_a_token_that_came_in_is_told_from_one_that_was_made_here() -> None:
    """A token is foreign only if a served response brought it and a text had it before redaction."""
    run = Redactor(KEY, "b").run()
    served = Redactor(KEY, "b").run().text('{"password": "hunter2hunter2"}')
    run.recall(served)
    assert not run.find_foreign_token(run.text("log in with hunter2hunter2"))
    assert not run.find_foreign_token(run.text("log in with nothing"))
    sent: dict[str, object] = run.value({"messages": [{"content": f"they said {served}"}]})
    assert run.find_foreign_token(json.dumps(sent)).startswith("rdx-b")
