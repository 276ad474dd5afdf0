"""Consumer loops by hand: each message is a separate run, and replays with the provider and the broker stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

import spanreplay
from spanreplay.model.errors import ConfigError
from support.groq_asking import GROQ_ASKING
from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace
from support.workers import input_of, output_of, units_of

HEAD: Final = (
    """
import asyncio, json, time

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
import spanreplay
"""
    + GROQ_ASKING
    + """
WARM = ask("warm up")
whose = {"user": lambda order: order["user"], "session": lambda order: f"s-{order['number']}"}
"""
)
PROGRAMS: Final = {
    "a queue": """
def orders():
    queue = Redis(port=PORT)
    while (found := queue.lpop("orders")) is not None:
        yield json.loads(found)
        queue.incr("done")

def handle(order):
    answer = ask(f"question-{order['number']} of {order['user']}")
    return {"answer": answer, "seed": SEED, "warm": WARM, "at": time.time()}

spanreplay.run(name="order").each(orders(), handle, **whose)
print("all done")
""",
    "a stream": """
async def orders():
    stream = AsyncRedis(port=PORT)
    last = "0"
    while read := await stream.xread({"stream": last}, count=2):
        for last, fields in read[0][1]:
            yield json.loads(fields[b"order"])
            await stream.incr("done")
    await stream.aclose()

async def handle(order):
    number = order["number"]
    first, again = await asyncio.gather(
        ask_async(f"question-{number} of {order['user']}"), ask_async(f"question-{number} again"))
    return {"answer": first, "again": again, "seed": SEED, "warm": WARM, "at": time.time()}

asyncio.run(spanreplay.run(name="order").each(orders(), handle, **whose))
print("all done")
""",
}
PUBLISH: Final = """
import json
from redis import Redis
redis = Redis(port=PORT)
for number in range(4):
    order = json.dumps({"number": number, "user": f"user-{number}"})
    redis.rpush("orders", order)
    redis.xadd("stream", {"order": order})
"""


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory for a consumer."""
    return Workplace(tmp_path, {**provider.environ(), "SPANREPLAY_GUARD": "production"})


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(1)
def test_p3_p4_each_message_is_a_run_and_replays_alone(name: str, provider: Provider, place: Workplace) -> None:
    """Runs are whole with their own calls; polling is in none, and a replay neither polls nor takes another message."""
    with a_redis(place.path) as port:
        publish = place.write("publish.py", PUBLISH.replace("PORT", str(port)))
        subprocess.run([str(place.python), str(publish)], check=True, timeout=TIMEOUT_S)
        consumer = place.write("consumer.py", (HEAD + PROGRAMS[name]).replace("PORT", str(port)))
        assert place.record(consumer).stdout == "all done\n"
    provider.stop()
    units = units_of(place, "order")
    assert [input_of(unit)["message"]["number"] for unit in units] == [0, 1, 2, 3]
    for number, unit in enumerate(units):
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert (unit.root.user_id, unit.root.session_id) == (f"user-{number}", f"s-{number}")
        assert "answer" in str(output_of(unit)["result"])
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
    for unit in units[2:]:
        replayed = place.replay(consumer, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"
        assert replayed.stdout == ""
    place.write("consumer.py", consumer.read_text().replace('{"answer": ', '{"reply": '))
    assert place.replay(consumer, source=units[1].run_id).causes() == [("changed_call", "compute:output")]


def test_p3_a_message_that_fails_ends_its_loop_as_without_us(provider: Provider, place: Workplace) -> None:
    """The source is closed, the exception passes unchanged; the exception is compared; another loop is skipped."""
    program = """
def orders(name):
    try:
        yield {"number": 1, "name": name}
        yield {"number": 2, "name": name}
    finally:
        print("closed", name)

def handle(order):
    ask(f"question-{order['number']}")
    if order["number"] == 2:
        raise KeyError(order["name"])

for name in ("first", "second"):
    try:
        spanreplay.run(name=name).each(orders(name), handle)
    except KeyError as exc:
        print(exc.args)
"""
    agent = place.write("agent.py", HEAD + program)
    recorded = place.record(agent).stdout
    assert recorded == place.record(agent, SPANREPLAY_MODE="off").stdout
    assert recorded == "closed first\n('first',)\nclosed second\n('second',)\n"
    provider.stop()
    units = units_of(place)
    assert [(unit.root.app, unit.root.outcome) for unit in units] == [
        ("first", "ok"),
        ("first", "error"),
        ("second", "ok"),
        ("second", "error"),
    ]
    assert output_of(units[3]) == {"raised": {"type": "builtins.KeyError", "message": "'second'"}}
    for unit in units:
        assert unit.completeness().is_complete, unit.completeness().reasons
    for unit in (units[0], units[3]):
        replayed = place.replay(agent, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr


def test_p3_an_asynchronous_function_needs_an_asynchronous_source() -> None:
    """Otherwise it would never be awaited: the message says what to pass."""

    async def handle(message: object) -> None:
        """Never called."""

    with pytest.raises(ConfigError, match="is asynchronous and its source is not"):
        spanreplay.run().each([1], handle)
