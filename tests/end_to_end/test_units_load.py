"""Many concurrent users of each framework under each server: one run per request, with its own calls only.

SPANREPLAY_TEST_UNITS sets how many of the 200 are replayed.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import response_of, serve

REQUESTS, USERS, AT_ONCE = 200, 20, 40
REPLAYED: Final = int(os.environ.get("SPANREPLAY_TEST_UNITS", "1"))

ASK: Final = """
from groq import AsyncGroq, Groq

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content
"""
FASTAPI: Final = """
from typing import TypedDict
from fastapi import FastAPI
from langgraph.graph import END, START, StateGraph

client = AsyncGroq()

class State(TypedDict, total=False):
    question: str
    draft: str
    answer: str

async def ask_async(text):
    made = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

async def draft(state):
    return {"draft": await ask_async(state["question"])}

async def review(state):
    return {"answer": await ask_async("review: " + state["draft"])}

graph = StateGraph(State)
graph.add_node("draft", draft)
graph.add_node("review", review)
graph.add_edge(START, "draft")
graph.add_edge("draft", "review")
graph.add_edge("review", END)
agent = graph.compile()
app = FastAPI()

@app.get("/ask/{text}")
async def answer(text: str):
    return await agent.ainvoke({"question": text})
"""
STARLETTE: Final = """
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def answer(request):
    return PlainTextResponse(await run_in_threadpool(ask, request.path_params["text"]))

app = Starlette(routes=[Route("/ask/{text}", answer)])
"""
FLASK: Final = """
from flask import Flask

app = Flask(__name__)

@app.get("/ask/<text>")
def answer(text):
    return {"draft": ask(text), "answer": ask("review: " + text)}
"""
DJANGO: Final = """
from django.conf import settings

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="none")

from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path

def answer(request, text):
    return JsonResponse({"answer": ask(text)})

urlpatterns = [path("ask/<str:text>", answer)]
app = get_wsgi_application()
"""
AIOHTTP: Final = """
import asyncio
from aiohttp import web

async def answer(request):
    return web.json_response({"answer": await asyncio.to_thread(ask, request.match_info["text"])})

async def make():
    app = web.Application()
    app.add_routes([web.get("/ask/{text}", answer)])
    return app
"""
_GUNICORN: Final = ("-m", "gunicorn", "app:app", "--workers", "2", "--threads", "8")
_AIOHTTP: Final = ("-m", "gunicorn", "app:make", "-k", "aiohttp.GunicornWebWorker", "--workers", "2")
FRAMEWORKS: Final = {
    "fastapi": (FASTAPI, ("-m", "uvicorn", "app:app"), "--port {port}", 2),
    "starlette": (STARLETTE, ("-m", "hypercorn", "app:app"), "--bind 127.0.0.1:{port}", 1),
    "flask": (FLASK, _GUNICORN, "--bind 127.0.0.1:{port}", 2),
    "aiohttp": (AIOHTTP, _AIOHTTP, "--bind 127.0.0.1:{port}", 1),
    "django": (DJANGO, _GUNICORN, "--bind 127.0.0.1:{port}", 1),
}


def _ask(url: str, number: int) -> str:
    headers = {"baggage": f"user.id=user-{number % USERS},session.id=session-{number}"}
    answer = httpx.get(f"{url}/ask/question-{number}.", headers=headers, timeout=TIMEOUT_S)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.sampled(2)
def test_p2_p6_as_many_runs_as_requests(name: str, provider: Provider, tmp_path: Path) -> None:
    """200 requests of 20 users, 40 at a time, give 200 runs, no call in another's run; a sample replays identically."""
    source, command, at, asked = FRAMEWORKS[name]
    place = Workplace(tmp_path, provider.environ())
    place.write("app.py", ASK + source)
    with serve(place, command=command, at=at) as server:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(lambda number: _ask(server.url, number), range(REQUESTS)))
        server.stop()
    provider.stop()
    units = {int(unit.root.session_id.removeprefix("session-")): unit for unit in server.units()}
    assert sorted(units) == list(range(REQUESTS))
    for number, unit in units.items():
        assert unit.completeness().is_complete, unit.completeness().reasons
        assert unit.root.user_id == f"user-{number % USERS}"
        questions = [call.request for call in unit.calls if call.kind == "llm"]
        assert len(questions) == asked
        assert set(re.findall(r"question-\d+\.", " ".join(questions))) == {f"question-{number}."}
        assert response_of(unit)["body"]["text"] == answers[number]
    between = REQUESTS // REPLAYED
    for number in range(between // 2, REQUESTS, between):
        replayed = place.replay(*command, *at.format(port=1).split(), source=units[number].run_id)
        assert replayed.verdict["verdict"] == "identical", (number, replayed.stderr)
