"""The ids of the program's own spans, which it prints, returns or asks a model with, are as recorded in a replay."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.units import CHAT, COMMAND, prepare, serve

OWN_PROVIDER: Final = """
import random

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator

class Odd(IdGenerator):
    def generate_span_id(self):
        return random.SystemRandom().getrandbits(63) * 2 + 1

    def generate_trace_id(self):
        return random.SystemRandom().getrandbits(127) * 2 + 1

provider = TracerProvider(id_generator=Odd())
"""
GLOBAL: Final = """
from opentelemetry import trace

provider = trace
"""
WORK: Final = """
import random

import spanreplay

random.seed(7)

@spanreplay.boundary("tool", name="look_up")
def look_up(question):
    with tracer.start_as_current_span("inside the call"):
        return question.upper()

tracer = provider.get_tracer("shop")
for number in range(3):
    with tracer.start_as_current_span("order") as span, tracer.start_as_current_span("line") as line:
        context = span.get_span_context()
        print(format(context.trace_id, "032x"), format(context.span_id, "016x"), line.get_span_context().span_id)
        print(look_up(f"order {number}"), random.random())
"""
SERVED: Final = CHAT.replace(
    """    reply = await ask(""",
    """    from opentelemetry import trace
    span = trace.get_tracer("shop").start_span("chat")
    trace_id = format(span.get_span_context().trace_id, "032x")
    reply = trace_id + " " + await ask(""",
)


@pytest.mark.parametrize("provider", [GLOBAL, OWN_PROVIDER], ids=["global", "own"])
def test_n4_ids_of_the_programs_spans_come_back(provider: str, tmp_path: Path) -> None:
    """Ids that the agent prints are the recorded ones, and its own random numbers stay in step."""
    workplace = Workplace(tmp_path)
    agent = workplace.write("agent.py", provider + WORK)
    recorded = workplace.record(agent)
    replayed = workplace.replay(agent)
    assert replayed.verdict["verdict"] == "identical", replayed.stderr
    assert replayed.stdout == recorded.stdout
    traces = {line.split()[0] for line in recorded.stdout.splitlines()[::2]}
    assert len(traces) == 3


def test_n4_service_returns_the_id_of_its_trace(provider: Provider, tmp_path: Path) -> None:
    """A response with the id of its trace is identical in a replay, where the tracer makes the recorded id."""
    workplace = prepare(tmp_path, provider, SERVED)
    with serve(workplace) as server:
        request = urllib.request.Request(
            f"{server.url}/chat", json.dumps({"text": "one"}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            trace_id = json.load(response)["reply"].split()[0]
        server.await_ends()
        server.stop()
        (unit,) = server.units()
    assert len(trace_id) == 32
    done = workplace.run("replay", unit.run_id, "--", str(workplace.python), *COMMAND)
    assert done.returncode == 0, done.stderr
