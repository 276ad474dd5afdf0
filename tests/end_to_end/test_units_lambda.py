"""AWS Lambda's runtime: each invocation is a separate run, and replays with the provider and Lambda stopped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from support.lambda_api import LambdaApi, serve_invocations
from support.otlp_sink import serve as deliver
from support.provider import Provider
from support.replaying import TIMEOUT_S, Workplace
from support.sampling import sampled
from support.units import await_true, ended_runs
from support.workers import input_of, output_of, units_of

RUNTIME: Final = ("-m", "awslambdaric", "app.handler")
APP: Final = """
import os, random, time, uuid

from groq import Groq

STARTED, SEED = time.time(), random.random()

def ask(text):
    made = Groq().chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content

WARM = ask("warm up")

def handler(event, context):
    number = event["number"]
    first = ask(f"question-{number} of {event['user']}")
    if number == 2:
        raise KeyError(number)
    return {"answer": first, "again": ask(f"question-{number} again"), "warm": WARM, "seed": SEED, "started": STARTED,
            "at": time.time(), "id": str(uuid.uuid4()), "own": context.aws_request_id, "name": context.function_name,
            "left": context.get_remaining_time_in_millis(), "trace": os.environ["_X_AMZN_TRACE_ID"],
            "custom": context.client_context and context.client_context.custom}
"""
EVENTS: Final = [
    {"number": number, "user": f"user-{number}", "headers": {"Baggage": f"user.id=user-{number},session.id=s-{number}"}}
    for number in range(4)
]
CONTEXT: Final = {"custom": {"tier": "gold"}, "w3c": {"baggage": "user.id=ann"}}


@pytest.fixture
def place(provider: Provider, tmp_path: Path) -> Workplace:
    """A directory with a function."""
    environ = {**provider.environ(), "SPANREPLAY_GUARD": "production", "AWS_LAMBDA_FUNCTION_NAME": "shop"}
    workplace = Workplace(tmp_path, environ)
    workplace.write("app.py", APP)
    return workplace


def start(place: Workplace, api: LambdaApi, **environ: str) -> subprocess.Popen[str]:
    """A recorded runtime."""
    return place.spawn([str(place.python), *RUNTIME], AWS_LAMBDA_RUNTIME_API=api.address, **environ)


def record(place: Workplace, events: list[Any], **environ: str) -> dict[str, tuple[str, Any]]:
    """Let a recorded runtime process the events, and kill it when it asks for more; return its answers."""
    with serve_invocations(events, [{}, CONTEXT]) as api:
        process = start(place, api, **environ)
        await_idle(api, process)
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
    return api.answers


def await_idle(api: LambdaApi, process: subprocess.Popen[str]) -> None:
    """Wait until a runtime has answered everything."""

    def is_idle() -> bool:
        assert process.poll() is None, process.communicate()
        return api.is_idle.is_set()

    await_true(is_idle)


@pytest.mark.parametrize("polls", ["", "AWS_Lambda_python3.13"], ids=["in the main thread", "in a thread"])
@pytest.mark.sampled(1)
def test_p3_p4_each_invocation_is_a_run_and_replays_alone(polls: str, provider: Provider, place: Workplace) -> None:
    """The runtime is killed like a frozen one: each run is whole, and is identical without Lambda and provider."""
    answers = record(place, EVENTS, AWS_EXECUTION_ENV=polls)
    provider.stop()
    units = units_of(place, "shop")
    assert len(units) == len(answers) == len(EVENTS)
    for number, unit in enumerate(units):
        assert unit.completeness().is_complete, unit.completeness().reasons
        whose = (f"user-{number}", f"s-{number}") if number != 1 else ("ann", "")
        assert (unit.root.user_id, unit.root.session_id) == whose
        given, given_back = input_of(unit), output_of(unit)
        assert json.loads(given["event"]) == EVENTS[number]
        assert given["invoke_id"] == f"request-{number}"
        verb, body = answers[f"request-{number}"]
        if number == 2:
            assert (verb, unit.root.outcome) == ("error", "error")
            assert given_back["error"] == {"errorMessage": "2", "errorType": "KeyError", "requestId": "request-2"}
            assert body["errorType"] == "KeyError"
        else:
            assert (verb, body) == ("response", json.loads(given_back["result"]))
            assert body["left"] > 0
        models = [call for call in unit.calls if call.kind == "llm"]
        assert models
        assert all(f"question-{number} " in call.request for call in models)
    for unit in sampled(units[2:] if polls else units, 2):
        replayed = place.replay(*RUNTIME, source=unit.run_id)
        assert replayed.status == 0, replayed.stderr
        assert replayed.verdict["verdict"] == "identical"


def test_p3_what_was_recorded_is_delivered_before_the_runtime_may_be_frozen(place: Workplace) -> None:
    """When the runtime asks for the next invocation, the collector has the whole runs of all earlier ones."""
    delivered: list[int] = []
    with deliver() as sink, serve_invocations(EVENTS) as api:
        api.at_next = lambda answered: delivered.append(len(ended_runs(sink)))
        process = start(place, api, OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint)
        await_idle(api, process)
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
    assert delivered == [0, 1, 2, 3, 4]


def test_p3_a_runtime_answers_as_without_us(place: Workplace) -> None:
    """Answers to Lambda are the same, including error stacks and a handler that can't be loaded."""
    app = "def handler(event, context):\n    return 1 // event, context.aws_request_id\n"
    place.write("app.py", app)
    recorded = record(place, [1, 0, "text"])
    assert recorded == record(place, [1, 0, "text"], SPANREPLAY_MODE="off")
    assert [verb for verb, _ in recorded.values()] == ["response", "error", "error"]
    failures = []
    place.write("app.py", "import no_such_module\n")
    for mode in ("record", "off"):
        with serve_invocations([1]) as api:
            process = start(place, api, SPANREPLAY_MODE=mode)
            process.communicate(timeout=TIMEOUT_S)
        failures.append((process.returncode, api.failures))
    assert failures[0] == failures[1]
    assert failures[0][0] == 1


def test_p4_a_changed_handler_is_named_and_a_lost_one_stops_the_replay(provider: Provider, place: Workplace) -> None:
    """A changed result has one cause; a missing or unloadable handler gives one line and status 1."""
    record(place, EVENTS[:1])
    provider.stop()
    (unit,) = units_of(place)
    place.write("app.py", APP.replace('{"answer": first', '{"answer": first.upper()'))
    assert place.replay(*RUNTIME, source=unit.run_id).causes() == [("changed_call", "compute:output")]
    for app, why in (
        (APP.replace("def handler", "def renamed"), "Handler 'handler' missing on module 'app'"),
        ("import no_such_module\n", "Unable to import module 'app': No module named 'no_such_module'"),
    ):
        place.write("app.py", app)
        gone = place.replay(*RUNTIME, source=unit.run_id)
        assert gone.status == 1
        assert f"the handler can't be loaded: {why}" in gone.stderr
