"""Servers whose event loop is watched for blocking calls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import httpx

from support.provider import Provider
from support.units import prepare, serve

BLOCKING: Final = """
import time
from contextlib import asynccontextmanager

from blockbuster import BlockBuster, BlockingError
from fastapi import FastAPI
from openai import AsyncOpenAI

client = AsyncOpenAI()

@asynccontextmanager
async def lifespan(app):
    watch = BlockBuster()
    watch.activate()
    yield
    watch.deactivate()

app = FastAPI(lifespan=lifespan)

@app.get("/{text}")
async def ask(text: str):
    try:
        time.sleep(0.001)
        slept = "slept"
    except BlockingError as exc:
        slept = str(exc)
    try:
        with open(__file__) as source:
            read = source.read(7)
    except BlockingError as exc:
        read = str(exc)
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return {"slept": slept, "read": read, "reply": made.choices[0].message.content}
"""


def test_p2_p4_blocking_calls_are_found_and_ours_are_not(provider: Provider, tmp_path: Path) -> None:
    """With blockbuster requests are whole runs; what the application blocks raises as without us, in a replay too."""
    workplace = prepare(tmp_path, provider, BLOCKING)
    with serve(workplace) as server:
        answer = httpx.get(f"{server.url}/hello").raise_for_status().json()
        server.await_ends()
        server.stop()
    assert answer["slept"] == "Blocking call to time.sleep"
    assert answer["read"].startswith("Blocking call to io.")
    (unit,) = server.units()
    assert unit.completeness().is_complete, unit.completeness().reasons
    assert [call.kind for call in unit.calls if call.kind == "llm"] == ["llm"]
    provider.stop()
    replayed = workplace.replay("-m", "uvicorn", "app:app", source=unit.run_id)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
