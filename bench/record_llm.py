"""Cost of recording an LLM call for its caller, beside the OpenInference instrumentor on the same calls.

A conversation grows by 3 KB per turn to 40 KB and beyond; the OpenAI SDK uses an in-memory transport.

Run: python -m bench.record_llm
"""

from __future__ import annotations

import json
import logging
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import thread_time_ns
from typing import Any

from bench.figures import Figure, main, make_text, recording

from spanreplay.runtime.patches import Patches

CONVERSATIONS = 30
FIRST_BYTES = 28_000
TURN_BYTES = 3_000
TURNS = 8
ANSWER_CHARACTERS = 600


def make_client() -> Any:
    """Return an SDK client on a transport that answers immediately."""
    import httpx2
    import openai

    answer = make_text(random.Random(3), ANSWER_CHARACTERS)  # noqa: S311 - a corpus, no key
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1790000000,
        "model": "gpt-x-2026",
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}],
        "usage": {"prompt_tokens": 9000, "completion_tokens": 150, "total_tokens": 9150},
    }
    content = json.dumps(body).encode()

    def respond(request: Any) -> Any:
        return httpx2.Response(200, content=content, headers={"content-type": "application/json"})

    http_client = httpx2.Client(transport=httpx2.MockTransport(respond))
    return openai.OpenAI(api_key="sk-bench", base_url="http://localhost:9/v1", http_client=http_client)


def make_tool(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a tool definition of about 700 bytes."""
    properties = {f"argument_{n}": {"type": "string", "description": make_text(rng, 60)} for n in range(4)}
    schema = {"type": "object", "properties": properties, "required": ["argument_0"]}
    function = {"name": f"tool_{number}", "description": make_text(rng, 200), "parameters": schema}
    return {"type": "function", "function": function}


def make_turn(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """Return the messages of one turn: a tool call, its result and the next question; about 3 KB."""
    call_id = f"call_{number}_{rng.getrandbits(40):x}"
    arguments = json.dumps({"argument_0": make_text(rng, 200)})
    call = {"id": call_id, "type": "function", "function": {"name": "tool_1", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": make_text(rng, TURN_BYTES - 1_000)},
        {"role": "user", "content": make_text(rng, 500)},
    ]


class Conversation:
    """The requests of one new conversation."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - a corpus, no key
        self._rng = rng
        self.tools = [make_tool(rng, n) for n in range(6)]
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": make_text(rng, 4_000)}]
        while len(json.dumps(self.messages)) + len(json.dumps(self.tools)) < FIRST_BYTES:
            self.messages += make_turn(rng, len(self.messages))

    def grow(self) -> None:
        """Add one turn."""
        self.messages = self.messages + make_turn(self._rng, len(self.messages))

    def size(self) -> int:
        """Return the bytes of the request."""
        return len(json.dumps({"messages": self.messages, "tools": self.tools}))


def time_turn(client: Any, conversation: Conversation) -> float:
    """Return the thread CPU time of one turn, in microseconds."""
    start = thread_time_ns()
    client.chat.completions.create(
        model="gpt-x", messages=conversation.messages, tools=conversation.tools, temperature=0.2
    )
    took = (thread_time_ns() - start) / 1000
    conversation.grow()
    return took


def time_conversation(client: Any, cases: dict[str, Callable[[], Any]], seed: int) -> Iterator[dict[str, float]]:
    """Yield the times of each turn in every case, back to back in rotating order; skips the first turn."""
    conversations = {name: Conversation(seed) for name in cases}
    order = list(cases)
    for turn in range(TURNS + 1):
        order.append(order.pop(0))
        times = {}
        for name in order:
            with cases[name]():
                times[name] = time_turn(client, conversations[name])
        if turn:
            yield times


@contextmanager
def instrumented_by_openinference() -> Iterator[None]:
    """Use OpenInference's instrumentor with a batch processor whose exporter discards spans; undone on exit."""
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=_provider(), skip_dep_check=True)
    try:
        yield
    finally:
        OpenAIInstrumentor().uninstrument()


_providers: list[Any] = []


def _provider() -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        exported = 0

        def export(self, spans: Any) -> SpanExportResult:
            Nowhere.exported += len(spans)
            return SpanExportResult.SUCCESS

    if not _providers:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(Nowhere()))
        _providers.append(provider)
    return _providers[0]


@contextmanager
def recorded_by_us(run: Any) -> Iterator[None]:
    """Install our seam and activate the run; undone on exit."""
    import httpx2

    from spanreplay.runtime.run import set_process_run
    from spanreplay.seams.transport import httpx as _httpx

    patches = Patches()
    _httpx.install(httpx2, patches)
    set_process_run(run)
    try:
        yield
    finally:
        set_process_run(None)
        patches.undo()


def measure() -> Sequence[Figure]:
    """Measure our overhead over OpenInference's."""
    # OpenInference's spans exceed the SDK's attribute limit; logging that would count against it
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    with recording() as installed:
        installed.seams.uninstall()  # each case installs and removes its own
        run = installed.run
        cases: dict[str, Callable[[], Any]] = {
            "plain": nullcontext,
            "OpenInference": instrumented_by_openinference,
            "spanreplay": lambda: recorded_by_us(run),
        }
        client = make_client()
        turns: list[dict[str, float]] = []
        for seed in range(CONVERSATIONS + 1):
            times = list(time_conversation(client, cases, seed))
            turns += times if seed else []  # the first one warms up
        if installed._spool._writer.appended < (CONVERSATIONS + 1) * TURNS or run.emitter.dropped:
            raise RuntimeError(f"only {installed._spool._writer.appended} records were written")
    ours, theirs = (
        statistics.median(times[name] - times["plain"] for times in turns) for name in ("spanreplay", "OpenInference")
    )
    plain = statistics.median(times["plain"] for times in turns)
    sizes = Conversation(1), Conversation(1)
    for _ in range(TURNS):
        sizes[1].grow()
    detail = (
        f"{ours:.0f} µs beside OpenInference's {theirs:.0f} µs on a call of {plain:.0f} µs; request"
        f" {sizes[0].size() / 1000:.0f} to {sizes[1].size() / 1000:.0f} KB, {TURN_BYTES / 1000:g} KB new; medians of"
        f" {len(turns)} turns, each beside a bare one, thread CPU"
    )
    return [Figure("record an LLM call, over OpenInference's overhead", ours / theirs, "x", 1.0, detail)]


if __name__ == "__main__":
    main(measure)
