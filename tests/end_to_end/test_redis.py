"""An agent's commands to Redis replay without a server: sync and async clients, pipelines, subscriptions, locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.provider import Provider
from support.redis_server import a_redis
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import COMMAND, await_true, path_of, prepare, serve


class Server:
    """A running Redis that can be stopped."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._stack = ExitStack()
        self.port = self._stack.enter_context(a_redis(folder, *options))
        self.url = f"redis://127.0.0.1:{self.port}/3"

    def stop(self) -> None:
        """Stop it; what it kept is gone."""
        self._stack.close()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An empty Redis."""
    made = Server(tmp_path_factory.mktemp("redis"))
    yield made
    made.stop()


COMMANDS: Final = """
import os, redis
r = redis.Redis.from_url(os.environ["REDIS_URL"])
print(r.set("a", 1), r.get("a"), r.get("missing"), r.incr("n"), r.incrbyfloat("f", 1.5))
print(r.hset("h", mapping={"x": 1, "y": b"\\x00\\xff"}), r.hgetall("h"))
print(r.sadd("s", 1, 2), r.smembers("s") == {b"1", b"2"})
print(r.zadd("z", {"a": 1, "b": 2.5}), r.zrange("z", 0, -1, withscores=True), r.zscore("z", "b"))
print(r.rpush("l", "a", "b"), r.blpop("l", timeout=1), r.brpop("nothing", timeout=0.1), r.lrange("l", 0, -1))
print(type(r.info()), r.lastsave(), r.time(), list(r.scan_iter("[az]")))
print(r.xadd("st", {"a": "b"}, id="1-1"), r.xrange("st"))
try:
    r.lpush("a", "x")
except redis.exceptions.ResponseError as exc:
    print(type(exc), exc.args)
script = r.register_script("return {KEYS[1], ARGV[1], 3, false}")
print(script(keys=["k"], args=["v"]), script(keys=["k"], args=["v"]))
with r.lock("lock", timeout=5) as lock:
    print(lock.owned(), r.get("lock"))
print(redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True).get("a"))
with redis.Redis.from_url(os.environ["REDIS_URL"], single_connection_client=True) as kept:
    print(kept.ping(), kept.client_id() > 0)
"""
PIPELINES: Final = """
import os, redis
r = redis.Redis.from_url(os.environ["REDIS_URL"])
with r.pipeline() as pipe:
    print(pipe.set("p", 1).incr("p").get("p").hgetall("h").execute(), pipe.execute())
with r.pipeline(transaction=False) as pipe:
    pipe.set("p", 1).lpush("p", 1).get("p")
    print([(type(each), str(each)) for each in pipe.execute(raise_on_error=False)])
    try:
        pipe.lpush("p", 1).execute()
    except redis.ResponseError as exc:
        print(type(exc), exc)

def add(pipe):
    now = int(pipe.get("p"))
    if now == 1:
        r.set("p", 5)
    pipe.multi()
    pipe.set("p", now + 1)

print(r.transaction(add, "p"), r.get("p"))
"""
SUBSCRIPTIONS: Final = """
import os, redis
r = redis.Redis.from_url(os.environ["REDIS_URL"])
heard = []
with r.pubsub() as sub:
    sub.subscribe("news", **{"own": heard.append})
    print(r.publish("own", "1"), r.publish("news", "2"))
    for message in sub.listen():
        print(message)
        if message["data"] == b"2":
            break
    print(heard, sub.get_message(timeout=0.01), sub.subscribed)
"""
ASYNC: Final = """
import asyncio, os, redis.asyncio as redis

async def main():
    async with redis.Redis.from_url(os.environ["REDIS_URL"]) as r:
        print(await r.set("a", "1"), await asyncio.gather(*(r.incr("a") for _ in range(5))))
        async with r.pipeline() as pipe:
            print(await pipe.set("x", 1).get("x").execute())
            await pipe.watch("x")
            now = int(await pipe.get("x"))
            pipe.multi()
            print(await pipe.set("x", now + 1).execute())
        async with r.lock("lock", timeout=5), r.pubsub() as sub:
            await sub.subscribe("news")
            print(await r.publish("news", "hello"))
            async for message in sub.listen():
                print(message)
                if message["type"] == "message":
                    break
        try:
            await r.lpush("a", 1)
        except redis.ResponseError as exc:
            print(type(exc), exc)
        print([key async for key in r.scan_iter("a*")], await r.blpop("nothing", timeout=0.1))

asyncio.run(main())
"""
LISTENING: Final = """
import os, redis, threading
r = redis.Redis.from_url(os.environ["REDIS_URL"])
for number in range(3):
    heard, done = [], threading.Event()
    def hear(message):
        heard.append(message["data"])
        done.set()
    sub = r.pubsub(ignore_subscribe_messages=True)
    sub.subscribe(news=hear)
    thread = sub.run_in_thread(sleep_time=0.001)
    r.publish("news", str(number))
    done.wait()
    thread.stop()
    thread.join()
    print(heard, sub.subscribed)
"""
ERRORS: Final = """
import os, redis
from redis.backoff import NoBackoff
from redis.retry import Retry

def show(ask):
    try:
        print(ask())
    except Exception as exc:
        print(type(exc).__module__, type(exc).__qualname__, exc.args, repr(exc.__cause__))

r = redis.Redis.from_url(os.environ["REDIS_URL"])
dead = redis.Redis(unix_socket_path="nobody", retry=Retry(NoBackoff(), 0))
for client in (r, dead):
    show(lambda: client.set("a", object()))
    show(lambda: client.execute_command("NOSUCH", 1))
    show(lambda: client.evalsha("f" * 40, 0))
    show(lambda: client.pipeline().get("a").execute())
with r.pipeline() as pipe:
    pipe.watch("k")
    r.set("k", 2)
    pipe.multi()
    show(pipe.get("k").execute)
other = redis.Redis.from_url(os.environ["REDIS_URL"])
show(other.ping)
print(r.client_kill_filter(_type="normal", skipme=True))
show(other.ping)  # reconnects
"""


@pytest.mark.parametrize(
    "source",
    [COMMANDS, PIPELINES, SUBSCRIPTIONS, ASYNC, LISTENING, ERRORS],
    ids=["commands", "pipelines", "subscriptions", "async", "listening thread", "errors"],
)
def test_s50_redis_replays_without_its_server(source: str, workplace: Workplace, server: Server) -> None:
    """Results have their types and errors theirs; connecting, pools and retries are not part of the run."""
    agent = workplace.write("agent.py", source)
    recorded = workplace.record(agent, REDIS_URL=server.url)
    recording = workplace.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {call.effect for call in recording.calls if call.name == "redis.SET"} <= {"irreversible"}
    server.stop()
    assert_same(workplace.replay(agent, REDIS_URL=server.url), recorded.stdout)


CLUSTER: Final = """
import asyncio, os
import redis.asyncio.cluster, redis.cluster

def ask(client):
    with client.pipeline() as pipe:
        return client.set("a", 1), client.mget_nonatomic("a", "b"), pipe.set("x", 1).get("x").execute()

async def main():
    async with redis.asyncio.cluster.RedisCluster(host="127.0.0.1", port=int(os.environ["PORT"])) as client:
        print(await client.incr("a"), await client.pipeline().get("x").get("a").execute())

print(ask(redis.cluster.RedisCluster(host="127.0.0.1", port=int(os.environ["PORT"]))))
asyncio.run(main())
"""


def test_s50_a_redis_cluster_replays_without_its_nodes(
    workplace: Workplace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The recorded nodes are asked for nothing."""
    import redis

    server = Server(tmp_path_factory.mktemp("redis"), "--cluster-enabled", "yes")
    with redis.Redis(port=server.port) as one:
        one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await_true(lambda: bool(one.execute_command("CLUSTER INFO")["cluster_state"] == "ok"))
    agent = workplace.write("agent.py", CLUSTER)
    recorded = workplace.record(agent, PORT=str(server.port))
    server.stop()
    assert workplace.recording().completeness().reasons == ()
    assert_same(workplace.replay(agent, PORT=str(server.port)), recorded.stdout)


PASSWORDS: Final = """
import os, redis
r = redis.Redis.from_url(os.environ["REDIS_URL"])
print(r.set("a", 1))
for command in (("AUTH", "0ther-Passw0rd", 1), ("AUTH", "nobody", "0ther-Passw0rd"), ("AUTH", "")):
    for ask in (r.execute_command, lambda *args: r.pipeline(transaction=False).execute_command(*args).execute()):
        try:
            ask(*command)
        except redis.RedisError as exc:
            print(type(exc))
r.config_set("masterauth", "Passw0rd-0f-another")
r.acl_setuser("ann", enabled=True, passwords=["+Passw0rd-0f-ann"])
"""


def test_r1_passwords_of_redis_are_not_recorded(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither those of the URL, nor those in commands and in the errors that repeat a command."""
    server = Server(tmp_path_factory.mktemp("redis"), "--requirepass", "Passw0rd-0f-url")
    url = server.url.replace("//", "//:Passw0rd-0f-url@")
    agent = workplace.write("agent.py", PASSWORDS)
    recorded = workplace.record(agent, REDIS_URL=url)
    server.stop()
    kept = b"".join(path.read_bytes() for path in (workplace.path / ".spanreplay").rglob("*") if path.is_file())
    assert b"redis.AUTH" in kept
    assert b"assw0rd" not in kept
    assert_same(workplace.replay(agent, REDIS_URL=url), recorded.stdout)


MONITOR: Final = """
import os, redis
r = redis.Redis.from_url(os.environ["REDIS_URL"])
r.ping()
with r.monitor() as monitor:
    r.ping()
    print(monitor.next_command()["command"])
"""


def test_s50_a_monitor_of_redis_is_incomplete(workplace: Workplace, server: Server) -> None:
    """What is read from a connection itself is not recorded: the run and its replay name it."""
    agent = workplace.write("agent.py", MONITOR)
    workplace.record(agent, REDIS_URL=server.url)
    assert "a connection of a pool of Redis was used" in workplace.recording().completeness().reasons[0]
    replayed = workplace.replay(agent, REDIS_URL=server.url)
    assert replayed.verdict["verdict"] == "incomplete", replayed.stderr


CHANGES: Final = {
    "another reading of the result": ("withscores=True", "withscores=True, score_cast_func=int", "redis.ZRANGE"),
    "another command": ('r.set("b", 1)', 'r.append("b", 1)', "redis.APPEND"),
    "another value": ('r.set("b", 1)', 'r.set("b", 2)', "redis.SET"),
    "another database": ("db=3", "db=4", "redis.SET"),
    "another command of a pipeline": ('pipe.incr("n")', 'pipe.decr("n")', "redis.pipeline"),
}
CHANGED: Final = """
import os, redis
r = redis.Redis(port=int(os.environ["PORT"]), db=3)
r.set("b", 1)
r.zrange("z", 0, 1, withscores=True)
pipe = r.pipeline()
pipe.incr("n")
print(pipe.execute())
"""


@pytest.mark.parametrize("name", CHANGES)
def test_n14_a_changed_command_is_named(name: str, workplace: Workplace, server: Server) -> None:
    """Its value, its database or its place in a pipeline: the replay has diverged, and sends nothing."""
    before, after, boundary = CHANGES[name]
    agent = workplace.write("agent.py", CHANGED)
    workplace.record(agent, PORT=str(server.port))
    server.stop()
    workplace.write("agent.py", CHANGED.replace(before, after))
    replayed = workplace.replay(agent, PORT=str(server.port))
    assert replayed.verdict["verdict"] == "diverged", replayed.stderr
    assert boundary in replayed.causes()[0][1]


FASTAPI: Final = """
import os
from fastapi import FastAPI
import redis.asyncio as redis

app = FastAPI()
r = redis.Redis.from_url(os.environ["REDIS_URL"], max_connections=1)

@app.get("/count/{name}")
async def count(name: str):
    async with r.pipeline() as pipe:
        return await pipe.incr(name).lpush("names", name).execute()
"""


def test_p4_a_request_that_uses_a_pool_replays_alone(provider: Provider, tmp_path: Path, server: Server) -> None:
    """The second request, whose connection the first one has opened, is complete and needs no connection."""
    place = prepare(tmp_path, provider, FASTAPI)
    with serve(place, command=COMMAND, at="--port {port}", REDIS_URL=server.url) as web:
        said: list[Any] = [httpx.get(f"{web.url}/count/{name}", timeout=TIMEOUT_S).json() for name in ("a", "a", "b")]
        web.await_ends()
        web.stop()
    assert said == [[1, 1], [2, 2], [1, 3]]
    units = web.units()
    assert [unit.completeness().reasons for unit in units] == [()] * 3
    server.stop()
    for unit in units:
        assert path_of(unit).startswith("/count/")
        words = (*COMMAND, "--port", str(web.port))
        replayed = place.replay(*words, source=unit.run_id, REDIS_URL=server.url)
        assert (replayed.status, replayed.verdict["verdict"]) == (0, "identical"), replayed.stderr
