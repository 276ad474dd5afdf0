"""huey consumers: each task execution is a separate run, and replays with the provider and Redis stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.workers import HUEY_APP, input_of, output_of, record_until, units_of

WORKER: Final = ("-m", "huey.bin.huey_consumer", "shop.huey", "--workers", "2", "--worker-type")
PUBLISH: Final = """
import shop
for number in range(4):
    shop.answer(number, f"user-{number}")
"""


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_p3_p4_each_huey_task_is_a_run_and_replays_alone(kind: str, provider: Provider, tmp_path: Path) -> None:
    """With tasks in threads or processes, one retried, each is a whole run, and identical without Redis."""
    place = Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})
    with a_redis(place.path) as port:
        app = HUEY_APP.replace("PORT", str(port))
        place.write("shop.py", app)
        publish = [str(place.python), "-c", PUBLISH]
        subprocess.run(publish, cwd=place.path, env=place.environ, check=True, timeout=TIMEOUT_S)
        record_until(place, 5 + 3, *WORKER, kind)
    provider.stop()
    answers, notes = units_of(place, "shop.answer"), units_of(place, "shop.note")
    assert (len(answers), len(notes)) == (5, 3)
    for unit in answers:
        assert unit.completeness().is_complete, unit.completeness().reasons
        number, user = input_of(unit)["args"]
        assert user == f"user-{number}"
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
    failed = [unit for unit in answers if input_of(unit)["args"][0] == 3]
    raised = {"type": "builtins.KeyError", "message": "3"}
    assert [output_of(unit) for unit in failed] == [{"raised": raised, "retried": each} for each in (True, False)]
    for unit in [failed[0], answers[0]] if kind == "thread" else [answers[0]]:
        replayed = place.replay(*WORKER, kind, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"
    if kind == "thread":
        place.write("shop.py", app.replace("def note(", "def renamed(").replace("note(number", "renamed(number"))
        gone = place.replay(*WORKER, kind, source=notes[0].run_id)
        assert gone.status == 1
        assert "the task 'shop.note' is not registered in this application" in gone.stderr
