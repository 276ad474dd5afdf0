"""Memory that one request may cost: real requests to a collector in its own process, whose peak memory is read."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from spanreplay_collector import limits
from spanreplay_collector.wire import make_header
from support.collector import make_payload
from support.load_process import hash_spans, read_peak

MIB = 1 << 20
PROTOBUF = {"content-type": "application/x-protobuf"}
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
TESTS = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
}

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


def field(number: int, content: bytes) -> bytes:
    return make_header(number, len(content)) + content


def fill(part: bytes, size: int) -> bytes:
    return part * (size // len(part))


def one_scope(spans: bytes) -> bytes:
    return field(1, field(2, spans))


IDS = field(1, b"t" * 16) + field(2, b"s" * 8)
ATTRIBUTE = field(9, field(1, b"k") + field(2, b"\x10\x01"))
SIZE = 16 * MIB
MANY = limits.FIELDS_MAX - 2
BODIES: dict[str, tuple[bytes, int | None]] = {
    "tiny spans": (one_scope(field(2, IDS) * MANY), 0),
    "spans without ids": (one_scope(field(2, b"") * MANY), MANY),
    "spans of tiny attributes": (one_scope(fill(field(2, IDS + ATTRIBUTE * 100), SIZE)), 0),
    "too many spans": (one_scope(fill(field(2, IDS), SIZE)), None),
    "too many spans without ids": (one_scope(fill(field(2, b""), SIZE)), None),
    "one span of too many attributes": (one_scope(field(2, IDS + fill(ATTRIBUTE, SIZE))), None),
    "too many empty resources": (fill(field(1, b""), SIZE), None),
}
"""Requests that protobuf parses into many times their size: how many spans are refused; None: the whole request is."""
COST_MAX = 100_000_000


@contextmanager
def spawn(python: str, data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    process = subprocess.Popen(
        [python, "-m", "support.collector_process", str(data_dir), "down"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def refuse(transport: str, ports: dict[str, int], body: bytes) -> str:
    """The answer to a request that is refused as a whole."""
    if transport == "http":
        url = f"http://127.0.0.1:{ports['http']}/v1/traces"
        headers = {**PROTOBUF, "content-encoding": "gzip"}
        answer = httpx.post(url, content=gzip.compress(body, 1), headers=headers, trust_env=False, timeout=120)
        assert answer.status_code == 413
        return answer.text
    with pytest.raises(grpc.RpcError) as refused:
        send(transport, ports, body)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return str(refused.value.details())


def post(
    ports: dict[str, int], body: bytes | Iterable[bytes], headers: Mapping[str, str] = PROTOBUF
) -> ExportTraceServiceResponse:
    url = f"http://127.0.0.1:{ports['http']}/v1/traces"
    answer = httpx.post(url, content=body, headers=headers, trust_env=False, timeout=120)
    assert answer.status_code == 200, answer.content
    return ExportTraceServiceResponse.FromString(answer.content)


def send(transport: str, ports: dict[str, int], body: bytes) -> ExportTraceServiceResponse:
    if transport == "http":
        return post(ports, body)
    with grpc.insecure_channel(f"127.0.0.1:{ports['grpc']}", [("grpc.enable_http_proxy", 0)]) as channel:
        return ExportTraceServiceResponse.FromString(channel.unary_unary(EXPORT)(body, timeout=120))


@pytest.mark.parametrize(
    ("case", "transport"), [*((case, "http") for case in BODIES), ("tiny spans", "grpc"), ("too many spans", "grpc")]
)
@pytest.mark.sampled(3)
def test_r6_a_request_is_checked_in_a_few_times_its_bytes(
    tmp_path: Path, python: str, case: str, transport: str
) -> None:
    """A request that protobuf would expand many times is checked or refused in six times its size, below 100 MiB."""
    body, refused = BODIES[case]
    with spawn(python, tmp_path) as (process, ports):
        send(transport, ports, make_payload(1))
        before = read_peak(process.pid)
        if refused is None:
            assert f"more than {limits.FIELDS_MAX} spans or fields" in refuse(transport, ports, body)
        else:
            assert send(transport, ports, body).partial_success.rejected_spans == refused
        cost = read_peak(process.pid) - before
    assert cost < min(6 * max(len(body), 4 * MIB), COST_MAX)


def post_gzip(ports: dict[str, int], body: bytes) -> None:
    refused = post(ports, gzip.compress(body, 1), {**PROTOBUF, "content-encoding": "gzip"})
    assert not refused.partial_success.rejected_spans


WAYS: dict[str, tuple[int, Callable[[dict[str, int], bytes], object]]] = {
    "http": (60_000_000, lambda ports, body: send("http", ports, body)),
    "parts": (60_000_000, lambda ports, body: post(ports, (body[at : at + MIB] for at in range(0, len(body), MIB)))),
    "gzip": (60_000_000, post_gzip),
    "grpc": (limits.GRPC_EXPORT_BYTES_MAX - 1000, lambda ports, body: send("grpc", ports, body)),
}
"""How a span with one large text is sent, and the bytes of the text."""


@pytest.mark.parametrize("way", WAYS)
def test_r6_a_large_text_is_in_memory_once(tmp_path: Path, python: str, way: str) -> None:
    """A request of nearly the largest size with one attribute costs less than 100 MB, however it is sent."""
    size, take = WAYS[way]
    body = one_scope(make_span(1, b"x" * size))
    with spawn(python, tmp_path) as (process, ports):
        send("grpc" if way == "grpc" else "http", ports, make_payload(1))
        before = read_peak(process.pid)
        take(ports, body)
        assert read_peak(process.pid) - before < COST_MAX


@pytest.mark.parametrize(
    ("most", "last"),
    [
        (limits.JSON_BYTES_MAX, "~"),
        (limits.JSON_TEXT_BYTES_MAX, "é"),
        (limits.JSON_TEXT_BYTES_MAX, "語"),
        (limits.JSON_WIDE_BYTES_MAX, "😀"),
        (limits.JSON_WIDE_BYTES_MAX, "\\ud83d\\ude00"),
    ],
    ids=["ascii", "latin", "cjk", "emoji", "escape"],
)
def test_r6_a_large_json_request_costs_no_more(tmp_path: Path, python: str, most: int, last: str) -> None:
    """One character decides how many bytes Python takes for each, and so how large a request may be."""
    start, end = '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"', '"}]}]}]}'
    start += "a" * 32 + '","spanId":"' + "b" * 16 + '","name":"'
    text = "x" * (most - len(start) - len(end) - len(last.encode()))
    body, larger = f"{start}{text}{last}{end}".encode(), f"{start}{text}x{last}{end}".encode()
    assert len(body) == most
    with spawn(python, tmp_path) as (process, ports):
        send("http", ports, make_payload(1))
        before = read_peak(process.pid)
        url = f"http://127.0.0.1:{ports['http']}/v1/traces"
        headers = {"content-type": "application/json"}
        answer = httpx.post(url, content=body, headers=headers, trust_env=False, timeout=120)
        assert (answer.status_code, answer.json()) == (200, {})
        assert read_peak(process.pid) - before < COST_MAX
        refused = httpx.post(url, content=larger, headers=headers, trust_env=False, timeout=120)
        assert refused.status_code == 413
        assert read_peak(process.pid) - before < COST_MAX


def make_span(number: int, text: bytes = b"") -> bytes:
    attributes = field(9, field(1, b"input.value") + field(2, field(1, text))) if text else b""
    return field(2, field(1, b"t" * 16) + field(2, number.to_bytes(8, "big")) + attributes)


def make_ordinary() -> bytes:
    """63 MiB of spans of 2 KiB each, with one of 5 MB and one of 15 MiB among them."""
    dice = random.Random(1)
    spans = [make_span(number, dice.randbytes(1000).hex().encode()) for number in range(1, 21_000)]
    large = [make_span(30_000, b"x" * 5_000_000), make_span(30_001, b"y" * (15 * MIB))]
    return one_scope(b"".join([*spans, *large]))


LOADS: dict[str, tuple[Callable[[], bytes], int, int]] = {
    "ordinary spans": (make_ordinary, 21_001, 320 * MIB),
    "tiny spans": (lambda: one_scope(b"".join(map(make_span, range(1, 120_001)))), 120_000, 96 * MIB),
}
"""Request, number of its spans, and the memory that storing it may cost."""


@pytest.mark.parametrize("case", LOADS)
@pytest.mark.sampled(1)
def test_c5_a_large_request_is_stored_whole_in_bounded_memory(tmp_path: Path, python: str, case: str) -> None:
    """Ordinary spans of 63 MiB, or 120,000 tiny ones, are all stored byte for byte, with only a part in memory."""
    make, spans, bytes_max = LOADS[case]
    body = tmp_path / "body"
    body.write_bytes(make())
    done = subprocess.run(
        [python, "-m", "support.load_process", str(tmp_path / "store"), str(body)],
        check=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    found = json.loads(done.stdout)
    assert (found["spans"], found["stored"]) == (spans, hash_spans([body.read_bytes()]))
    assert found["after"] - found["before"] < bytes_max
