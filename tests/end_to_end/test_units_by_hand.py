"""Units declared in a plain script: each is a separate run, many at a time, replayed by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import Recording
from support.groq_asking import GROQ_ASKING
from support.provider import Provider
from support.replaying import Workplace
from support.suites import replay_suite

HEAD: Final = f"""
import asyncio, time
from concurrent.futures import ThreadPoolExecutor

import spanreplay
{GROQ_ASKING}
ask("before all units")
"""
PROGRAMS: Final = {
    "threads": """
@spanreplay.run(name="job")
def job(number):
    answer = ask(f"question-{number}")
    return {"answer": answer, "again": ask(f"question-{number} again"), "seed": SEED, "at": time.time()}

with ThreadPoolExecutor(8) as pool:
    print(len(list(pool.map(job, range(12)))))
""",
    "tasks": """
@spanreplay.run(name="job")
async def job(number):
    first, second = await asyncio.gather(ask_async(f"question-{number}"), ask_async(f"question-{number} again"))
    return {"answer": first, "again": second, "seed": SEED, "at": time.time()}

async def main():
    print(len(await asyncio.gather(*map(job, range(12)))))

asyncio.run(main())
""",
}
BLOCK: Final = """
with spanreplay.run(name="block", input={"ticket": 7}, user="ann", session="s-7") as unit:
    with spanreplay.run(name="inner"):
        unit.result(ask("question-7"))
print(unit.run_id)
ask("behind it")
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory for a script."""
    return Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})


def split(workplace: Workplace) -> tuple[Recording, list[Recording]]:
    """The run of the process, and the runs of its units."""
    found = workplace.recordings()
    (process,) = [each for each in found if "unit" not in each.root.env]
    return process, [each for each in found if "unit" in each.root.env]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(1)
def test_p3_p4_decorated_calls_are_runs_and_replay_alone(name: str, provider: Provider, place: Workplace) -> None:
    """Twelve concurrent jobs give twelve whole runs, each with its own calls; one replays, the others are skipped."""
    agent = place.write("agent.py", HEAD + PROGRAMS[name])
    done = place.record(agent, SPANREPLAY_SUMMARY="always")
    assert done.stdout == "12\n"
    assert ", whose 12 units are runs of their own: recorded 2 calls, in .spanreplay" in done.stderr
    provider.stop()
    process, units = split(place)
    assert [call.name for call in process.calls] == ["openai.chat.completions", "start"]
    assert len(units) == 12
    for unit in units:
        assert unit.root.app == "job"
        assert unit.completeness().is_complete, unit.completeness().reasons
        asked = "llm:openai.chat.completions"
        assert [call.boundary for call in unit.calls] == ["compute:input", asked, asked, "compute:output"]
        number = json.loads(unit.calls[0].request)["arguments"]["input"]["args"][0]
        assert all(f"question-{number}" in call.request for call in unit.calls if call.kind == "llm")
    replayed = place.replay(agent, source=units[5].run_id)
    assert replayed.status == 0, replayed.stderr
    counts = replayed.verdict["counts"]
    assert (counts["served"], counts["start"]) == (len(units[5].calls), len(process.calls))
    place.write("agent.py", agent.read_text().replace('"again": ', '"more": '))
    changed = place.replay(agent, source=units[5].run_id)
    assert changed.causes() == [("changed_call", "compute:output")]


def test_p4_units_by_hand_are_replayed_in_a_process_each(provider: Provider, place: Workplace) -> None:
    """In a suite of units by hand, each replays identically in a separate process, and the reason is stated."""
    agent = place.write("agent.py", HEAD + PROGRAMS["threads"])
    place.record(agent)
    provider.stop()
    _, units = split(place)
    named = [word for unit in units[:2] for word in ("--run", unit.run_id)]
    suite = replay_suite(place, str(agent), options=named)
    assert suite.status == 0, suite.stderr
    assert suite.words() == {unit.run_id: "identical" for unit in units[:2]}
    assert "each unit is replayed in its own process: units by hand lie between other work" in suite.stderr


def test_p3_a_block_is_a_run(provider: Provider, place: Workplace) -> None:
    """User, session, input and result are kept; a nested unit is part of it; later calls belong to the process."""
    agent = place.write("agent.py", HEAD + BLOCK)
    stdout = place.record(agent).stdout
    provider.stop()
    process, (unit,) = split(place)
    assert stdout == f"{unit.run_id}\n"
    assert (unit.root.app, unit.root.user_id, unit.root.session_id) == ("block", "ann", "s-7")
    assert [call.boundary for call in unit.calls] == ["compute:input", "llm:openai.chat.completions", "compute:output"]
    assert [call.name for call in process.calls] == ["openai.chat.completions", "start", "openai.chat.completions"]
    replayed = place.replay(agent, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr
    whole = place.replay(agent, source=process.run_id)
    assert whole.status == 4, whole.stderr
    assert "each replays by itself" in whole.stderr


def test_p3_a_block_that_is_not_the_recorded_one_stops_the_replay(provider: Provider, place: Workplace) -> None:
    """Its body can't be skipped and must not run live: the replay says what to do."""
    again = "for ticket in (1, 2):\n    with spanreplay.run(input=ticket) as unit:\n        ask(f'question-{ticket}')\n"
    agent = place.write("agent.py", HEAD + again)
    place.record(agent)
    provider.stop()
    _, units = split(place)
    assert place.replay(agent, source=units[0].run_id).status == 0
    second = place.replay(agent, source=units[1].run_id)
    assert second.status == 1
    assert "make it a function with the decorator" in second.stderr


def test_p3_an_exception_of_a_unit_is_the_programs_own(provider: Provider, place: Workplace) -> None:
    """It passes unchanged, the run is whole with outcome error; without recording, a unit does nothing."""
    failing = HEAD + "@spanreplay.run(name='job')\ndef job(n):\n    ask('hello')\n    raise KeyError(n)\n"
    agent = place.write("agent.py", failing + "try:\n    job(3)\nexcept KeyError as exc:\n    print(exc.args)\n")
    assert place.record(agent, SPANREPLAY_MODE="off").stdout == place.record(agent).stdout == "(3,)\n"
    provider.stop()
    _, (unit,) = split(place)
    assert unit.root.outcome == "error"
    assert unit.completeness().is_complete
    replayed = place.replay(agent, source=unit.run_id)
    assert replayed.status == 0, replayed.stderr
