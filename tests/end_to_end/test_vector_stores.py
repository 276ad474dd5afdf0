"""Agents with a vector store in their own process replay without it: Chroma keeps nothing from a replay."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from typing import Any, Final

import pytest

from support.agents import ENVIRONMENTS, ROOT, has_distribution
from support.provider import Provider
from support.replaying import BIN, TIMEOUT_S, Workplace

QUERY: Final = "retriever:chromadb.query"
AGENT: Final = """
import os
import chromadb
from chromadb.errors import NotFoundError
from openai import OpenAI

class Words(chromadb.EmbeddingFunction):
    def __init__(self):
        pass

    def __call__(self, input):
        counted = []
        for text in input:
            vector = [0.0] * 8
            for word in text.split():
                vector[sum(map(ord, word)) % 8] += 1.0
            counted.append(vector)
        return counted

    @staticmethod
    def name():
        return "words"

    @staticmethod
    def build_from_config(config):
        return Words()

    def get_config(self):
        return {}

store = chromadb.PersistentClient(os.environ["STORE"])
rules = store.get_or_create_collection("rules", embedding_function=Words(), metadata={"hnsw:space": "cosine"})
texts = ["the refund policy is thirty days", "wire transfers need approval", "lunch is at noon"]
rules.add(ids=["r0", "r1", "r2"], documents=texts, metadatas=[{"n": n, "of": "desk"} for n in range(3)])
found = rules.query(query_texts=["refund policy days"], n_results=2)
print(found["ids"], found["documents"], found["distances"])
kept = rules.get(where={"n": {"$gte": 1}}, include=["embeddings", "metadatas"])
print(kept["ids"], type(kept["embeddings"]).__name__, kept["embeddings"].dtype, kept["metadatas"])
client = OpenAI(max_retries=0)
messages = [{"role": "user", "content": f"answer from {found['documents']}"}]
print(client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content)
rules.update(ids=["r1"], documents=["wire transfers above 10000 need approval"], metadatas=[{"n": 7}])
rules.delete(ids=["r2"])
print(rules.count(), rules.get(ids=["r1"])["documents"], rules.peek(1)["ids"])
drafts = store.create_collection("drafts", embedding_function=None)
drafts.upsert(ids=["d0"], embeddings=[[0.5, 0.25]], uris=["file:///d0"])
drafts.modify(name="letters", metadata={"by": "ann"})
print(drafts.name, drafts.count(), sorted(each.name for each in store.list_collections()))
try:
    store.get_collection("nowhere")
except NotFoundError as error:
    print(type(error).__name__, error)
print(store.get_collection("rules", embedding_function=Words()).id == rules.id)
store.close()
with chromadb.PersistentClient(os.environ["STORE"]) as again:
    print(again.count_collections())
"""
CALLS: Final = {
    *("connect", "get_or_create_collection", "add", "query", "get", "update", "delete", "count", "peek"),
    *("create_collection", "upsert", "modify", "list_collections", "get_collection", "count_collections"),
}
DUMP: Final = """
import json, sys
import chromadb
found = {}
for each in chromadb.PersistentClient(sys.argv[1]).list_collections():
    got = each.get(include=["embeddings", "documents", "metadatas"])
    rows = zip(got["ids"], got["embeddings"].tolist(), got["documents"], got["metadatas"])
    found[each.name] = sorted(rows, key=lambda row: row[0])
print(json.dumps(found))
"""
CHANGE: Final = """
import sys
import chromadb
rules = chromadb.PersistentClient(sys.argv[1]).get_collection("rules", embedding_function=None)
rules.delete(ids=["r0"])
rules.add(ids=["r9"], documents=["refund policy days: none"], embeddings=[[1.0] * 8])
"""
TOOLS: Final = """
import os
import chromadb
import spanreplay

store = chromadb.PersistentClient(os.environ["STORE"])
notes = store.get_or_create_collection("notes", embedding_function=None)
notes.upsert(ids=["a", "b"], embeddings=[[1.0, 0.0], [0.0, 1.0]], documents=["milk", "rent"])

@spanreplay.boundary("tool", name="look_up", effect="read")
def look_up(vector):
    inner = chromadb.PersistentClient(os.environ["STORE"]).get_collection("notes", embedding_function=None)
    return inner.query(query_embeddings=[vector], n_results=1)["documents"]

@spanreplay.boundary("tool", name="look_up_outside", effect="read")
def look_up_outside(vector):
    return notes.query(query_embeddings=[vector], n_results=1)["documents"]

if os.environ.get("ONLY") != "outside":
    print(look_up([1.0, 0.1]))
print(look_up_outside([0.1, 1.0]))
print(notes.count())
"""
CREW: Final = """
import os
from crewai import Agent, Crew, LLM, Task
from crewai.knowledge.source.string_knowledge_source import StringKnowledgeSource

rules = StringKnowledgeSource(content="Refunds take thirty days. Lunch is at noon. Wire transfers need approval.")
llm = LLM(model="gpt-x", provider="openai", base_url=os.environ["OPENAI_BASE_URL"], api_key="x")
clerk = Agent(role="clerk", goal="answer", backstory="an old clerk", llm=llm, verbose=False)
task = Task(description="When is lunch?", expected_output="a time", agent=clerk)
embedder = {"provider": "openai", "config": {"model": "text-embedding-3-small", "api_key": "x"}}
crew = Crew(agents=[clerk], tasks=[task], knowledge_sources=[rules], embedder=embedder)
print(crew.kickoff().raw)
print([each["content"] for each in crew.query_knowledge(["lunch"])])
"""
OLDER: Final = """
import os
import chromadb
import spanreplay

print(spanreplay.boundary("tool", name="look_up", effect="read")(len)("milk"))

settings = chromadb.Settings(chroma_api_impl="chromadb.api.segment.SegmentAPI")
try:
    store = chromadb.PersistentClient(os.environ["STORE"], settings=settings)
except ImportError as error:
    print(error)
"""


class Store:
    """A folder with a Chroma store, and an agent in a folder beside it."""

    def __init__(self, there: Workplace) -> None:
        self.there = there
        self.path = there.path / "kept" / "chroma"
        self.agent = there.path / "code" / "agent.py"
        self.agent.parent.mkdir()
        there.environ["STORE"] = str(self.path)

    def run(self, source: str) -> Any:
        """Run a program on the store, unrecorded; return its output, parsed from JSON."""
        done = subprocess.run(
            [str(self.there.python), "-c", source, str(self.path)],
            env={"HOME": str(self.there.path)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return json.loads(done.stdout) if done.stdout else None

    def files(self) -> dict[str, str]:
        """Each file in the folder and the hash of its content."""
        found = sorted(self.path.rglob("*"))
        return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in found if f.is_file()}

    def record(self, source: str) -> str:
        """Record an agent; return its output."""
        self.agent.write_text(source, encoding="utf-8")
        return self.there.record(self.agent).stdout


@pytest.fixture
def store(workplace: Workplace) -> Store:
    """The location of a store that doesn't exist yet."""
    python = ENVIRONMENTS["crewai"]
    if not has_distribution(python, "chromadb"):
        pytest.skip(f"no chromadb in {python.parent.parent.relative_to(ROOT)}: tools/agents.sh makes it")
    return Store(Workplace(workplace.path, workplace.environ, python))


@pytest.mark.slow
def test_s50_vector_store_of_another_content_replays_untouched(store: Store, provider: Provider) -> None:
    """The recorded answers are served whatever the store holds now, and not one byte of its folder changes."""
    printed = store.record(AGENT)
    provider.stop()
    recording = store.there.recording()
    assert recording.completeness().is_complete, recording.completeness().reasons
    assert {c.name for c in recording.calls if c.kind != "llm"} == {f"chromadb.{name}" for name in CALLS}
    assert [c.boundary for c in recording.calls if c.kind == "retriever"] == [QUERY]
    assert all(json.loads(c.request)["arguments"]["store"] == str(store.path) for c in recording.calls[:3])
    store.run(CHANGE)
    changed, files = store.run(DUMP), store.files()
    assert [row[0] for row in changed["rules"]] == ["r1", "r9"]
    replayed = store.there.replay(store.agent)
    assert (replayed.stdout, replayed.verdict["verdict"]) == (printed, "identical"), replayed.stderr
    assert replayed.verdict["counts"]["exact"] == len(recording.calls)
    assert store.files() == files
    assert store.run(DUMP) == changed


@pytest.mark.slow
def test_s27_n14_vector_store_that_is_gone_is_not_made_again(store: Store, provider: Provider) -> None:
    """With the store's folder removed the replay is identical, and the folder isn't recreated."""
    printed = store.record(AGENT)
    provider.stop()
    shutil.rmtree(store.path.parent)
    replayed = store.there.replay(store.agent)
    assert (replayed.stdout, replayed.verdict["verdict"]) == (printed, "identical"), replayed.stderr
    assert not store.path.parent.exists()


@pytest.mark.slow
def test_s50_changed_query_of_a_vector_store_is_named(store: Store, provider: Provider) -> None:
    """A different search text is one changed call of the query; the store keeps its content."""
    store.record(AGENT)
    provider.stop()
    files = store.files()
    store.agent.write_text(AGENT.replace('["refund policy days"]', '["lunch today"]'), encoding="utf-8")
    replayed = store.there.replay(store.agent)
    assert (replayed.status, replayed.causes()) == (3, [("changed_call", QUERY)])
    assert "query_embeddings" in replayed.verdict["divergences"][0]["message"], replayed.stderr
    assert store.files() == files


@pytest.mark.slow
def test_s27_n14_deletion_that_was_not_recorded_does_not_reach_the_store(store: Store, provider: Provider) -> None:
    """An agent that deletes once more than recorded is stopped there, and the store keeps its content."""
    store.record(AGENT)
    provider.stop()
    files = store.files()
    store.agent.write_text(f"{AGENT}rules.delete(ids=['r0'])\nstore.delete_collection('letters')\n", encoding="utf-8")
    replayed = store.there.replay(store.agent)
    assert (replayed.status, replayed.causes()) == (3, [("extra_call", "tool:chromadb.delete")])
    assert store.files() == files


@pytest.mark.slow
def test_s50_search_inside_a_tool_is_part_of_it_and_can_go_live(store: Store) -> None:
    """A tool's queries to the store aren't separate calls; live, the tool queries the store with its own client."""
    printed = store.record(TOOLS)
    calls = [c.name for c in store.there.recording().calls]
    assert calls == [
        *("chromadb.connect", "chromadb.get_or_create_collection", "chromadb.upsert"),
        *("look_up", "look_up_outside", "chromadb.count"),
    ]
    replayed = store.there.replay(store.agent, options=["--live", "tool:look_up"])
    assert (replayed.stdout, replayed.verdict["verdict"]) == (printed, "identical"), replayed.stderr
    assert replayed.verdict["counts"]["live"] == 1
    change = CHANGE.replace('"rules"', '"notes"').replace('["r0"]', '["a"]').replace("[1.0] * 8", "[1.0, 0.0]")
    store.run(change)
    changed = store.there.replay(store.agent, options=["--live", "tool:look_up"])
    assert changed.stdout.splitlines()[0] == "[['refund policy days: none']]", changed.stderr


@pytest.mark.slow
def test_s27_live_call_on_a_replayed_client_is_refused(store: Store) -> None:
    """A client created without a store says so instead of calling one, both inside and outside a live tool."""
    store.there.environ["ONLY"] = "outside"
    store.record(TOOLS)
    files = store.files()
    for plan, name in (("tool:look_up_outside", "query"), ("tool:chromadb.count", "count")):
        replayed = store.there.replay(store.agent, options=["--live", plan])
        assert replayed.status == 3, replayed.stderr
        said = f"the client of {store.path} was made outside of a live call and is replayed: {name} can't run live"
        assert f"InternalError: {said}" in replayed.stderr
    assert store.files() == files


@pytest.mark.slow
def test_s50_vector_store_goes_live_as_a_whole(store: Store) -> None:
    """If the plan lets every Chroma call go live, the store is opened and queried for real."""
    printed = store.record(TOOLS)
    store.run(CHANGE.replace('"rules"', '"notes"').replace('["r0"]', '["b"]').replace("[1.0] * 8", "[1.0, 0.0]"))
    replayed = store.there.replay(store.agent, options=["--live", "tool:chromadb.*"])
    assert replayed.stdout.splitlines() == [*printed.splitlines()[:-1], "3"], replayed.stderr
    assert replayed.verdict["counts"]["live"] == 4
    assert [row[0] for row in store.run(DUMP)["notes"]] == ["a", "b", "r9"]


@pytest.mark.slow
def test_s67_resumed_run_goes_on_with_its_vector_store(store: Store) -> None:
    """A run that waited for a human continues with the store as it left it; earlier writes aren't repeated."""
    question = 'print(input("Approve? "))\nnotes.add(ids=["c"], embeddings=[[1.0, 1.0]])\nprint(notes.count())\n'
    store.agent.write_text(TOOLS + question, encoding="utf-8")
    there = store.there
    with there.spawn([str(there.python), str(store.agent)], SPANREPLAY_HUMAN="suspend") as waiting:
        printed, said = waiting.communicate(timeout=TIMEOUT_S)
    assert waiting.returncode == 7, said
    store.run(CHANGE.replace('"rules"', '"notes"').replace('["r0"]', '["b"]').replace("[1.0] * 8", "[1.0, 0.0]"))
    done = subprocess.run(
        [str(BIN / "spanreplay"), "resume", "latest", "--input", "yes", "--", str(there.python), str(store.agent)],
        cwd=there.path,
        env=there.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{printed}yes\n3\n"
    assert [row[0] for row in store.run(DUMP)["notes"]] == ["a", "c", "r9"]


@pytest.mark.slow
def test_n14_older_api_of_a_vector_store_is_a_hole_and_stays_shut(store: Store) -> None:
    """Chroma's API before version 1.0 is not recorded: the run is incomplete, and a replay does not open the store."""
    store.record(OLDER)
    what = f"opening {store.path} with Chroma's SegmentAPI"
    (reason,) = store.there.recording().completeness().reasons
    assert reason == f"{what}: its calls are not in this run; those of chromadb 1 would be"
    replayed = store.there.replay(store.agent)
    assert replayed.causes() == [("effect_blocked", "tool:chromadb.connect")]
    assert f"{what} was denied" in replayed.verdict["divergences"][0]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "gone"])
@pytest.mark.sampled(1)
def test_s50_knowledge_of_a_crew_replays(is_kept: bool, store: Store, provider: Provider) -> None:
    """CrewAI's knowledge, kept in a store in the user's home by its first run, replays with and without that store."""
    quiet = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}
    store.there.environ.update(quiet, LITELLM_LOCAL_MODEL_COST_MAP="True")
    printed = store.record(CREW)
    provider.stop()
    (made,) = (store.there.path / ".local" / "share").rglob("chroma.sqlite3")
    assert [c.boundary for c in store.there.recording().calls].count(QUERY) == 2
    if not is_kept:
        made.unlink()
        for segment in made.parent.glob("*-*-*-*-*"):
            shutil.rmtree(segment)
    replayed = store.there.replay(store.agent)
    assert (replayed.stdout, replayed.verdict["verdict"]) == (printed, "identical"), replayed.stderr
    assert made.exists() == is_kept
