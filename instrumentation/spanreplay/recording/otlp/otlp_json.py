"""OTLP/JSON: requests as JSON objects and back. Ids are hexadecimal there, unlike in protobuf's own JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_ID_FIELDS: Final = ("traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id")
_INT64: Final = 2**63


def read_request(tree: dict[str, Any]) -> ExportTraceServiceRequest:
    """Parse a JSON object as a request; skips unknown members and rewrites the ids in `tree`.

    Raises: ValueError if it is not one.
    """
    try:
        _rewrite_ids(tree, _to_base64)
        return _parse(tree)
    except (json_format.ParseError, TypeError, AttributeError, RecursionError) as exc:
        raise ValueError("not OTLP/JSON") from exc


def write_request(request: ExportTraceServiceRequest) -> dict[str, Any]:
    """A request as a JSON object; only fields that this OTLP version does not know are lost."""
    tree: dict[str, Any] = json_format.MessageToDict(request, use_integers_for_enums=True)
    _rewrite_ids(tree, _to_hex)
    return tree


def _parse(tree: dict[str, Any]) -> ExportTraceServiceRequest:
    try:
        return json_format.ParseDict(tree, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeEncodeError):
        return json_format.ParseDict(_mend(tree), ExportTraceServiceRequest(), ignore_unknown_fields=True)


def _mend(node: Any) -> Any:
    """What JavaScript writes and protobuf cannot hold: half an emoji, and a float without fraction as a large int."""
    if isinstance(node, str):
        return node.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(node, list):
        return [_mend(item) for item in node]
    if isinstance(node, dict):
        return {_mend_name(key, node[key]): _mend(value) for key, value in node.items()}
    return node


def _mend_name(name: str, value: Any) -> str:
    if name in ("intValue", "int_value") and type(value) in (int, float) and not -_INT64 <= value < _INT64:
        return "doubleValue"
    return str(_mend(name))


def _rewrite_ids(tree: dict[str, Any], rewrite: Callable[[str], str]) -> None:
    for batch in _members(tree, "resourceSpans", "resource_spans"):
        for scope in _members(batch, "scopeSpans", "scope_spans"):
            for span in _members(scope, "spans"):
                _rewrite_fields(span, rewrite)
                for link in _members(span, "links"):
                    _rewrite_fields(link, rewrite)


def _members(node: dict[str, Any], *names: str) -> Iterator[dict[str, Any]]:
    for name in names:
        for member in node.get(name) or ():
            if isinstance(member, dict):
                yield member


def _rewrite_fields(node: dict[str, Any], rewrite: Callable[[str], str]) -> None:
    for name in _ID_FIELDS:
        text = node.get(name)
        if isinstance(text, str):
            node[name] = rewrite(text)


def _to_base64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode("ascii")


def _to_hex(text: str) -> str:
    return base64.b64decode(text).hex()
