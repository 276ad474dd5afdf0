"""Agents whose event loop `nest_asyncio` has made reentrant: concurrent work completes in the recorded order."""

from __future__ import annotations

import pytest

from support.replaying import Workplace

TOOLS = """
import asyncio, random, sys
import nest_asyncio
from spanreplay import boundary

order = []

@boundary("tool", effect="read")
async def ask(number):
    await asyncio.sleep(random.SystemRandom().random() / 50)
    return number * 10

async def work(number):
    found = await ask(number)
    order.append(number)
    if number % 3 == 0:
        found += asyncio.get_event_loop().run_until_complete(nested(number))
    return found

async def nested(number):
    found = await asyncio.gather(*(ask(number + each) for each in (100, 200)))
    order.append(number + 100)
    return sum(found)

async def main():
    print(await asyncio.gather(*(work(number) for number in range(8))), order)
"""
WAYS = {
    "asyncio.run": "nest_asyncio.apply()\nasyncio.run(main())\n",
    "twice": "nest_asyncio.apply()\nasyncio.run(main())\norder.clear()\nasyncio.run(main())\n",
    "a loop of its own": "loop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\nnest_asyncio.apply(loop)\n"
    "loop.run_until_complete(main())\nprint('time' in vars(loop))\nloop.close()\n",
    "applied while it runs": "async def start():\n    nest_asyncio.apply()\n    await main()\n\nasyncio.run(start())\n",
    "another loop within": "nest_asyncio.apply()\n\nasync def start():\n    loop = asyncio.new_event_loop()\n"
    "    nest_asyncio.apply(loop)\n    loop.run_until_complete(main())\n    loop.close()\n    order.clear()\n"
    "    await main()\n\nasyncio.run(start())\n",
    "another loop within one that ran before": "async def start():\n    loop = asyncio.new_event_loop()\n"
    "    nest_asyncio.apply(loop)\n    loop.run_until_complete(main())\n    loop.close()\n    order.clear()\n"
    "    await main()\n\nasyncio.run(start())\n",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["calls", "full"])
@pytest.mark.sampled(4)
def test_n2_calls_of_a_nested_loop_end_in_the_recorded_order(workplace: Workplace, way: str, level: str) -> None:
    """With ten concurrent calls and loops run inside a callback, each replay prints the recorded output.

    At level `calls` the order of calls is recorded, and not when a task goes on that waits for several of them.
    """
    tools = TOOLS if level == "full" else TOOLS.replace("    order.append(number + 100)\n", "")
    script = workplace.write("agent.py", tools + WAYS[way])
    recorded = workplace.record(script, SPANREPLAY_LEVEL=level)
    assert recorded.returncode == 0, recorded.stderr
    for _ in range(2):
        replayed = workplace.replay(script)
        assert replayed.status == 0, replayed.stderr
        assert replayed.stdout == recorded.stdout
