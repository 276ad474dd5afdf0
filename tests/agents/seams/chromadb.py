"""Chroma with a store of its own, on disk and in memory: each thing it is asked, and what it refuses."""

import os
from pathlib import Path

import chromadb
from chromadb.api.shared_system_client import SharedSystemClient

CALLS = 20
FAILING_CALLS = 2
FAR = [9.0, 9.0]


def make(kind):
    if kind == "memory":
        return chromadb.EphemeralClient()
    return chromadb.PersistentClient(str(Path(os.environ["FOLDER"], "chroma")))


def use():
    SharedSystemClient.clear_system_cache()  # each phase is a process of its own
    found = []
    for kind in ("disk", "memory"):
        client = make(kind)
        docs = client.get_or_create_collection("docs", embedding_function=None, metadata={"of": kind})
        docs.upsert(
            ids=["a", "b"], embeddings=[[1.0, 2.0], FAR], documents=["near", "far"], metadatas=[{"n": 1}, {"n": 2}]
        )
        near = docs.query(query_embeddings=[[1.0, 2.5]], n_results=1, include=["documents", "distances", "embeddings"])
        found += [near["documents"], near["distances"], near["embeddings"][0].tolist()]
        docs.delete(ids=["b"])
        found += [docs.count(), docs.get(where={"n": 1})["documents"], docs.peek()["embeddings"].tolist()]
    found.append([each.name for each in client.list_collections()])
    client.delete_collection("docs")
    make("disk").delete_collection("docs")
    return found


def fail():
    return make("disk").get_collection("nowhere")
