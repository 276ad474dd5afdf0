"""Hypothesis strategies for OTLP spans that use everything OTLP allows, and for slightly invalid JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

texts = st.text(max_size=30) | st.sampled_from(["", "\x00", "größe “x”", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 " * 100, "a" * 3000])
json_scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": json_values | texts}),
    max_size=6,
)


@st.composite
def chat_bodies(draw: st.DrawFn) -> str:
    """Draw a provider's request as text: sometimes padded, with a duplicate name, truncated, or nested once more."""
    name = st.sampled_from(["messages", "input", "tools", "contents", "other"])
    items = draw(messages)
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", "\t:\r\n")]))
    is_ascii = draw(st.booleans())

    def dump(value: Any) -> str:
        return json.dumps(value, separators=separators, ensure_ascii=is_ascii)

    fields = [f"{dump(draw(name))}{separators[1]}{dump(items * draw(st.integers(1, 4)))}" for _ in range(2)]
    fields.insert(draw(st.integers(0, 2)), f'"x":{dump(draw(json_values))}')
    text = "{" + separators[0].join(fields) + "}"
    if draw(st.booleans()):
        text = dump({"method": "POST", "body": text}) if draw(st.booleans()) else f'{{"body": {text}}}'
    if draw(st.booleans()):
        text = text[: draw(st.integers(0, len(text)))]
    return text.encode("utf-8", "replace").decode()


def _any_values() -> st.SearchStrategy[AnyValue]:
    scalars = st.one_of(
        st.builds(AnyValue),
        texts.map(lambda v: AnyValue(string_value=v)),
        chat_bodies().map(lambda v: AnyValue(string_value=v)),
        st.booleans().map(lambda v: AnyValue(bool_value=v)),
        st.integers(-(2**63), 2**63 - 1).map(lambda v: AnyValue(int_value=v)),
        # NaN isn't equal to itself, so spans containing it would never be equal.
        st.floats(allow_nan=False).map(lambda v: AnyValue(double_value=v)),
        (st.binary(max_size=20) | st.just(b"\xff\x00" * 600)).map(lambda v: AnyValue(bytes_value=v)),
    )
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda v: AnyValue(array_value=ArrayValue(values=v))),
            st.lists(st.builds(KeyValue, key=texts, value=inner), max_size=3).map(
                lambda v: AnyValue(kvlist_value=KeyValueList(values=v))
            ),
        ),
        max_leaves=6,
    )


any_values = _any_values()
names = st.sampled_from(
    ["input.value", "spanreplay.request", "spanreplay.seq", "spanreplay.kind", "spanreplay.schema", "user.id"]
)
attributes = st.lists(st.builds(KeyValue, key=texts | names, value=any_values), max_size=5)
counts = st.integers(0, 2**32 - 1)
times = st.integers(0, 2**64 - 1)
spans = st.builds(
    Span,
    trace_id=st.binary(min_size=16, max_size=16),
    trace_state=texts,
    parent_span_id=st.just(b"") | st.binary(min_size=8, max_size=8),
    flags=counts,
    name=texts,
    kind=st.integers(0, 5),
    start_time_unix_nano=times,
    end_time_unix_nano=times,
    attributes=attributes,
    dropped_attributes_count=counts,
    events=st.lists(st.builds(Span.Event, time_unix_nano=times, name=texts, attributes=attributes), max_size=2),
    dropped_events_count=counts,
    links=st.lists(
        st.builds(Span.Link, trace_id=st.binary(max_size=16), trace_state=texts, attributes=attributes), max_size=2
    ),
    status=st.builds(Status, message=texts, code=st.integers(0, 2)),
)


@st.composite
def requests(draw: st.DrawFn, run_id: str) -> ExportTraceServiceRequest:
    """Draw one batch of spans of one run, each with its own span id; resources and scopes may be empty."""
    request = ExportTraceServiceRequest()
    number = 0
    for _ in range(draw(st.integers(1, 2))):
        resource_spans = request.resource_spans.add()
        resource_spans.CopyFrom(ResourceSpans(schema_url=draw(texts)))
        resource_spans.resource.attributes.extend(draw(attributes))
        resource_spans.resource.attributes.append(
            KeyValue(key="spanreplay.run_id", value=AnyValue(string_value=run_id))
        )
        for _ in range(draw(st.integers(0, 2))):
            scope_spans = resource_spans.scope_spans.add()
            scope_spans.CopyFrom(ScopeSpans(schema_url=draw(texts)))
            if draw(st.booleans()):
                scope_spans.scope.name = draw(texts)
                scope_spans.scope.attributes.extend(draw(attributes))
            for span in draw(st.lists(spans, max_size=3)):
                number += 1
                span.span_id = number.to_bytes(8, "big")
                scope_spans.spans.append(span)
    return request
