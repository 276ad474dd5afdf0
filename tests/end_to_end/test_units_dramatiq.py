"""Dramatiq workers: each message is a separate run, and replays by itself with the provider and Redis stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.suites import replay_suite
from support.units import trace_of
from support.workers import DRAMATIQ_APP, input_of, output_of, record_until, units_of

WORKER: Final = ("-m", "dramatiq", "shop", "--threads", "2", "--processes")
PUBLISH: Final = """
import sys
import shop
for number in range(int(sys.argv[1])):
    user = f"user-{number % 4}"
    headers = {"baggage": f"user.id={user},session.id=s-{number}"}
    headers["traceparent"] = f"00-{number + 1:032x}-00f067aa0ba902b7-01"
    shop.answer.send_with_options(args=(number, user), **headers)
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a program that publishes messages."""
    workplace = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    workplace.write("publish.py", PUBLISH)
    return workplace


def record(place: Workplace, source: str, count: int, units: int, processes: str) -> str:
    """Publish that many messages, and record a worker until that many units are whole; return its application."""
    with a_redis(place.path) as port:
        app = source.replace("PORT", str(port))
        place.write("shop.py", app)
        publish = [str(place.python), "publish.py", str(count)]
        subprocess.run(publish, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
        record_until(place, units, *WORKER, processes)
    return app


def test_p3_p4_each_dramatiq_message_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """With messages in two processes, one retried, one failed, each is a whole run, and identical without Redis."""
    record(place, DRAMATIQ_APP, 6, units=8 + 5, processes="2")
    provider.stop()
    answers, notes = units_of(place, "answer"), units_of(place, "note")
    assert (len(answers), len(notes)) == (8, 5)
    for unit in [*answers, *notes]:
        assert unit.completeness().is_complete, unit.completeness().reasons
        number = input_of(unit)["args"][0]
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
    for unit in answers:
        number, user = input_of(unit)["args"]
        assert (unit.root.user_id, unit.root.session_id) == (user, f"s-{number}")
        assert trace_of(unit) == number + 1
    failed = [each for each in answers if input_of(each)["args"][0] == 4]
    assert [output_of(each)["retried"] for each in failed] == [True, False]
    assert {output_of(each)["raised"]["type"] for each in failed} == {"builtins.KeyError"}
    tried = [output_of(each) for each in answers if input_of(each)["args"][0] == 3]
    assert (tried[0]["raised"]["type"], tried[0]["delay"], "result" in tried[1]) == ("dramatiq.errors.Retry", 1, True)
    for unit in [failed[0], notes[0]]:
        replayed = place.replay(*WORKER, "2", source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_dramatiq_messages_replay_in_one_start_and_what_changed_is_named(
    provider: Provider, place: Workplace
) -> None:
    """A changed result has one cause; a missing actor ends its replay with a line that names it."""
    source = DRAMATIQ_APP.replace("broker.add_middleware(AsyncIO())", "").replace("async def note", "def note")
    source = source.replace("await think", "ask")
    app = record(place, source, 1, units=2, processes="1")
    provider.stop()
    (answered,), (noted,) = units_of(place, "answer"), units_of(place, "note")
    place.write("shop.py", app.replace('{"answer": first', '{"answer": first.upper()'))
    suite = replay_suite(place, *WORKER, "1", options=["--process", answered.run_id])
    assert suite.words() == {answered.run_id: "diverged", noted.run_id: "identical"}, suite.stderr
    assert suite.report["starts"] == 1, suite.stderr
    assert suite.causes(answered.run_id) == [("changed_call", "compute:output")]
    place.write("shop.py", app.replace("def note(", "def renamed(").replace("note.send", "renamed.send"))
    gone = place.replay(*WORKER, "1", source=noted.run_id)
    assert gone.status == 1
    assert "the actor 'note' is not declared in this application" in gone.stderr
