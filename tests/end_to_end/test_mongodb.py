"""MongoDB's clients replay without a server: a command with its reply is a call, whatever connection carries it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from support.mongodb_server import MongoServer, a_mongodb, a_name_server
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace, assert_same
from support.units import ASKING, COMMAND, prepare, serve

VALUES: Final = """
import datetime, os, re, uuid
from bson import *
from bson.raw_bson import RawBSONDocument
from bson.codec_options import CodecOptions
from pymongo import *
from pymongo.errors import *
from pymongo.write_concern import WriteConcern

client = MongoClient(os.environ["MONGO"], tz_aware=True)
db = client.values
when = datetime.datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=datetime.timezone.utc)
print(db.c.insert_one({
    "int": 5, "int64": Int64(5), "big": 2**40, "decimal": Decimal128("1.50"), "bytes": b"\\x00\\xff",
    "uuid": Binary(uuid.UUID(int=7).bytes, 4), "binary": Binary(b"abc", 5), "regex": re.compile("a.*b", re.I),
    "timestamp": Timestamp(5, 6), "min": MinKey(), "max": MaxKey(), "code": Code("f()", {"x": Int64(1)}),
    "ref": DBRef("coll", ObjectId("0" * 24), "db", extra=1), "when": when, "old": when.replace(year=1931),
    "nan": float("nan"), "inf": float("-inf"), "zero": -0.0, "one": 1.0, "none": None, "true": True,
    "nested": {"a": [1, [2.0, {"b": "\\u00fc\\0\\U0001f600"}]]}, "empty": {}, "list": [], "own": {"$oid": "x", "y": 1},
}).inserted_id)
found = db.c.find_one()
print({name: (type(value).__name__, value) for name, value in found.items()})
print(db.get_collection("c", CodecOptions(document_class=RawBSONDocument)).find_one().raw.hex())
db.many.insert_many([{"_id": n, "n": n % 7} for n in range(250)])
print(sum(each["n"] for each in db.many.find({}, batch_size=100)), db.many.count_documents({"n": 3}))
print([each for each in db.many.find({"n": 1}, batch_size=9, cursor_type=CursorType.EXHAUST)][-1])
half_read = db.many.find(batch_size=2)
next(half_read), half_read.close()
steps = [InsertOne({"_id": -1}), UpdateOne({"_id": 1}, {"$set": {"x": 1}}), DeleteOne({"_id": -1})]
print(db.many.bulk_write(steps).bulk_api_result)
for failing in (lambda: db.many.insert_one({"_id": 7}), lambda: db.command("nonsense"),
                lambda: db.many.bulk_write([InsertOne({"_id": 7}), InsertOne({"_id": 8})], ordered=False)):
    try:
        failing()
    except OperationFailure as error:
        print(type(error).__name__, error.code, error.details)
db.many.with_options(write_concern=WriteConcern(w=0)).insert_one({"_id": "unacknowledged"})
print(db.many.find_one({"_id": "unacknowledged"}))
with client.start_session() as session:
    with session.start_transaction():
        db.t.insert_one({"_id": 1}, session=session)
    try:
        with session.start_transaction():
            db.t.insert_one({"_id": 2}, session=session)
            raise KeyError("undone")
    except KeyError:
        print(db.t.count_documents({}))
with timeout(60):
    print(db.t.find_one({"_id": 1}))
print(client.is_primary, ObjectId() != ObjectId())
client.close()
"""
FILES: Final = """
import os
import gridfs
from pymongo import MongoClient

with MongoClient(os.environ["MONGO"]) as client:
    files = gridfs.GridFS(client.files)
    number = files.put(b"x" * 600_000, filename="a.bin")
    found = files.get(number)
    print(number, len(found.read()), found.upload_date, files.list())
"""
CONCURRENT: Final = """
import asyncio, os
from pymongo import AsyncMongoClient
from pymongo.errors import BulkWriteError

async def one(db, n):
    made = await db.a.insert_one({"n": n})
    found = await db.a.find_one({"n": n})
    print(n, made.inserted_id, found)

async def main():
    async with AsyncMongoClient(os.environ["MONGO"]) as client:
        db = client.concurrent
        await asyncio.gather(*(one(db, n) for n in range(12)))
        print([each["n"] async for each in db.a.find({}, batch_size=5).sort("n")])
        try:
            await db.a.insert_many([{"_id": 1}, {"_id": 1}])
        except BulkWriteError as error:
            print(error.details["writeErrors"])
        async with client.start_session() as session, await session.start_transaction():
            await db.a.insert_one({"x": 1}, session=session)
        print(await db.a.count_documents({}))

asyncio.run(main())
"""
THREADS: Final = """
import os, threading
from pymongo import MongoClient

client = MongoClient(os.environ["MONGO"], maxPoolSize=2)

def count(name):
    for _ in range(5):
        client.threads.c.update_one({"_id": name}, {"$inc": {"n": 1}}, upsert=True)

threads = [threading.Thread(target=count, args=(n,)) for n in range(6)]
[each.start() for each in threads], [each.join() for each in threads]
print(sorted((each["_id"], each["n"]) for each in client.threads.c.find()))
"""
FAILING: Final = """
import asyncio, os
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

client = MongoClient(os.environ["MONGO"])
db = client.failing

def attempt(times, call, **how):
    how = {"failCommands": ["insert", "find"], **how}
    client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=how)
    try:
        print(call())
    except PyMongoError as error:
        print(type(error).__name__, error)
    client.admin.command("configureFailPoint", "failCommand", mode="off")

attempt(1, lambda: db.a.insert_one({"_id": 1}).inserted_id, closeConnection=True)
attempt(1, db.a.find_one, closeConnection=True)
attempt(2, lambda: db.a.insert_one({"_id": 2}).inserted_id, closeConnection=True)
attempt(1, lambda: db.a.insert_one({"_id": 3}).inserted_id, errorCode=10107, errorLabels=["RetryableWriteError"])
impatient = MongoClient(os.environ["MONGO"], socketTimeoutMS=50, retryReads=False)
attempt(1, impatient.failing.a.find_one, blockConnection=True, blockTimeMS=500)
attempt(1, MongoClient("mongodb://ann:opensesame@127.0.0.1:1", serverSelectionTimeoutMS=50).x.y.find_one)

async def tick():
    for n in range(4):
        await asyncio.sleep(0.05)
        print("tick", n)

async def ask(limit):
    unreachable = AsyncMongoClient("mongodb://127.0.0.1:1", serverSelectionTimeoutMS=120)
    try:
        await asyncio.wait_for(unreachable.x.y.find_one(), limit)
    except (PyMongoError, asyncio.TimeoutError) as error:
        print(limit, type(error).__name__)

async def main():
    await asyncio.gather(tick(), ask(60), ask(0.07))

asyncio.run(main())
"""


LISTENED: Final = """
import os
from pymongo import MongoClient, monitoring
from pymongo.errors import OperationFailure

class Commands(monitoring.CommandListener):
    def started(self, event):
        print("started", event.command_name, event.connection_id)

    def succeeded(self, event):
        print("succeeded", event.command_name)

    def failed(self, event):
        print("failed", event.failure)

class Pools(monitoring.ConnectionPoolListener):
    def __getattribute__(self, name):
        return lambda event: name.startswith("connection_") and print(name)

with MongoClient(os.environ["MONGO"], event_listeners=[Commands(), Pools()]) as client:
    client.listened.a.insert_one({})
    try:
        client.listened.command("nonsense")
    except OperationFailure as error:
        print(error.code)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MongoServer]:
    """A server of MongoDB's protocol."""
    folder = tmp_path / "server"
    folder.mkdir()
    with a_mongodb(folder) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path, server: MongoServer) -> Workplace:
    """A place in which agents find the server's address."""
    folder = tmp_path / "place"
    folder.mkdir()
    return Workplace(folder, {"MONGO": server.url})


def connect(server: MongoServer) -> Any:
    """Return a client of the test itself."""
    import pymongo

    return pymongo.MongoClient(server.url)


PROGRAMS: Final = {
    "values": VALUES, "files": FILES, "concurrent": CONCURRENT, "threads": THREADS, "failing": FAILING,
    "listened": LISTENED
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(5)
def test_s50_mongodb_replays_without_a_server(place: Workplace, server: MongoServer, name: str) -> None:
    """Documents, cursors, write results, ids, retries and errors come back exactly, and the server is not asked."""
    script = place.write("agent.py", PROGRAMS[name])
    recorded = place.record(script)
    server.stop()
    assert_same(place.replay(script), recorded.stdout)


CHANGING: Final = """
import os
from pymongo import MongoClient

with MongoClient(os.environ["MONGO"]) as client:
    client.shop.orders.insert_one({"item": "tea", "shares": 1000})
    print(client.shop.orders.count_documents({}))
"""


def test_n14_a_changed_document_diverges(place: Workplace, server: MongoServer) -> None:
    """The call is named, and no command reaches the server."""
    script = place.write("agent.py", CHANGING)
    place.record(script)
    place.write("agent.py", CHANGING.replace("1000", "190000"))
    replayed = place.replay(script)
    assert replayed.status == 3
    assert replayed.causes() == [("changed_call", "tool:pymongo.insert")]
    assert "shares" in replayed.stderr
    with connect(server) as client:
        assert [each["shares"] for each in client.shop.orders.find()] == [1000]


def test_n14_reads_and_writes_have_their_effects(place: Workplace) -> None:
    """What a command does to the data is stated; an aggregation writes if it has a stage that does."""
    lines = (
        "import os, pymongo", "db = pymongo.MongoClient(os.environ['MONGO']).effects", "db.a.insert_one({})",
        "list(db.a.aggregate([{'$match': {}}]))", "list(db.a.aggregate([{'$match': {}}, {'$out': 'b'}]))",
        "db.a.update_one({}, {'$set': {'x': 1}})", "db.a.drop()", "db.list_collection_names()",
    )  # fmt: skip
    place.record(place.write("agent.py", "\n".join(lines)))
    assert [(call.name, call.effect) for call in place.recording().calls] == [
        ("pymongo.insert", "irreversible"),
        ("pymongo.aggregate", "read"),
        ("pymongo.aggregate", "irreversible"),
        ("pymongo.update", "irreversible"),
        ("pymongo.drop", "irreversible"),
        ("pymongo.listCollections", "read"),
    ]


SHARED: Final = """
import asyncio, os
import spanreplay
from pymongo import AsyncMongoClient, MongoClient

client, other = MongoClient(os.environ["MONGO"]), AsyncMongoClient(os.environ["MONGO"])
print(client.shared.a.insert_one({}).inserted_id)

@spanreplay.boundary("tool", effect="read")
def look():
    return client.shared.a.count_documents({})

@spanreplay.boundary("tool", effect="read")
async def look_async():
    return await other.shared.a.count_documents({})

async def main():
    await other.shared.a.insert_one({})
    print(look(), await look_async(), await other.shared.a.count_documents({}))

asyncio.run(main())
print(client.shared.a.count_documents({}))
"""


def test_s2_a_live_tool_asks_the_server_with_a_shared_client(place: Workplace, server: MongoServer) -> None:
    """Commands of a tool that a plan makes live reach the server; those around it don't, with the same client."""
    script = place.write("agent.py", SHARED)
    place.record(script)
    with connect(server) as client:
        client.shared.a.insert_many([{}, {}, {}])
        replayed = place.replay(script, options=("--live", "tool:look*"))
        assert client.shared.a.count_documents({}) == 5
    assert replayed.stdout.splitlines()[1:] == ["5 5 2", "2"], replayed.stderr


COUNTING: Final = """
import asyncio, os
from pymongo import AsyncMongoClient, MongoClient

with MongoClient(os.environ["MONGO"]) as client:
    for n in range(3):
        client.forked.a.insert_one({"_id": n})
        print(n, client.forked.a.count_documents({}))

async def main():
    async with AsyncMongoClient(os.environ["MONGO"]) as client:
        for n in range(3, 6):
            await client.forked.a.insert_one({"_id": n})
            print(n, await client.forked.a.count_documents({}))

asyncio.run(main())
"""


@pytest.mark.parametrize("at", [3, 9])
def test_s50_a_run_goes_on_live_with_the_client_that_was_replayed(
    place: Workplace, server: MongoServer, at: int
) -> None:
    """The first live command finds a connection of the replay; it is sent through a new one."""
    script = place.write("agent.py", COUNTING)
    place.record(script)
    with connect(server) as client:
        client.forked.a.drop()
        command = ("fork", "latest", "--at", str(at), "--effects", "--", str(place.python), str(script))
        forked = place.run(*command)
        begun = (at - 1) // 2
        assert [each["_id"] for each in client.forked.a.find()] == list(range(begun, 6)), forked.stderr
    lines = [f"{n} {n + 1 if n < begun else n + 1 - begun}" for n in range(6)]
    assert forked.stdout.splitlines() == lines, forked.stderr


SECRET: Final = """
import os
from pymongo import MongoClient
from pymongo.errors import OperationFailure

address = os.environ["MONGO"].removeprefix("mongodb://")
client = MongoClient(f"mongodb://ann:opensesame@{address}", serverSelectionTimeoutMS=2000)
try:
    client.a.b.find_one()
except OperationFailure as error:
    print(error.code)
MongoClient(os.environ["MONGO"]).admin.command("createUser", "bob", pwd="swordfish", roles=[])
"""


def test_r1_passwords_of_users_are_nowhere_in_a_recording(place: Workplace) -> None:
    """Neither that of a connection, which is refused, nor that of a new user."""
    script = place.write("agent.py", SECRET)
    recorded = place.record(script)
    assert recorded.stdout == "18\n"
    assert [call.name for call in place.recording().calls] == ["pymongo.connect", "pymongo.createUser"]
    for file in place.path.rglob("*"):
        if file.is_file() and file != script:
            assert not any(word in file.read_bytes() for word in (b"opensesame", b"swordfish")), file
    assert_same(place.replay(script), recorded.stdout)


APP: Final = f"""{ASKING}
import os
from contextlib import asynccontextmanager
from fastapi import FastAPI
from pymongo import AsyncMongoClient, MongoClient

database, sync = AsyncMongoClient(os.environ["MONGO"]), MongoClient(os.environ["MONGO"])
app = FastAPI()

@app.get("/ask")
async def answer(question: str):
    made = await database.chat.asked.insert_one({{"question": question}})
    reply = await ask(question)
    return {{"reply": reply, "id": str(made.inserted_id), "count": await database.chat.asked.count_documents({{}})}}

@app.get("/sync")
def answer_in_a_thread(question: str):
    made = sync.chat.asked.insert_one({{"question": question}})
    return {{"id": str(made.inserted_id), "count": sync.chat.asked.count_documents({{}})}}
"""


@pytest.mark.parametrize("path", ["ask", "sync"])
@pytest.mark.parametrize("level", ["calls", "full"])
@pytest.mark.sampled(2)
def test_p4_a_request_on_a_kept_client_replays_alone(tmp_path: Path, provider: Provider, path: str, level: str) -> None:
    """Whichever request made the connection: each replays on a fresh process, without a server."""
    folder = tmp_path / "server"
    folder.mkdir()
    place = prepare(tmp_path, provider, APP)
    with a_mongodb(folder) as mongo, serve(place, MONGO=mongo.url, SPANREPLAY_LEVEL=level) as app:
        bodies = [httpx.get(f"{app.url}/{path}", params={"question": each}, timeout=TIMEOUT_S).json() for each in "abc"]
        assert [each["count"] for each in bodies] == [1, 2, 3]
        app.await_ends()
        app.stop()
    for unit in app.units():
        replayed = place.replay(*COMMAND, source=unit.run_id, MONGO=mongo.url)
        assert replayed.verdict["verdict"] == "identical", replayed.stderr
    place.write("app.py", APP.replace('{"question": question}', '{"question": question.upper()}'))
    replayed = place.replay(*COMMAND, source=app.units()[1].run_id, MONGO=mongo.url)
    assert ("changed_call", "tool:pymongo.insert") in replayed.causes(), replayed.stderr


BY_NAME: Final = """
import asyncio, os, socket
import dns.asyncresolver, dns.resolver
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

for module in (dns.resolver, dns.asyncresolver):  # the name server of the test
    resolver = module.default_resolver = (
        module.Resolver if module is dns.resolver else module.Resolver)(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], int(os.environ["DNS"])
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *args, **options: real(
    "127.0.0.1" if host == "node.mongo.test" else host, *args, **options)

with MongoClient("mongodb+srv://cluster.mongo.test/?tls=false") as client:
    client.named.a.insert_one({"_id": 1})
    print(client.named.a.find_one(), client.options.replica_set_name)

async def main():
    async with AsyncMongoClient("mongodb+srv://cluster.mongo.test/?tls=false") as client:
        print(await client.named.a.count_documents({}))

asyncio.run(main())
try:
    print(MongoClient("mongodb+srv://elsewhere.mongo.test/?tls=false").named.a.find_one())
except PyMongoError as error:
    print(type(error).__name__, error)
"""


def test_s50_a_cluster_found_by_its_name_replays_without_a_name_server(place: Workplace, server: MongoServer) -> None:
    """`mongodb+srv://`: the servers and options behind a name, and that there is none."""
    script = place.write("agent.py", BY_NAME)
    with a_name_server(server.port) as port:
        recorded = place.record(script, DNS=str(port))
    server.stop()
    assert_same(place.replay(script, DNS="1"), recorded.stdout)


SUPPRESSED: Final = """
import os
from opentelemetry.instrumentation.utils import suppress_instrumentation
from pymongo import MongoClient

with MongoClient(os.environ["MONGO"]) as client:
    client.suppressed.a.insert_one({})
    with suppress_instrumentation():
        print(client.suppressed.a.count_documents({}))
"""


def test_n4_a_command_that_nobody_records_leaves_a_hole(place: Workplace) -> None:
    """Where instrumentation is suppressed, a command is sent and the run says that it lacks it."""
    script = place.write("agent.py", SUPPRESSED)
    place.record(script)
    (reason,) = place.recording().completeness().reasons
    assert "MongoDB where instrumentation is suppressed" in reason
    assert place.replay(script).verdict["verdict"] == "incomplete"
