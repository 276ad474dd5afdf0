"""Cost of recording a tool call for its caller, in bare SDK spans.

Run: python -m bench.record_tool
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from bench.figures import Figure, main, recording, time_interleaved

GOAL_SPANS = 3.0
GOAL_MICROS = 60.0
_LANGCHAIN = "LangChain tool._run, effect write (two records)"
ROUNDS = 60
CALLS = 200


def make_bare_span() -> Callable[[], object]:
    """Return a function that makes a bare SDK span: no attributes, a batch processor, an exporter that discards it."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    tracer = provider.get_tracer("bench")
    return lambda: tracer.start_span("call").end()


def make_tools(installed: Any) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return name → (recorded call, the same call bare)."""
    import spanreplay

    numbers = itertools.count()

    def quote(symbol: str, amount: int) -> dict[str, Any]:
        return {"symbol": symbol, "amount": amount, "price": 190.25}

    write = spanreplay.boundary("tool", name="quote")(quote)
    read = spanreplay.boundary("tool", name="quote_read", effect="read")(quote)
    from langchain_core.tools import tool

    @tool
    def lookup(symbol: str, amount: int) -> dict[str, Any]:
        """Look a price up."""
        return quote(symbol, amount)

    bare_run: Any = vars(type(lookup))["_run"].__wrapped__
    arguments = {"symbol": "ACME"}
    from langchain_core.runnables import RunnableConfig

    config = RunnableConfig()
    return {
        "declared, effect read": (
            lambda: read("ACME", next(numbers)),
            lambda: quote("ACME", next(numbers)),
        ),
        "declared, effect write (two records)": (
            lambda: write("ACME", next(numbers)),
            lambda: quote("ACME", next(numbers)),
        ),
        _LANGCHAIN: (
            lambda: lookup._run(**arguments, amount=next(numbers), config=config),
            lambda: bare_run(lookup, **arguments, amount=next(numbers), config=config),
        ),
    }


def make_span_between(tools: dict[str, Any], span: Callable[[], object]) -> Callable[[], object]:
    """Return a function that makes a bare span after a bare LangChain call."""
    _, bare = tools[_LANGCHAIN]

    def call() -> None:
        bare()
        span()

    return call


def measure() -> Sequence[Figure]:
    """Measure the cost of recording minus the bare call, over a bare span."""
    with recording() as installed:
        tools = make_tools(installed)
        span = make_bare_span()
        cases = {"span": span, "span after LangChain": make_span_between(tools, span)}
        for name, (recorded, bare) in tools.items():
            cases[name], cases[f"{name} bare"] = recorded, bare
        times = time_interleaved(cases, rounds=ROUNDS, calls=CALLS)
        expected = (ROUNDS * CALLS + min(CALLS, 50)) * 5  # records
        if installed.run.emitter.dropped or installed._spool._writer.appended < expected:
            raise RuntimeError(f"{installed._spool._writer.appended} of {expected} records were written")
    best = {name: min(values) for name, values in times.items()}
    figures = []
    for name in tools:
        cost = best[name] - best[f"{name} bare"]
        detail = (
            f"{cost:.1f} µs beyond the bare call ({best[f'{name} bare']:.1f} µs);"
            f" a bare span costs {best['span']:.1f} µs; best of {ROUNDS} x {CALLS} calls, thread CPU"
        )
        figures.append(Figure(f"record a tool call, {name}", cost / best["span"], "spans", GOAL_SPANS, detail))
        if name != _LANGCHAIN:
            figures.append(Figure(f"CPU of the caller's thread for a tool call, {name}", cost, "µs", GOAL_MICROS))
    between = best["span after LangChain"] - best[f"{_LANGCHAIN} bare"]
    lang_cost = best[_LANGCHAIN] - best[f"{_LANGCHAIN} bare"]
    figures.append(
        Figure(
            "the same, over a bare span that ends beside the same LangChain call",
            lang_cost / between,
            "spans",
            None,
            f"such a span costs {between:.1f} µs: LangChain's own work leaves the processor's caches to neither",
        )
    )
    return figures


if __name__ == "__main__":
    main(measure)
