"""An agent limits how long it waits for a call; the limit changes, and with it how the call would end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from support.replaying import Workplace

AGENT: Final = """
import asyncio
from spanreplay import boundary

LIMIT = {limit}

@boundary("tool", effect="read")
async def search(what):
    await asyncio.sleep(0.6)
    return "found " + what

async def main():
    try:
        async with asyncio.timeout(LIMIT):
            print(await search("a shop"))
    except TimeoutError:
        print("nothing")
    print(await asyncio.wait_for(search("another shop"), 30))

asyncio.run(main())
"""


@pytest.fixture(params=["calls", "full"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Workplace:
    """A folder whose recordings have this level."""
    return Workplace(tmp_path, {"SPANREPLAY_LEVEL": request.param})


def _change(place: Workplace, limit: float, note: str = "") -> None:
    place.write("agent.py", AGENT.format(limit=limit) + note)


def _record(place: Workplace, limit: float) -> None:
    """Record the agent; a change elsewhere in its code changes nothing."""
    _change(place, limit)
    place.record("agent.py")
    _change(place, limit, "print  # a change elsewhere")
    assert place.replay("agent.py").verdict["verdict"] == "identical"


def test_p12_n2_a_shorter_limit_than_the_call_took_is_a_difference(place: Workplace) -> None:
    """At `calls` the agent runs into it. A longer one changes nothing."""
    _record(place, 20)
    _change(place, 60)
    assert place.replay("agent.py").verdict["verdict"] == "identical"
    _change(place, 0.2)
    replayed = place.replay("agent.py")
    assert replayed.verdict["verdict"] == "diverged"
    assert ("a timer of 0.2 s goes off before its end now" in replayed.stderr) != ("nothing" in replayed.stdout)


def test_p12_n2_a_pause_beside_a_call_is_no_limit_of_it(place: Workplace) -> None:
    """A heartbeat that the changed code has beside its calls ends none of them."""
    _change(place, 20)
    place.record("agent.py")
    beating = "async def beat():\n    while True:\n        await asyncio.sleep(0.1)\n\nasync def main():\n"
    started = beating + "    beats = asyncio.create_task(beat())\n"
    place.write("agent.py", AGENT.format(limit=20).replace("async def main():\n", started))
    assert place.replay("agent.py").verdict["verdict"] == "identical"


def test_p12_n2_a_longer_limit_than_one_that_was_run_into_is_a_difference(place: Workplace) -> None:
    """Nobody knows what the call would have given: it was cancelled."""
    _record(place, 0.2)
    _change(place, 5)
    replayed = place.replay("agent.py", options=("--stub", "tool"))
    assert replayed.verdict["verdict"] == "diverged"
    assert re.search(r"it was cancelled after 0\.\d+ s when recorded, and would be after 5 s now", replayed.stderr)
