"""procrastinate: each job is a separate run, and replays by itself with the provider and PostgreSQL stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support import postgres
from support.provider import Provider
from support.queue_programs import PROCRASTINATE_APP, publish
from support.replaying import Workplace
from support.suites import replay_suite
from support.workers import input_of, kill_under_way, output_of, record_until, units_of

WORKER: Final = ("-m", "procrastinate", "--app=shop.app", "worker", "--concurrency", "3")
PUBLISH: Final = """
import sys

import shop

with shop.app.open():
    shop.app.schema_manager.apply_schema()
    for number in range(int(sys.argv[1])):
        shop.answer.defer(number=number, user=f"user-{number}")
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Iterator[Workplace]:
    """A directory with an application, its PostgreSQL, and a program that publishes jobs."""
    with postgres.serve() as database:
        environ = {**provider.environ(), "SPANREPLAY_GUARD": "production", "DATABASE": database}
        workplace = Workplace(tmp_path, environ)
        workplace.write("publish.py", PUBLISH)
        workplace.write("shop.py", PROCRASTINATE_APP)
        yield workplace


def test_p3_p4_each_procrastinate_job_is_a_run_and_replays_alone(provider: Provider, place: Workplace) -> None:
    """With jobs on a loop and in threads, one tried twice: each is a whole run, and identical without the database."""
    publish(place, 3)
    record_until(place, 4 + 2, *WORKER)
    provider.stop()
    answers, notes = units_of(place, "answer"), units_of(place, "note")
    assert (len(answers), len(notes)) == (4, 2)
    for unit in [*answers, *notes]:
        assert unit.completeness().is_complete, unit.completeness().reasons
        number = input_of(unit)["task_kwargs"]["number"]
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
        assert not [call for call in unit.calls if call.name.startswith("psycopg")]
    failed = [unit for unit in answers if "raised" in output_of(unit)]
    assert [output_of(unit)["retried"] for unit in failed] == [True, False]
    (process,) = [each for each in place.recordings() if "unit" not in each.root.env]
    assert process.completeness().is_complete, process.completeness().reasons
    assert "psycopg.execute" not in {call.name for call in process.calls}
    for unit in (answers[0], *failed, notes[0]):
        replayed = place.replay(*WORKER, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p4_procrastinate_jobs_replay_in_one_start_and_what_changed_is_named(
    provider: Provider, place: Workplace
) -> None:
    """A changed result has one cause; a task that no longer exists ends its replay with a line that names it."""
    publish(place, 1)
    record_until(place, 2, *WORKER)
    provider.stop()
    (answered,), (noted,) = units_of(place, "answer"), units_of(place, "note")
    place.write("shop.py", PROCRASTINATE_APP.replace("return noted", "return noted.upper()"))
    suite = replay_suite(place, *WORKER, options=["--process", answered.run_id])
    assert suite.words() == {answered.run_id: "identical", noted.run_id: "diverged"}, suite.stderr
    assert suite.causes(noted.run_id) == [("changed_call", "compute:output")]
    place.write("shop.py", PROCRASTINATE_APP.replace('name="note"', 'name="renamed"'))
    gone = place.replay(*WORKER, source=noted.run_id)
    assert gone.status == 1
    assert "the task 'note' is not registered in this app" in gone.stderr


def test_p3_after_a_kill_only_the_procrastinate_job_under_way_is_incomplete(
    provider: Provider, place: Workplace
) -> None:
    """The worker is killed while one job waits: it says how it ended, and the others are whole and replay."""
    publish(place, 4)
    cut, ended = kill_under_way(place, 5 + 2, *WORKER)
    provider.stop()
    assert input_of(cut)["task_kwargs"]["number"] == 3
    assert place.replay(*WORKER, source=ended[0].run_id).status == 0
