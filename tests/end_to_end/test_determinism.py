"""The same recording gives the same outputs under any Python, hash seed and schedule."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

import pytest

from spanreplay.model.call import CallRecord
from spanreplay.recording.spool import SpoolCatalog
from support.pythons import NONE, other_pythons
from support.replaying import Replayed, Workplace

REPLAYS: Final = int(os.environ.get("SPANREPLAY_TEST_REPLAYS", "4"))
SEEDS: Final = int(os.environ.get("SPANREPLAY_TEST_SEEDS", "2"))

AGENT = """
import asyncio, concurrent.futures, json, random, sys, time
import spanreplay

delays = random.Random(int(sys.argv[1]))

@spanreplay.boundary("tool", name="ask")
async def ask(question):
    await asyncio.sleep(delays.random() * 0.02)
    return {"answer": random.SystemRandom().getrandbits(40), "to": question}

@spanreplay.boundary("tool", name="search")
def search(question):
    time.sleep(delays.random() * 0.01)
    return f"{random.SystemRandom().getrandbits(40):x}"

async def main():
    same = await asyncio.gather(*(ask("same question") for _ in range(10)))
    print(json.dumps(same))
    for number, one in enumerate(asyncio.as_completed([ask("race") for _ in range(10)])):
        print("race", number, (await one)["answer"])
    tasks = {asyncio.create_task(ask(f"set {n}")) for n in range(5)}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    print([task.result() for task in done], len(pending))
    for task in pending:
        task.cancel()
    print(await asyncio.gather(*pending, return_exceptions=True))
    print(await asyncio.gather(*(asyncio.to_thread(search, "same") for _ in range(5))))
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(search, "pool") for _ in range(10)]
        print([future.result() for future in concurrent.futures.as_completed(futures)])

asyncio.run(main())
print("drawn", random.random())
"""


def digest_of(workplace: Workplace, replayed: Replayed) -> str:
    """The hash of a replay's final output and of each call's result, lane by lane."""
    assert replayed.status == 0, replayed.stderr
    catalog = SpoolCatalog(workplace.path / ".spanreplay")
    try:
        calls = catalog.load(replayed.verdict["replay_run_id"]).calls
    finally:
        catalog.close()
    return digest(replayed.stdout, calls)


def digest(stdout: str, calls: tuple[CallRecord, ...]) -> str:
    """The hash of an output, which shows the order of completion, and of each call's result, in lane order."""
    outputs = sorted((call.lane, call.boundary, call.index, call.outcome, call.response) for call in calls)
    return hashlib.sha256(json.dumps([stdout, outputs]).encode()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("is_reversed", [False, True], ids=["recorded_here", "recorded_there"])
def test_s20_replays_on_two_pythons_give_one_hash(tmp_path: Path, is_reversed: bool) -> None:
    """Replays under every Python here and many hash seeds give the output and outcomes recorded under one Python."""
    if not other_pythons():
        pytest.skip(NONE)
    places = [Workplace(tmp_path), *(Workplace(tmp_path, python=python) for python in other_pythons().values())]
    if is_reversed:
        places.reverse()
    agent = places[0].write("agent.py", AGENT)
    recorded = places[0].record(agent, "1", PYTHONHASHSEED="1")
    recording = places[0].recording()
    wanted = digest(recorded.stdout, recording.calls)
    for number in range(max(REPLAYS, len(places))):
        place = places[number % len(places)]
        replayed = place.replay(agent, "1", source=recording.run_id, PYTHONHASHSEED=str(number + 2))
        assert digest_of(place, replayed) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_s15_parallel_calls_keep_their_own_answers_in_any_process(tmp_path: Path, seed: int) -> None:
    """Ten identical concurrent calls, recorded with delays, get their own answers under another hash seed."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", AGENT)
    recorded = workplace.record(agent, str(seed), PYTHONHASHSEED=str(seed))
    replayed = workplace.replay(agent, str(seed), PYTHONHASHSEED=str(seed + 1000))
    assert replayed.status == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert replayed.verdict["counts"]["exact"] == len(workplace.recording().calls)
